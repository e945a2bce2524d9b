// data::Text: what is read is what the file holds, split where the layout says; bad files are errors that name them.
#include "contextpool/data/text.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "files.h"

namespace contextpool::testing {
namespace {

using data::Split;
using data::Text;

std::string all_bytes(int copies) {
  std::string text;
  for (int i = 0; i < 256 * copies; ++i) text += static_cast<char>(i % 256);
  return text;
}

std::string letters(std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) text += i % 27 == 0 ? ' ' : static_cast<char>('a' + i % 27 - 1);
  return text;
}

TEST(Text, IsTheFilesBytesSplit90To5To5) {
  const Folder folder;
  const auto bytes = all_bytes(4) + "tail";  // 1028 bytes: a twentieth is 51
  const Text text(folder.write("a.txt", bytes), "bytes");
  EXPECT_EQ(text.size(Split::dev), 51);
  EXPECT_EQ(text.size(Split::test), 51);
  EXPECT_EQ(text.size(Split::train), 1028 - 102);
  std::string read;
  for (const auto split : {Split::train, Split::dev, Split::test}) {
    read += text.alphabet().decode(text.symbols(split, 0, text.size(split)));
  }
  EXPECT_EQ(read, bytes);
  EXPECT_EQ(text.symbols(Split::dev, 3, 1).item<std::int64_t>(), static_cast<unsigned char>(bytes[1028 - 102 + 3]));
}

TEST(Text, AllIsTheWholeFile) {
  const Folder folder;
  const auto bytes = all_bytes(1);
  const Text text(folder.write("a.txt", bytes), "bytes");
  EXPECT_EQ(text.size(Split::all), 256);
  EXPECT_EQ(text.alphabet().decode(text.symbols(Split::all, 0, 256)), bytes);
  EXPECT_EQ(data::split_named("all"), Split::all);
}

TEST(Text, StaysWhatItWasWhateverBecomesOfTheFile) {
  const Folder folder;
  const auto path = folder.write("a.txt", all_bytes(4));
  const Text text(path, "bytes");
  const auto before = text.symbols(Split::all, 0, 1024);
  const auto checksum = text.checksum();
  std::filesystem::resize_file(path, 10);  // a mapping would end the process with SIGBUS
  EXPECT_TRUE(text.symbols(Split::all, 0, 1024).equal(before));
  EXPECT_EQ(text.checksum(), checksum);
  EXPECT_NE(Text(folder.write("b.txt", "other"), "bytes").checksum(), checksum);
}

TEST(Text, LettersAre27Symbols) {
  const Folder folder;
  const Text text(folder.write("a.txt", letters(540)), "letters");
  EXPECT_EQ(text.alphabet().size(), 27);
  const auto symbols = text.symbols(Split::train, 0, 27);
  for (std::int64_t i = 0; i < 27; ++i) EXPECT_EQ(symbols[i].item<std::int64_t>(), i);
  EXPECT_EQ(text.alphabet().decode(symbols), " abcdefghijklmnopqrstuvwxyz");
}

TEST(Text, BenchmarksSplitAt90And95Million) {
  const Folder folder;
  const auto path = folder.write("text", "");
  std::filesystem::resize_file(path, 100'000'000);  // a sparse file of zeros
  const Text enwik8(path, "enwik8");
  EXPECT_EQ(enwik8.size(Split::train), 90'000'000);
  EXPECT_EQ(enwik8.size(Split::dev), 5'000'000);
  EXPECT_EQ(enwik8.size(Split::test), 5'000'000);

  auto bytes = letters(100'000'000);
  const Text text8(folder.write("text8", bytes), "text8");
  EXPECT_EQ(text8.alphabet().decode(text8.symbols(Split::test, 4'999'990, 10)), bytes.substr(99'999'990));
  EXPECT_EQ(text8.size(Split::train), 90'000'000);
}

TEST(Text, AFileOfAnotherSizeIsNotTheBenchmark) {
  const Folder folder;
  const auto path = folder.write("enwik8", all_bytes(1));
  const auto message = message_of([&] { const Text text(path, "enwik8"); });
  EXPECT_NE(message.find(path), std::string::npos) << message;
  EXPECT_NE(message.find("100000000"), std::string::npos) << message;
  EXPECT_NE(message.find("\"bytes\""), std::string::npos) << message;
}

TEST(Text, BadFilesAreNamed) {
  const Folder folder;
  const auto says = [&](const std::string& path, const std::string& layout, const std::string& what) {
    const auto message = message_of([&] { const Text text(path, layout); });
    EXPECT_NE(message.find(path), std::string::npos) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  says(folder.path("missing.txt"), "bytes", "No such file");
  says(folder.write("empty.txt", ""), "bytes", "is empty");
  says(folder.path(), "bytes", "Is a directory");
  says("/dev/null", "bytes", "not a regular file");
  says(folder.write("upper.txt", "abc Def"), "letters", "byte 68 at offset 4");
  says(folder.write("high.txt", "abc\xe9"), "letters", "byte 233 at offset 3");
}

TEST(Text, NoiseIsGeneratedUnlessThereIsAFileOfThatName) {
  const Folder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const auto generated = Text("noise", "bytes").size(Split::all);
  folder.write("noise", "some text");
  const auto read = Text("noise", "bytes").size(Split::all);
  std::filesystem::current_path(before);
  EXPECT_GT(generated, 1'000'000);
  EXPECT_EQ(read, 9);
}

TEST(Text, UnknownWordsGetTheNearest) {
  const Folder folder;
  const auto path = folder.write("a.txt", "abc");
  const auto layout = message_of([&] { const Text text(path, "enwik9"); });
  EXPECT_NE(layout.find("did you mean \"enwik8\""), std::string::npos) << layout;
  const auto split = message_of([] { data::split_named("tests"); });
  EXPECT_NE(split.find("did you mean \"test\""), std::string::npos) << split;
}

TEST(Text, NothingOutsideASplitIsRead) {
  const Folder folder;
  const Text text(folder.write("a.txt", all_bytes(4)), "bytes");
  const auto size = text.size(Split::train);
  EXPECT_EQ(text.symbols(Split::train, size, 0).numel(), 0);
  EXPECT_ANY_THROW(text.symbols(Split::train, size, 1));
  EXPECT_ANY_THROW(text.symbols(Split::train, -1, 1));
  EXPECT_ANY_THROW(text.symbols(Split::train, 1, INT64_MAX));
}

TEST(Alphabet, RefusesWhatItCannotSpell) {
  EXPECT_ANY_THROW(data::Alphabet(100));
  const data::Alphabet alphabet(27);
  EXPECT_NE(message_of([&] { alphabet.encode("Hi", "the prompt"); }).find("the prompt: byte 72"), std::string::npos);
  EXPECT_ANY_THROW(alphabet.decode(at::tensor({27})));
}

}  // namespace
}  // namespace contextpool::testing
