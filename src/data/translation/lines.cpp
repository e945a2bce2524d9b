#include "contextpool/data/translation/lines.h"

#include <algorithm>

#include "contextpool/io/files.h"
#include "data/translation/gzip.h"

namespace contextpool::data {
namespace {

constexpr std::string_view kMark = "\xef\xbb\xbf";

// The text itself: gzip undone, no mark at its beginning.
std::string plain_text(std::string bytes, const std::string& path) {
  require(!bytes.empty(), path, ": is empty; a text file with a sentence a line is expected");
  if (is_gzip(bytes)) {
    bytes = gunzip(bytes, path);
    require(!bytes.empty(), path, ": is empty once unpacked; a text file with a sentence a line is expected");
  }
  const std::string_view text = bytes;
  require(!text.starts_with("\xff\xfe") && !text.starts_with("\xfe\xff"), path,
          ": is UTF-16; convert it with iconv -f UTF-16 -t UTF-8");
  if (text.starts_with(kMark)) bytes.erase(0, kMark.size());
  return bytes;
}

}  // namespace

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    auto line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

Lines::Lines(const std::string& path) : Lines(io::read_file(path), path) {}

Lines::Lines(std::string bytes, const std::string& path)
    : path_(path),
      text_(std::make_shared<const std::string>(plain_text(std::move(bytes), path))),
      lines_(split_lines(*text_)) {
  require(!lines_.empty(), path, ": is empty but for a byte-order mark");
}

}  // namespace contextpool::data
