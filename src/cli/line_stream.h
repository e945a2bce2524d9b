// Lines from standard input and to standard output, for programs in a pipe: what is there is taken at once, so that a
// person or a slow producer is answered line by line, and a fast one in batches.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace contextpool::cli {

class LineReader {
 public:
  explicit LineReader(int descriptor) : descriptor_(descriptor) {}

  // Waits for a line, then takes those that are there already, `most` at most. Without their LF; the last line of the
  // input may lack it. Empty at the end of the input.
  std::vector<std::string> next(std::size_t most);

 private:
  bool take_line(std::string& line);
  bool fill();  // false at the end
  bool is_ready() const;

  int descriptor_;
  std::string pending_;
  std::size_t at_ = 0, searched_ = 0;  // in pending_: what is left begins at at_, and has no LF before searched_
  bool ended_ = false;
};

// All of the text. False where the reader has gone (a broken pipe); other failures throw. Needs SIGPIPE ignored.
bool write_out(int descriptor, std::string_view text);
void ignore_broken_pipes();

}  // namespace contextpool::cli
