// The `algorithm` argument of the operators, by name.
#pragma once

#include <string_view>

#include "kernels/algorithm.h"

namespace contextpool {

// Throws, naming the operator and its choices, for a name that is none of them. Sequences have all four algorithms,
// maps no pyramid.
Algorithm parse_sequence_algorithm(std::string_view op, std::string_view name);
Algorithm parse_map_algorithm(std::string_view op, std::string_view name);

}  // namespace contextpool
