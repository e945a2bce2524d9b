// The readers of tar and of CIFAR's files on any bytes: entries lie inside the file, labels inside the classes, or
// io::Error.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "contextpool/data/images/cifar.h"
#include "contextpool/data/images/tar.h"

namespace {

using namespace contextpool;

// Not assert: it must hold in every kind of build.
void require(bool good) {
  if (!good) std::abort();
}

template <class F>
void try_it(F f) {
  try {
    f();
  } catch (const io::Error& error) {
    const std::string_view message = error.what();
    require(message.find('\n') == std::string_view::npos && message.size() < 1000);
  }
}

// Checksums of headers are made right, which mutations hardly ever get.
void repair(std::string& tar) {
  for (std::size_t at = 0; at + 512 <= tar.size(); at += 512) {
    if (tar.compare(at + 257, 5, "ustar") != 0) continue;
    unsigned sum = 8 * ' ';
    for (std::size_t k = 0; k < 512; ++k)
      if (k < 148 || k >= 156) sum += static_cast<unsigned char>(tar[at + k]);
    char text[8];
    std::snprintf(text, sizeof text, "%06o", sum);
    tar.replace(at + 148, 7, text, 7);
    tar[at + 155] = ' ';
  }
}

void check_tar(std::string bytes) {
  const data::TarRead read = [&](std::uint64_t offset, std::size_t size, char* out) {
    require(offset <= bytes.size() && size <= bytes.size() - offset);
    std::memcpy(out, bytes.data() + offset, size);
  };
  try_it([&] {
    for (const auto& entry : data::read_tar(read, bytes.size(), "fuzz"))
      require(entry.offset <= bytes.size() && entry.size <= bytes.size() - entry.offset);
  });
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const std::int64_t classes : {10, 100})
    try_it([&] {
      const auto records = data::parse_cifar(std::as_bytes(std::span(bytes)), classes, "fuzz");
      require(records.pixels.size() == records.labels.size() * data::kCifarBytes);
      for (const auto label : records.labels) require(label >= 0 && label < classes);
    });
  check_tar(bytes);
  repair(bytes);
  check_tar(bytes);
  return 0;
}
