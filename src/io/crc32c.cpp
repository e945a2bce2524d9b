// Both forms take eight bytes at a time: the instruction does it in one go, the tables by
//   crc(b0 ... b7) = T7[b0 ^ crc0] ^ ... ^ T4[b3 ^ crc3] ^ T3[b4] ^ ... ^ T0[b7],
// Tk[b] being the remainder of b followed by k zero bytes.
#include "contextpool/io/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace contextpool::io {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // 0x1EDC6F41, bits reversed
constexpr std::size_t kWord = 8;
using Tables = std::array<std::array<std::uint32_t, 256>, kWord>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < kWord; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto crc = tables[k - 1][byte];
      tables[k][byte] = (crc >> 8) ^ tables[0][crc & 255];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint64_t word_at(const std::byte* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, kWord);
  return word;
}

std::uint32_t by_tables(const std::byte* at, std::size_t count, std::uint32_t crc) {
  for (; count >= kWord; count -= kWord, at += kWord) {
    const auto word = word_at(at) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < kWord; ++k) crc ^= kTables[kWord - 1 - k][(word >> (8 * k)) & 255];
  }
  for (; count > 0; --count, ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(*at)) & 255];
  return crc;
}

// The instruction on the whole words, in a function compiled for processors that have it.
#if defined(__x86_64__)
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const std::byte* at, std::size_t words,
                                                               std::uint32_t crc) {
  std::uint64_t crc64 = crc;
  for (; words > 0; --words, at += kWord) crc64 = __builtin_ia32_crc32di(crc64, word_at(at));
  return static_cast<std::uint32_t>(crc64);
}
#elif defined(__aarch64__)
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

__attribute__((target("+crc"))) std::uint32_t by_instruction(const std::byte* at, std::size_t words,
                                                             std::uint32_t crc) {
  for (; words > 0; --words, at += kWord) crc = __builtin_aarch64_crc32cx(crc, word_at(at));
  return crc;
}
#else
bool has_instruction() { return false; }
std::uint32_t by_instruction(const std::byte*, std::size_t, std::uint32_t crc) { return crc; }
#endif

}  // namespace

std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t before) {
  return ~by_tables(bytes.data(), bytes.size(), ~before);
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  static const bool fast = has_instruction();
  if (!fast) return crc32c_portable(bytes, before);
  const auto words = bytes.size() / kWord;
  const auto crc = by_instruction(bytes.data(), words, ~before);
  const auto rest = bytes.subspan(words * kWord);
  return ~by_tables(rest.data(), rest.size(), crc);
}

}  // namespace contextpool::io
