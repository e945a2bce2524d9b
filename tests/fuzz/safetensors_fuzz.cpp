// The parser of safetensors headers on any bytes: it returns a header that keeps its promises or throws io::Error, and
// what it returns can be written and read again.
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <set>

#include "contextpool/io/safetensors_header.h"

namespace {

using namespace contextpool::io;

// Not assert: it must hold in every kind of build.
void require(bool good) {
  if (!good) std::abort();
}

void check_promises(const SafetensorsHeader& header, std::uint64_t size) {
  std::uint64_t at = 0;
  std::set<std::string> names;
  for (const auto& tensor : header.tensors) {
    require(names.insert(tensor.name).second);
    require(tensor.begin == at && tensor.end >= at);
    at = tensor.end;
    unsigned __int128 bytes = static_cast<std::uint64_t>(dtype_size(tensor.dtype));
    for (const auto dimension : tensor.shape) {
      require(dimension >= 0);
      bytes *= static_cast<std::uint64_t>(dimension);
      require(bytes <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
    }
    require(bytes == tensor.end - tensor.begin);
  }
  require(header.data_begin + at == size);
}

void check_written_again(const SafetensorsHeader& header) {
  auto tensors = header.tensors;
  const auto bytes = format_safetensors_header(tensors, header.metadata, "again");
  require(bytes.size() % 8 == 0);
  const auto data = tensors.empty() ? 0 : tensors.back().end;
  const auto reparsed = parse_safetensors_header(std::as_bytes(std::span(bytes)), bytes.size() + data, "again");
  require(reparsed.tensors == tensors && reparsed.metadata == header.metadata);
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto header = parse_safetensors_header(std::as_bytes(std::span(data, size)), size, "fuzz");
    check_promises(header, size);
    check_written_again(header);
  } catch (const Error& error) {
    const std::string_view message = error.what();
    require(message.find('\n') == std::string_view::npos && message.size() < 1000);
  }
  return 0;
}
