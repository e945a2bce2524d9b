// What the tests of files share: a folder of their own, file operations that fail on demand, and errors as text.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>  // mkdtemp
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "contextpool/io/files.h"

namespace contextpool::io::testing {

// In memory where there is such a place: these tests sync thousands of times.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const std::filesystem::path memory = "/dev/shm";
    const bool usable = ::access(memory.c_str(), W_OK) == 0;
    auto name = ((usable ? memory : std::filesystem::temp_directory_path()) / "contextpool-io-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A hook for as long as this lives.
class Hooked {
 public:
  explicit Hooked(FileHook hook) { set_file_hook(std::move(hook)); }
  ~Hooked() { set_file_hook({}); }
  Hooked(const Hooked&) = delete;
  Hooked& operator=(const Hooked&) = delete;
};

// Fails the k-th operation (from 0) with an errno, and counts them all.
class FailAt {
 public:
  FailAt(int k, int code)
      : hooked_([this, k, code](FileOperation, const std::filesystem::path&) { return count_++ == k ? code : 0; }) {}
  int count() const { return count_; }

 private:
  int count_ = 0;
  Hooked hooked_;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was refused)";
}

// One line that holds all of `parts`.
inline void expect_message(const std::string& message, const std::vector<std::string>& parts) {
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const auto& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
}

}  // namespace contextpool::io::testing
