// The lines of a text file, plain or gzip (told by its first bytes, whatever its name). A line ends with LF or CR LF;
// the last one may lack it. A byte-order mark of UTF-8 is left out. Bytes of a line are what they are: is_valid_utf8()
// tells. A file that is missing, empty, damaged or UTF-16 is an error that names it. Once read, nothing changes,
// whatever becomes of the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace contextpool::data {

class Lines {
 public:
  explicit Lines(const std::string& path);
  // Of a file's bytes that are in memory; `path` is for messages.
  static Lines from_bytes(std::string bytes, const std::string& path) { return {std::move(bytes), path}; }

  const std::string& path() const { return path_; }
  std::int64_t size() const { return static_cast<std::int64_t>(lines_.size()); }
  // Valid as long as this object or a copy of it is.
  std::string_view operator[](std::int64_t i) const { return lines_[static_cast<std::size_t>(i)]; }

 private:
  Lines(std::string bytes, const std::string& path);

  std::string path_;
  std::shared_ptr<const std::string> text_;  // shared by copies
  std::vector<std::string_view> lines_;      // of text_
};

bool has_gzip();                                                   // whether this build can read it
std::vector<std::string_view> split_lines(std::string_view text);  // no line is lost, blank ones included

}  // namespace contextpool::data
