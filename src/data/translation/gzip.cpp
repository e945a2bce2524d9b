#include "data/translation/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <memory>

#include "contextpool/data/translation/lines.h"

namespace contextpool::data {
namespace {

constexpr int kGzipOnly = 15 + 16;                         // the largest window, and zlib's sign for gzip's header
constexpr std::size_t kBlock = std::size_t{1} << 18U;      // bytes at a time
constexpr std::size_t kMaxBytes = std::size_t{64} << 30U;  // a larger text cannot be meant to be held in memory

struct EndInflate {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};

// One member from `bytes` on; returns how many bytes it took.
std::size_t inflate_member(std::string_view bytes, std::string& text, const std::string& path) {
  z_stream stream{};
  require(inflateInit2(&stream, kGzipOnly) == Z_OK, path, ": zlib could not be started");
  const std::unique_ptr<z_stream, EndInflate> end(&stream);
  const auto block = std::make_unique<std::array<char, kBlock>>();
  std::size_t taken = 0;
  for (int state = Z_OK; state != Z_STREAM_END;) {
    const auto part = std::min(bytes.size() - taken, kBlock);
    // zlib reads, but does not write, what next_in points to.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + taken));
    stream.avail_in = static_cast<uInt>(part);
    do {
      stream.next_out = reinterpret_cast<Bytef*>(block->data());
      stream.avail_out = static_cast<uInt>(kBlock);
      state = inflate(&stream, Z_NO_FLUSH);
      require(state == Z_OK || state == Z_STREAM_END || state == Z_BUF_ERROR, path, ": is a damaged gzip file (",
              stream.msg == nullptr ? "unknown" : stream.msg, ")");
      text.append(block->data(), kBlock - stream.avail_out);
      require(text.size() <= kMaxBytes, path, ": holds more than ", kMaxBytes, " bytes of text");
    } while (stream.avail_out == 0 && state != Z_STREAM_END);
    taken += part - stream.avail_in;
    require(state == Z_STREAM_END || taken < bytes.size(), path,
            ": is a gzip file that was cut off; copy or download it again");
  }
  return taken;
}

}  // namespace

bool has_gzip() { return true; }

bool is_gzip(std::string_view bytes) { return bytes.size() >= 2 && bytes[0] == '\x1f' && bytes[1] == '\x8b'; }

std::string gunzip(std::string_view bytes, const std::string& path) {
  std::string text;
  while (!bytes.empty()) {
    bytes.remove_prefix(inflate_member(bytes, text, path));
    if (is_gzip(bytes)) continue;
    require(std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == '\0'; }), path, ": has ", bytes.size(),
            " bytes after the end of its gzip data");
    break;
  }
  return text;
}

}  // namespace contextpool::data
