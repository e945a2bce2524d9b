// Batches of a collection of pictures, decoded on a pool of threads into memory that the caller gives.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contextpool/data/images/cifar.h"
#include "contextpool/data/images/collection.h"
#include "contextpool/data/images/thread_pool.h"
#include "contextpool/data/images/view.h"

namespace contextpool::data {

// One row of a batch: which picture, and the epoch and copy (repeated augmentation) that choose its augmentation.
struct PictureRow {
  std::int64_t picture;
  std::int64_t epoch = 0;
  std::int64_t copy = 0;
};

// A picture that could not be read, and why (with its name).
struct BrokenPicture {
  std::int64_t picture;
  std::string reason;
};

// Fills `pixels` (uint8 [rows, 3, size, size] on the CPU, contiguous or channels-last, pinned or not) and `labels`
// (int64 [rows]). Number of threads and rows of a batch change nothing. Pictures that cannot be read are returned, in
// the order of rows: in training the next one of the collection that can be read takes the row, with its label; in
// evaluation the row is black and its label -1, so that the score can leave it out. If none of 16 in a row can be read,
// that is thrown.
std::vector<BrokenPicture> load_for_training(const PictureCollection& pictures, std::span<const PictureRow> rows,
                                             const ViewOptions& options, std::int64_t seed, ThreadPool& pool,
                                             const at::Tensor& pixels, const at::Tensor& labels);
std::vector<BrokenPicture> load_for_evaluation(const PictureCollection& pictures, std::span<const PictureRow> rows,
                                               const ViewOptions& options, ThreadPool& pool, const at::Tensor& pixels,
                                               const at::Tensor& labels);

// Records of CIFAR as uint8 [n, 3, 32, 32] and int64 [n], which take over their memory.
struct LabelledTensors {
  at::Tensor pictures;
  at::Tensor labels;
};
LabelledTensors as_tensors(LabelledBytes records);

}  // namespace contextpool::data
