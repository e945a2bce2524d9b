// A process that this one starts and watches. It is in a process group of its own, so that Ctrl-C reaches this process
// only, which then decides; and it gets SIGTERM when this one ends, however that comes about.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace contextpool::reproduce {

class Child {
 public:
  // Both files are appended to. `environment`: NAME=VALUE, beside what this process has.
  Child(const std::filesystem::path& program, const std::vector<std::string>& words,
        const std::vector<std::string>& environment, const std::filesystem::path& out,
        const std::filesystem::path& error);
  // If it still runs, asks it to end and waits until it has.
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  // Its exit status, or 128 + the signal that ended it; nothing while it runs. Does not wait.
  std::optional<int> status();
  void signal(int number) const;

 private:
  pid_t pid_ = 0;
};

}  // namespace contextpool::reproduce
