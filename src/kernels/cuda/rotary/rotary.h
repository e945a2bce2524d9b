// Rotary positions on device memory, all dtypes: up to three parts of a token's features in one pass, each turned or
// copied. Plain pointers, sizes, strides (in elements) and a stream; nothing here allocates or waits for the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/type.h"

namespace contextpool::cuda {

// [batch, tokens, heads, features] with contiguous features, read and written.
struct RotaryPart {
  const void* from = nullptr;
  std::int64_t from_batch = 0, from_token = 0, from_head = 0;
  void* to = nullptr;
  std::int64_t to_batch = 0, to_token = 0, to_head = 0;
  bool turns = true;  // else copied
};

struct Rotary {
  Type type = Type::f32;
  std::int64_t batch = 0, tokens = 0, heads = 0, features = 0;  // features: an even number
  int parts = 0;
  RotaryPart part[3];
  // [batch, tokens, features / 2], double beside f64, else float
  const void* cos = nullptr;
  const void* sin = nullptr;
  std::int64_t turn_batch = 0, turn_token = 0, turn_pair = 0;
  bool back = false;  // by the negative angle
};

cudaError_t rotary(const Rotary& in, cudaStream_t stream);

}  // namespace contextpool::cuda
