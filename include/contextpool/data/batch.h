// Batches of windows of a text, as a pure function of (seed, step): row r of step s starts at a position drawn from
// (seed, s, r), uniformly over the split and with repetition. A rank takes its rows of that batch and a micro-batch its
// rows of the rank's, so that neither resuming nor another number of ranks or micro-batches changes what is seen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "contextpool/data/text.h"

namespace contextpool::data {

struct Rows {
  std::int64_t begin = 0, end = 0;
};

// Part `index` of `parts` of these rows: as equal as can be, in order, none left out.
Rows part_of(Rows rows, std::int64_t index, std::int64_t parts);

struct Batch {
  at::Tensor input, target;  // int64 [rows, length]; target is input one symbol later
};

// Throws if the split is shorter than a window of length + 1 symbols.
void check_window(const Text& text, Split split, std::int64_t length);
Batch make_batch(const Text& text, Split split, std::int64_t length, std::int64_t seed, std::int64_t step, Rows rows);

}  // namespace contextpool::data
