// Lines, UTF-8 and parallel text: no line is lost or misplaced, whatever the packing; bad files are errors that name
// them.
#include <gtest/gtest.h>

#include <string>

#include "contextpool/data/translation/lines.h"
#include "contextpool/data/translation/parallel_text.h"
#include "contextpool/data/translation/utf8.h"
#include "files.h"

namespace contextpool::testing {
namespace {

using data::Lines;
using data::ParallelText;

// "line one\nline two\r\n\nlast" and " and\nmore\n", packed by gzip -n into two members.
const std::string kPacked(
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcb\xc9\xcc\x4b\x55\xc8\xcf\x4b\xe5\xca\x01\x31\x4a\xca\xf3\x79\xb9\xb8"
    "\x72\x12\x8b\x4b\x00\x4f\xbe\x4d\xe0\x18\x00\x00\x00"
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x53\x48\xcc\x4b\xe1\xca\xcd\x2f\x4a\xe5\x02\x00\x33\x99\x01\x51\x0a\x00"
    "\x00\x00",
    71);

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (const auto line : data::split_lines(text)) lines.emplace_back(line);
  return lines;
}

void says(const std::string& message, const std::vector<std::string>& words) {
  for (const auto& word : words) EXPECT_NE(message.find(word), std::string::npos) << word << " not in: " << message;
}

TEST(Utf8, TellsValidFromInvalid) {
  for (const auto* good : {"", "a", "ä", "€", "😀", "\u0800", "\U0010FFFF", "\u0301"}) {
    EXPECT_TRUE(data::is_valid_utf8(good)) << good;
    EXPECT_EQ(data::encode_utf8(data::decode_utf8(good)), good);
  }
  for (const auto* bad :
       {"\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff", "a\xf0\x9f\x98"}) {
    EXPECT_FALSE(data::is_valid_utf8(bad));
    EXPECT_TRUE(data::is_valid_utf8(data::encode_utf8(data::decode_utf8(bad))));
  }
  EXPECT_EQ(data::count_code_points("aä€😀"), 4);
  EXPECT_EQ(data::decode_utf8("\xe2\x82z"), U"\xFFFDz");
}

TEST(Lines, EndWithOrWithoutReturn) {
  EXPECT_EQ(lines_of("a\nb\r\n\n\r\nc"), (std::vector<std::string>{"a", "b", "", "", "c"}));
  EXPECT_EQ(lines_of("a\n"), (std::vector<std::string>{"a"}));
  EXPECT_EQ(lines_of("\n"), (std::vector<std::string>{""}));
  EXPECT_EQ(lines_of("a\rb"), (std::vector<std::string>{"a\rb"}));
  EXPECT_EQ(lines_of(std::string("a\0b\n", 4)), (std::vector<std::string>{std::string("a\0b", 3)}));
}

TEST(Lines, GzipIsToldByItsBytes) {
  if (!data::has_gzip()) GTEST_SKIP() << "built without zlib";
  const Folder folder;
  const Lines lines(folder.write("text.txt", kPacked));
  ASSERT_EQ(lines.size(), 5);
  EXPECT_EQ(lines[1], "line two");
  EXPECT_EQ(lines[2], "");
  EXPECT_EQ(lines[3], "last and");
  EXPECT_EQ(Lines(folder.write("plain.gz", "plain")).size(), 1);
  EXPECT_EQ(Lines(folder.write("zeros.gz", kPacked + std::string(512, '\0'))).size(), 5);
}

TEST(Lines, EveryDamageOfGzipIsAnError) {
  if (!data::has_gzip()) GTEST_SKIP() << "built without zlib";
  const Folder folder;
  for (std::size_t cut = 2; cut < kPacked.size(); ++cut) {
    if (cut == 41) continue;  // the end of the first member
    const auto path = folder.write("cut.gz", kPacked.substr(0, cut));
    says(message_of([&] { const Lines lines(path); }), {path});
  }
  says(message_of([&] { const Lines lines(folder.write("cut.gz", kPacked.substr(0, 30))); }), {"cut off"});
  says(message_of([&] { const Lines lines(folder.write("more.gz", kPacked + "more")); }), {"more.gz", "4 bytes after"});
  auto flipped = kPacked;
  flipped[20] = static_cast<char>(flipped[20] ^ 1);
  says(message_of([&] { const Lines lines(folder.write("flip.gz", flipped)); }), {"flip.gz", "damaged"});
}

TEST(Lines, MarksAreLeftOutAndUtf16IsRefused) {
  const Folder folder;
  EXPECT_EQ(Lines(folder.write("mark",
                               "\xef\xbb\xbf"
                               "a\nb"))[0],
            "a");
  says(message_of([&] {
         const Lines lines(folder.write("wide",
                                        "\xff\xfe"
                                        "a"));
       }),
       {"wide", "UTF-16"});
  says(message_of([&] { const Lines lines(folder.write("only", "\xef\xbb\xbf")); }), {"only", "is empty"});
  says(message_of([&] { const Lines lines(folder.write("none", "")); }), {"none", "is empty"});
  says(message_of([&] { const Lines lines(folder.path("missing")); }), {"missing", "No such file"});
  says(message_of([&] { const Lines lines(folder.path()); }), {folder.path()});
}

TEST(Lines, OutliveTheFileAndTheirOriginal) {
  const Folder folder;
  const auto path = folder.write("a", "one\ntwo\n");
  auto original = std::make_unique<Lines>(path);
  const auto copy = *original;
  original.reset();
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(copy[1], "two");
}

TEST(ParallelText, DropsAndCountsWhatTrainingCannotUse) {
  const Folder folder;
  const auto source = folder.write("s", "a\n\nc\n\xff\ne\n" + std::string(100'000, 'x') + "\n \t\nh\n");
  const auto target = folder.write("t", "A\nB\n\r\nD\nE\nF\nG\nä\xc3\xa4\n");
  const auto text = ParallelText::from_files(source, target);
  EXPECT_EQ(text.report().text(),
            "8 lines, 3 kept; dropped: 3 empty (lines 2, 3, 7), 1 not UTF-8 (line 4), 1 too long (line 6)");
  ASSERT_EQ(text.size(), 3);
  EXPECT_EQ(text.pair(1).source, "e");
  EXPECT_EQ(text.pair(1).target, "E");
  EXPECT_EQ(text.line(1), 5);
  EXPECT_EQ(text.line(2), 8);
  EXPECT_ANY_THROW(text.pair(3));
  EXPECT_ANY_THROW(text.pair(-1));
  EXPECT_EQ(ParallelText::from_files(source, target, {.max_characters = 0}).size(), 4);
  EXPECT_EQ(ParallelText::from_files(source, target, {.max_characters = 2}).size(), 3);  // characters, not bytes
  EXPECT_EQ(ParallelText::from_files(source, target, {.max_characters = 1}).size(), 2);
}

TEST(ParallelText, IsTheSameHoweverItIsPacked) {
  const Folder folder;
  const auto files = ParallelText::from_files(folder.write("s", "a\nb\n\nc"), folder.write("t", "A\nB\n\nC"));
  const auto tsv = ParallelText::from_tsv(folder.write("tsv",
                                                       "\xef\xbb\xbf"
                                                       "a\tA\r\nb\tB\r\n\t\r\nc\tC\r\n"));
  const auto pairs = ParallelText::from_pairs({{"a", "A"}, {"b", "B"}, {"", ""}, {"c", "C"}}, "pairs");
  for (const auto& text : {files, tsv, pairs}) {
    EXPECT_EQ(text.report().text(), "4 lines, 3 kept; dropped: 1 empty (line 3)");
    EXPECT_EQ(text.checksum(), files.checksum());
    EXPECT_EQ(text.pair(2).target, "C");
  }
  EXPECT_NE(ParallelText::from_pairs({{"a", "A"}, {"c", "C"}, {"b", "B"}}, "x").checksum(), files.checksum());
  EXPECT_NE(ParallelText::from_pairs({{"aA", "b"}}, "x").checksum(),
            ParallelText::from_pairs({{"a", "Ab"}}, "x").checksum());
}

TEST(ParallelText, BadFilesAreNamedWithTheirLines) {
  const Folder folder;
  const auto two = folder.write("two", "a\nb\n"), three = folder.write("three", "a\nb\n\n"),
             empty = folder.write("empty", "");
  says(message_of([&] { ParallelText::from_files(two, three); }), {two + " has 2 lines", three + " has 3"});
  says(message_of([&] { ParallelText::from_files(two, empty); }), {empty, "is empty"});
  says(message_of([&] { ParallelText::from_files(two, folder.path("missing")); }),
       {folder.path("missing"), "No such file"});
  says(message_of([&] { ParallelText::from_tsv(folder.write("bad", "a\tA\nb\n")); }),
       {"bad: line 2 of 2 has 1 columns"});
  says(message_of([&] { ParallelText::from_tsv(folder.write("bad", "a\tA\tx\n")); }), {"line 1 of 1 has 3 columns"});
  says(message_of([&] { ParallelText::from_files(folder.write("x", "\n\n"), two); }),
       {"no pair", "2 empty (lines 1, 2)"});
}

}  // namespace
}  // namespace contextpool::testing
