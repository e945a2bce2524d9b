#include "algorithm.h"

#include <c10/util/Exception.h>

namespace contextpool {

Algorithm parse_algorithm(std::string_view op, std::string_view name) {
  if (name == "auto") return Algorithm::automatic;
  if (name == "dense") return Algorithm::dense;
  if (name == "window") return Algorithm::window;
  if (name == "pyramid") return Algorithm::pyramid;
  TORCH_CHECK_VALUE(false, op, ": algorithm must be \"auto\", \"dense\", \"window\" or \"pyramid\", but is \"", name,
                    "\"");
}

}  // namespace contextpool
