#include "reproduce/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "contextpool/io/error.h"

namespace contextpool::reproduce {
namespace {

namespace fs = std::filesystem;

constexpr int kNotStarted = 127;  // as shells say it
constexpr int kSignalled = 128;

int open_for(const fs::path& path) {
  constexpr int kMode = 0644;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kMode);
  if (file < 0) throw io::FileError(path, "open", errno);
  return file;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Those of this process, with some replaced.
std::vector<std::string> environment_with(const std::vector<std::string>& more) {
  std::vector<std::string> all = more;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string word = *entry;
    const auto name = word.substr(0, word.find('=') + 1);
    bool replaced = false;
    for (const auto& m : more) replaced = replaced || m.starts_with(name);
    if (!replaced) all.push_back(word);
  }
  return all;
}

// In the new process: only what is safe between fork and exec.
[[noreturn]] void become(const char* program, char* const* words, char* const* environment, int out, int error,
                         pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(number, SIG_DFL);
  const int nothing = ::open("/dev/null", O_RDONLY);
  const bool ready = ::getppid() == parent && nothing >= 0 && ::dup2(nothing, STDIN_FILENO) >= 0 &&
                     ::dup2(out, STDOUT_FILENO) >= 0 && ::dup2(error, STDERR_FILENO) >= 0;
  if (ready) ::execve(program, words, environment);
  ::_exit(kNotStarted);
}

}  // namespace

Child::Child(const fs::path& program, const std::vector<std::string>& words,
             const std::vector<std::string>& environment, const fs::path& out, const fs::path& error) {
  std::vector<std::string> all = {program.string()};
  all.insert(all.end(), words.begin(), words.end());
  auto variables = environment_with(environment);
  const auto word_pointers = pointers_to(all), variable_pointers = pointers_to(variables);
  const int out_file = open_for(out), error_file = open_for(error);
  const auto parent = ::getpid();
  pid_ = ::fork();
  const int code = errno;
  if (pid_ == 0)
    become(all.front().c_str(), word_pointers.data(), variable_pointers.data(), out_file, error_file, parent);
  ::close(out_file);
  ::close(error_file);
  if (pid_ < 0) throw io::FileError(program, "start", code);
}

Child::Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGTERM);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<int> Child::status() {
  int status = 0;
  const auto done = ::waitpid(pid_, &status, WNOHANG);
  if (done == 0 || (done < 0 && errno == EINTR)) return std::nullopt;
  pid_ = 0;
  if (done < 0) return kNotStarted;
  return WIFEXITED(status) ? WEXITSTATUS(status) : kSignalled + WTERMSIG(status);
}

void Child::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

}  // namespace contextpool::reproduce
