#include "cli/line_stream.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "contextpool/io/error.h"

namespace contextpool::cli {
namespace {

constexpr std::size_t kAtOnce = std::size_t{1} << 16;

}  // namespace

bool LineReader::take_line(std::string& line) {
  const auto end = pending_.find('\n', searched_);
  if (end == std::string::npos) {
    searched_ = pending_.size();
    if (!ended_ || at_ == pending_.size()) return false;
  }
  const auto last = end == std::string::npos ? pending_.size() : end;
  line = pending_.substr(at_, last - at_);
  at_ = searched_ = end == std::string::npos ? last : last + 1;
  return true;
}

bool LineReader::is_ready() const {
  struct pollfd waiting {};
  waiting.fd = descriptor_;
  waiting.events = POLLIN;
  return ::poll(&waiting, 1, 0) > 0;
}

bool LineReader::fill() {
  pending_.erase(0, at_);
  searched_ -= at_;
  at_ = 0;
  const auto before = pending_.size();
  pending_.resize(before + kAtOnce);
  ssize_t count = 0;
  do {
    count = ::read(descriptor_, pending_.data() + before, kAtOnce);
  } while (count < 0 && errno == EINTR);
  const int code = errno;
  pending_.resize(before + (count > 0 ? static_cast<std::size_t>(count) : 0));
  if (count < 0) throw io::FileError("standard input", "read", code);
  ended_ = count == 0;
  return !ended_;
}

std::vector<std::string> LineReader::next(std::size_t most) {
  std::vector<std::string> lines;
  std::string line;
  while (lines.size() < most) {
    if (take_line(line)) {
      lines.push_back(std::move(line));
    } else if (ended_ || (!lines.empty() && !is_ready())) {
      break;
    } else {
      fill();
    }
  }
  return lines;
}

bool write_out(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const auto count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EPIPE) return false;
    if (count < 0) throw io::FileError("standard output", "write", errno);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

void ignore_broken_pipes() { std::signal(SIGPIPE, SIG_IGN); }

}  // namespace contextpool::cli
