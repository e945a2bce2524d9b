// Event files survive what fails; that TensorBoard reads them is tested with TensorBoard (tests/python/test_io.py).
#include "contextpool/io/events.h"

#include <cerrno>

#include "contextpool/io/crc32c.h"
#include "io_cases.h"

namespace contextpool::io::testing {
namespace {

// The records of a file, or fewer if one is torn.
std::vector<std::string> records_of(const std::filesystem::path& path) {
  const auto bytes = read_text(path);
  std::vector<std::string> records;
  for (std::size_t at = 0; at + 12 <= bytes.size();) {
    const auto size = static_cast<unsigned char>(bytes[at]) + 256u * static_cast<unsigned char>(bytes[at + 1]);
    if (at + 16 + size > bytes.size()) return records;
    records.push_back(bytes.substr(at + 12, size));
    at += 16 + size;
    if (at == bytes.size()) records.emplace_back("end");
  }
  return records;
}

TEST(EventWriter, EveryStartHasItsOwnFile) {
  const TemporaryFolder folder;
  const EventWriter first(folder.path());
  const EventWriter second(folder.path());
  EXPECT_NE(first.path(), second.path());
  EXPECT_TRUE(first.path().filename().string().starts_with("events.out.tfevents."));
}

TEST(EventWriter, AFullDiskLosesNoRecord) {
  const TemporaryFolder folder;
  EventWriter writer(folder.path());
  writer.scalar("loss", 1, 1);
  {
    const FailAt fail(0, ENOSPC);
    EXPECT_THROW(writer.scalar("loss", 2, 2), FileError);
  }
  writer.scalar("loss", 3, 3);
  {
    const FailAt fail(0, ENOSPC);
    EXPECT_THROW(writer.scalar("loss", 4, 4), FileError);
  }
  writer.sync();
  const auto records = records_of(writer.path());
  ASSERT_EQ(records.size(), 6u) << "version, four scalars, end";
  EXPECT_EQ(records.back(), "end");
}

TEST(EventWriter, AMissingFolderIsNamed) {
  const TemporaryFolder folder;
  expect_message(message_of([&] { EventWriter(folder.path() / "no"); }), {(folder.path() / "no").string(), "No such"});
}

}  // namespace
}  // namespace contextpool::io::testing
