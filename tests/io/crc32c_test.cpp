// CRC-32C against published values (RFC 3720, B.4), and the instruction against the tables.
#include "contextpool/io/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace contextpool::io::testing {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Crc32c, GivesThePublishedValues) {
  const std::vector<std::byte> zeros(32), ones(32, std::byte{0xff});
  std::vector<std::byte> upwards(32), downwards(32);
  for (unsigned k = 0; k < 32; ++k) upwards[k] = downwards[31 - k] = std::byte(k);
  for (auto* const crc : {&crc32c, &crc32c_portable}) {
    EXPECT_EQ(crc({}, 0), 0u);
    EXPECT_EQ(crc(bytes_of("123456789"), 0), 0xE3069283u);
    EXPECT_EQ(crc(zeros, 0), 0x8A9136AAu);
    EXPECT_EQ(crc(ones, 0), 0x62A8AB43u);
    EXPECT_EQ(crc(upwards, 0), 0x46DD794Eu);
    EXPECT_EQ(crc(downwards, 0), 0x113FDB5Cu);
  }
}

TEST(Crc32c, IsTheSameByInstructionAndByTablesAtAnyLengthAndPlace) {
  std::mt19937 random(1);
  std::vector<std::byte> data(200);
  for (auto& byte : data) byte = std::byte(random() & 255);
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t size = 0; size + begin <= data.size(); ++size) {
      const auto part = std::span(data).subspan(begin, size);
      ASSERT_EQ(crc32c(part, 7), crc32c_portable(part, 7)) << begin << " " << size;
    }
  }
}

TEST(Crc32c, OfPiecesIsThatOfTheWhole) {
  const auto whole = bytes_of("the whole is what its pieces are, one after the other");
  for (std::size_t cut = 0; cut <= whole.size(); ++cut)
    EXPECT_EQ(crc32c(whole.subspan(cut), crc32c(whole.first(cut))), crc32c(whole));
}

}  // namespace
}  // namespace contextpool::io::testing
