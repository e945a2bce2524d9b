#include "algorithm.h"

#include <c10/util/Exception.h>

#include <optional>

namespace contextpool {
namespace {

std::optional<Algorithm> algorithm_named(std::string_view name) {
  if (name == "auto") return Algorithm::automatic;
  if (name == "dense") return Algorithm::dense;
  if (name == "window") return Algorithm::window;
  if (name == "pyramid") return Algorithm::pyramid;
  return std::nullopt;
}

}  // namespace

Algorithm parse_sequence_algorithm(std::string_view op, std::string_view name) {
  const auto algorithm = algorithm_named(name);
  TORCH_CHECK_VALUE(algorithm, op, ": algorithm must be \"auto\", \"dense\", \"window\" or \"pyramid\", but is \"",
                    name, "\"");
  return *algorithm;
}

Algorithm parse_map_algorithm(std::string_view op, std::string_view name) {
  const auto algorithm = algorithm_named(name);
  TORCH_CHECK_VALUE(algorithm && *algorithm != Algorithm::pyramid, op,
                    ": algorithm must be \"auto\", \"dense\" or \"window\", but is \"", name, "\"",
                    algorithm ? " (which merges neighbouring tokens, so it is for sequences only)" : "");
  return *algorithm;
}

}  // namespace contextpool
