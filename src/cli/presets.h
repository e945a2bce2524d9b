// The files of configs/, which the build puts into the program (presets.cpp.in).
#pragma once

#include <span>

namespace contextpool::cli {

struct Preset {
  const char* name;
  const char* text;
};
extern const std::span<const Preset> kPresets;

}  // namespace contextpool::cli
