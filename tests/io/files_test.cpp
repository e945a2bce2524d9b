// Files are written whole or not at all, whatever fails; what cannot be read is refused by name.
#include "contextpool/io/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "io_cases.h"

namespace contextpool::io::testing {
namespace {

namespace fs = std::filesystem;

TEST(Files, AWriteThatFailsLeavesNothingOfItself) {
  const TemporaryFolder folder;
  OutputFile file(folder.path() / "log", OutputFile::Mode::kAppend);
  file.write("first\n");
  {
    const FailAt fail(0, ENOSPC);
    EXPECT_THROW(file.write("second line\n"), FileError);
  }
  file.write("third\n");
  EXPECT_EQ(read_text(folder.path() / "log"), "first\nthird\n");
  EXPECT_EQ(file.written(), 12u);
}

TEST(Files, AreReadWhole) {
  const TemporaryFolder folder;
  const std::string bytes("a\0b\n", 4);
  replace_file(folder.path() / "file", bytes);
  EXPECT_EQ(read_file(folder.path() / "file"), bytes);
  expect_message(message_of([&] { read_file(folder.path()); }), {folder.path().string(), "Is a directory"});
  expect_message(message_of([&] { read_file(folder.path() / "no"); }), {"no", "No such file"});
}

TEST(Files, DevicesAndLinksStayWhatTheyAre) {
  const TemporaryFolder folder;
  const auto pipe = folder.path() / "pipe", link = folder.path() / "link", file = folder.path() / "below/file";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  check_replaceable(pipe);
  replace_file(pipe, "text");
  char read[8] = {};
  EXPECT_EQ(::read(reader, read, sizeof read), 4);
  EXPECT_STREQ(read, "text");
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(pipe));
  replace_file("/dev/null", "text");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));

  make_folder(file.parent_path());
  replace_file(file, "old");
  fs::create_symlink("below/file", link);
  replace_file(link, "new");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_text(file), "new");
}

TEST(Files, APlaceWhereNothingCanBeWrittenIsToldBefore) {
  const TemporaryFolder folder;
  check_replaceable(folder.path() / "file");
  EXPECT_FALSE(fs::exists(folder.path() / "file"));
  expect_message(message_of([&] { check_replaceable(folder.path()); }), {folder.path().string(), "Is a directory"});
  expect_message(message_of([&] { check_replaceable(folder.path() / "no/file"); }), {"no/file", "No such file"});
}

TEST(Files, WhatAKilledReplacementLeftGoes) {
  const TemporaryFolder folder;
  for (const auto* name : {"a", ".a.writing-12", ".b.writing-12"}) replace_file(folder.path() / name, "x");
  remove_unfinished(folder.path() / "a");
  EXPECT_TRUE(fs::exists(folder.path() / "a"));
  EXPECT_FALSE(fs::exists(folder.path() / ".a.writing-12"));
  EXPECT_TRUE(fs::exists(folder.path() / ".b.writing-12"));
}

TEST(Files, AppendingGoesOnWhereTheFileEnds) {
  const TemporaryFolder folder;
  OutputFile(folder.path() / "log", OutputFile::Mode::kAppend).write("a");
  OutputFile reopened(folder.path() / "log", OutputFile::Mode::kAppend);
  {
    const FailAt fail(0, ENOSPC);
    EXPECT_THROW(reopened.write("long enough for a half"), FileError);
  }
  reopened.write("b");
  EXPECT_EQ(read_text(folder.path() / "log"), "ab");
}

TEST(Files, ANewFileIsNotTheOldOne) {
  const TemporaryFolder folder;
  write_text(folder.path() / "a", "old");
  const auto message = message_of([&] { OutputFile(folder.path() / "a", OutputFile::Mode::kNew); });
  expect_message(message, {(folder.path() / "a").string(), "File exists"});
  EXPECT_EQ(read_text(folder.path() / "a"), "old");
}

TEST(Files, ReplacingGivesTheOldFileOrTheNewWhateverFails) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "config";
  int k = 0;
  for (bool done = false; !done; ++k) {
    write_text(path, "old");
    const FailAt fail(k, ENOSPC);
    try {
      replace_file(path, "new");
      done = true;
      EXPECT_EQ(read_text(path), "new");
    } catch (const FileError& error) {
      EXPECT_TRUE(error.disk_full());
      // The last operation puts the folder's names on the disk: the new file has its name by then.
      EXPECT_EQ(read_text(path), fail.count() < 5 ? "old" : "new") << k;
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1) << "something was left at " << k;
  }
  EXPECT_EQ(k, 6) << "create, write, sync, rename, sync the folder; then none fails";
}

TEST(Files, WhatIsNoReadableFileIsRefusedByName) {
  const TemporaryFolder folder;
  const auto missing = folder.path() / "missing";
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_message(message_of([&] { MappedFile::open(missing); }), {missing.string(), "No such file"});
  expect_message(message_of([&] { MappedFile::open(folder.path()); }), {folder.path().string(), "directory"});
  expect_message(message_of([&] { MappedFile::open(pipe); }), {pipe.string(), "not a regular file"});
  write_text(folder.path() / "empty", "");
  EXPECT_TRUE(MappedFile::open(folder.path() / "empty")->bytes().empty());
}

TEST(Files, AMappingOutlivesTheFileAndWritesNothingToIt) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  write_text(path, "abc");
  const auto file = MappedFile::open(path);
  file->bytes()[0] = std::byte{'x'};
  EXPECT_EQ(read_text(path), "abc");
  fs::remove(path);
  EXPECT_EQ(file->text(), "xbc");
}

TEST(Files, FoldersAreMadeWithThoseAboveThem) {
  const TemporaryFolder folder;
  make_folder(folder.path() / "a/b/c/");
  make_folder(folder.path() / "a/b/c");
  EXPECT_TRUE(fs::is_directory(folder.path() / "a/b/c"));
  write_text(folder.path() / "file", "");
  expect_message(message_of([&] { make_folder(folder.path() / "file"); }), {"file: cannot create folder", "exists"});
}

TEST(Files, RemovingFollowsNoLink) {
  const TemporaryFolder folder;
  make_folder(folder.path() / "kept");
  write_text(folder.path() / "kept/file", "");
  make_folder(folder.path() / "gone");
  fs::create_directory_symlink(folder.path() / "kept", folder.path() / "gone/link");
  remove_tree(folder.path() / "gone");
  remove_tree(folder.path() / "gone");
  EXPECT_FALSE(fs::exists(folder.path() / "gone"));
  EXPECT_TRUE(fs::exists(folder.path() / "kept/file"));
}

TEST(Files, NamesInMessagesCannotBreakTheLine) {
  EXPECT_EQ(in_quotes("a\nb\x1b[31m\"\\"), R"("a\x0ab\x1b[31m\"\\")");
  EXPECT_LT(in_quotes(std::string(100000, 'x')).size(), 200u);
}

}  // namespace
}  // namespace contextpool::io::testing
