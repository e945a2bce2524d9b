// looking.html, which the build puts into the program (looking_page.cpp.in).
#pragma once

#include <string_view>

namespace contextpool::eval {

// In place of kLookingMark stand the data, a JSON object.
inline constexpr std::string_view kLookingMark = "LOOKING_DATA";
extern const std::string_view kLookingPage;

}  // namespace contextpool::eval
