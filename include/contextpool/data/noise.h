// A text with nothing to learn in it, for measuring without a file: the word that stands for it in place of a path,
// where there is no file of that name.
#pragma once

#include <cstdint>
#include <string>

namespace contextpool::data {

inline constexpr const char* kNoise = "noise";

// `size` letters, the same in every run.
std::string noise_text(std::int64_t size);

}  // namespace contextpool::data
