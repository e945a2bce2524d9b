// How a pooled sum is evaluated. All give the same result within the accuracy contract.
#pragma once

#include <cstdint>

namespace contextpool {

enum class Algorithm : std::uint8_t { automatic, dense, window, pyramid };

}  // namespace contextpool
