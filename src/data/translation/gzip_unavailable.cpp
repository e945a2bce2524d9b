// gzip in a build without zlib: files are told apart, and refused.
#include "contextpool/data/translation/lines.h"
#include "data/translation/gzip.h"

namespace contextpool::data {

bool has_gzip() { return false; }

bool is_gzip(std::string_view bytes) { return bytes.size() >= 2 && bytes[0] == '\x1f' && bytes[1] == '\x8b'; }

std::string gunzip(std::string_view, const std::string& path) {
  throw io::Error(path +
                  ": is a gzip file, but this program was built without zlib; unpack it (gzip -dk), or install "
                  "zlib1g-dev and build again");
}

}  // namespace contextpool::data
