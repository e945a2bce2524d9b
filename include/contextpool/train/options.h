// What a training run is: model, text, recipe. One field a flag of `contextpool train`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contextpool/models/language_model.h"
#include "contextpool/train/adamw.h"
#include "contextpool/train/schedule.h"

namespace contextpool::train {

struct TrainOptions {
  models::LanguageModelOptions model;
  std::string data;
  std::string layout = "bytes";

  std::vector<Stage> stages = {Stage{}};
  std::string schedule = "constant";
  double final_share = 0.05;  // of the learning rate, where "cosine" ends

  AdamWOptions adamw;
  double clip = 1;              // of the gradient's 2-norm; 0: none
  std::int64_t accumulate = 1;  // micro-batches a step
  double ema = 0;               // decay of the average of the weights; 0: none
  bool bfloat16 = false;
  std::int64_t seed = 1;
  std::string device = "auto";

  std::int64_t checkpoint_every = 1000;
  double checkpoint_minutes = 5;  // a checkpoint too when so long passed without; the first after one; 0: none
  int keep = 3;
  std::int64_t eval_tokens = 100'000;  // of the dev text, scored before each checkpoint; 0: none
  std::int64_t eval_batch = 8;
  std::int64_t give_up = 10;  // steps in a row whose loss or gradient is not finite
};

// Throws at the first value that cannot be; those of the model are checked when it is built.
void validate(const TrainOptions& options);

}  // namespace contextpool::train
