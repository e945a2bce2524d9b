// What the io layer throws. The message is one line: the file, what was expected, what came. No torch needed.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace contextpool::io {

// A file that cannot be used: missing, damaged, or not what the caller asked for.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The operating system refused: "<path>: cannot <action>: <reason>". What was there before is still whole, and the same
// call may be tried again.
class FileError : public Error {
 public:
  FileError(const std::filesystem::path& path, std::string_view action, int code);

  int code() const { return code_; }  // errno
  bool disk_full() const;             // no space, or a quota reached

 private:
  int code_;
};

// "text" with quotation marks, unprintable bytes as \xNN and a long middle left out: names that come from a file cannot
// break a message's line or drive a terminal.
std::string in_quotes(std::string_view text);

}  // namespace contextpool::io
