// The `algorithm` argument of the operators, by name.
#pragma once

#include <string_view>

#include "kernels/algorithm.h"

namespace contextpool {

// Throws, naming the operator and the choices, for a name that is none of them.
Algorithm parse_algorithm(std::string_view op, std::string_view name);

}  // namespace contextpool
