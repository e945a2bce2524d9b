// How features are stored. Weights and sizes are double beside f64, else float.
#pragma once

#include <cstdint>

namespace contextpool {

enum class Type : std::uint8_t { f64, f32, bf16, f16 };

}  // namespace contextpool
