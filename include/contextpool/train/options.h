// How a model is trained, whatever it is and on whatever data: one field a flag of `contextpool train`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contextpool/train/optimizer.h"
#include "contextpool/train/schedule.h"

namespace contextpool::train {

struct TrainOptions {
  std::vector<Stage> stages = {Stage{}};
  std::string schedule = "constant";
  double final_share = 0.05;  // of the learning rate, where "cosine" ends

  OptimizerOptions optimizer;
  double clip = 1;               // of the gradient's 2-norm; 0: none
  std::int64_t accumulate = 1;   // micro-batches a step, in each process
  std::int64_t processes = 1;    // that train together; no flag, torchrun says it
  bool shard_optimizer = false;  // each process keeps the optimizer's state of a share of the parameters
  double ema = 0;                // decay of the average of the weights; 0: none
  bool bfloat16 = false;
  std::int64_t seed = 1;
  std::string device = "auto";
  bool cuda_graphs = true;  // a step whose shapes stay is recorded and replayed, where it can be

  std::int64_t checkpoint_every = 1000;
  // Steps that may be enqueued before the first of them is read and logged; unless set, 0 on the CPU, a few on a GPU.
  // No flag: it changes nothing but when a line is written.
  std::optional<std::int64_t> behind = std::nullopt;
  double checkpoint_minutes = 5;  // a checkpoint too when so long passed without; the first after one; 0: none
  int keep = 3;
  std::int64_t loaders = 2;   // threads that make the next batches; 0: each is made when it is needed
  std::int64_t give_up = 10;  // steps in a row whose loss or gradient is not finite
};

// The parts into which a step's batch is divided: the micro-batches of all processes.
inline std::int64_t parts(const TrainOptions& options) { return options.accumulate * options.processes; }

// Throws at the first value that cannot be.
void validate(const TrainOptions& options);

}  // namespace contextpool::train
