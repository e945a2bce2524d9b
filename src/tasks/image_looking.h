// The windows of a classifier of pictures: on one picture, and their sizes on many.
#pragma once

#include <optional>

#include "contextpool/eval/looking.h"
#include "contextpool/tasks/registry.h"

namespace contextpool::tasks {

// What the options of a vision model say of its windows: form, and whether they lie in the plane or along the rows.
struct LookedAtForm {
  nn::ContextPoolOptions pool;
  bool row = false;
};
LookedAtForm looked_at_form(const OptionList& model_options);

// Of one layer of forward_with_windows, over all of its pictures.
std::optional<nn::WindowStatistics> statistics_of(const LookedAtForm& form, const nn::Windows& windows);

eval::Looking look_at_picture(const LookRequest& request);

}  // namespace contextpool::tasks
