// Messages and small texts, put together from parts.
#pragma once

#include <sstream>
#include <string>

namespace contextpool::io {

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

}  // namespace contextpool::io
