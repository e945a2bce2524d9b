// CIFAR's files, folders and tar shards: what is in them, and what is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "contextpool/data/images/cifar.h"
#include "contextpool/data/images/folder.h"
#include "contextpool/data/images/tar.h"
#include "files.h"
#include "pictures.h"

namespace contextpool::testing {
namespace {

namespace fs = std::filesystem;
using data::PictureFolder;
using data::TarShards;

void expect_message(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
}

// Record i has the label i mod classes, and pixels of value i.
std::string cifar_records(std::int64_t count, std::int64_t classes) {
  std::string bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    if (classes == 100) bytes += '\x7f';  // the coarse label
    bytes += static_cast<char>(i % classes);
    bytes.append(data::kCifarBytes, static_cast<char>(i));
  }
  return bytes;
}

TEST(Cifar, RecordsAreALabelAndAPicture) {
  for (const std::int64_t classes : {10, 100}) {
    const auto bytes = cifar_records(130, classes);
    const auto records = data::parse_cifar(std::as_bytes(std::span(bytes)), classes, "a.bin");
    ASSERT_EQ(records.size(), 130);
    EXPECT_EQ(records.labels[117], 117 % classes);
    EXPECT_EQ(records.pixels[117 * data::kCifarBytes], 117);
    EXPECT_EQ(records.pixels[118 * data::kCifarBytes - 1], 117);
  }
}

TEST(Cifar, WrongLengthsAndLabelsNameTheFileAndTheRecord) {
  auto bytes = cifar_records(12, 10);
  bytes[5 * 3073] = 10;
  expect_message(message_of([&] { data::parse_cifar(std::as_bytes(std::span(bytes)), 10, "a.bin"); }),
                 {"a.bin: record 5 has the label 10, expected 0 ... 9"});
  bytes.resize(7 * 3073 + 5);
  expect_message(message_of([&] { data::parse_cifar(std::as_bytes(std::span(bytes)), 10, "a.bin"); }),
                 {"a.bin: has 21516 bytes", "record 7 is cut short"});
  expect_message(message_of([&] { data::parse_cifar({}, 10, "a.bin"); }), {"a.bin: has 0 bytes"});
}

TEST(Cifar, FolderIsRefusedWithoutItsFilesAndWithShortOnes) {
  const Folder folder;
  expect_message(message_of([&] { data::read_cifar(folder.path()); }), {"has neither test_batch.bin"});
  folder.write("test_batch.bin.xz", "x");
  expect_message(message_of([&] { data::read_cifar(folder.path()); }), {"unpack its .xz files first"});
  for (const auto* name : {"data_batch_1.bin", "test_batch.bin"}) folder.write(name, cifar_records(20, 10));
  expect_message(message_of([&] { data::read_cifar(folder.path()); }), {"batches.meta.txt"});
  folder.write("batches.meta.txt", "a\nb\n");
  expect_message(message_of([&] { data::read_cifar(folder.path()); }), {"names 2 classes, expected 10"});
  folder.write("batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n");
  expect_message(message_of([&] { data::read_cifar(folder.path()); }),
                 {"data_batch_1.bin: has 20 records, but CIFAR-10 has 10000 in this file"});
}

std::unique_ptr<Folder> some_pictures() {
  auto folder = std::make_unique<Folder>();
  for (const auto* name : {"train/dog/deep/er", "train/cat", "train/ant", "train/.hidden"})
    fs::create_directories(folder->path(name));
  folder->write("train/cat/b.jpg", jpeg_of(pattern(20, 10)));
  folder->write("train/cat/a.JPEG", jpeg_of(pattern(10, 20)));
  folder->write("train/cat/notes.txt", "not a picture");
  folder->write("train/cat/.c.jpg", "hidden");
  folder->write("train/dog/z.png", png_of(pattern(5, 6)));
  folder->write("train/dog/deep/er/y.jpg", "<html>");
  folder->write("train/.hidden/y.jpg", "hidden");
  return folder;
}

TEST(PictureFolder, NumbersClassesAndFilesByName) {
  const auto folder = some_pictures();
  const PictureFolder pictures(folder->path("train"));
  EXPECT_EQ(pictures.class_names(), (std::vector<std::string>{"ant", "cat", "dog"}));
  ASSERT_EQ(pictures.size(), 4);
  const std::vector<std::string> names = {"train/cat/a.JPEG", "train/cat/b.jpg", "train/dog/deep/er/y.jpg",
                                          "train/dog/z.png"};
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(pictures.name(i), folder->path(names[static_cast<std::size_t>(i)]));
    EXPECT_EQ(pictures.label(i), i < 2 ? 1 : 2);
  }
  EXPECT_EQ(pictures.picture(0).width(), 10);
  EXPECT_EQ(pictures.picture(3).height(), 6);
  EXPECT_THROW(pictures.label(4), std::out_of_range);
  EXPECT_THROW(pictures.bytes(-1), std::out_of_range);
}

TEST(PictureFolder, NamesBrokenFilesAndLeavesThemOut) {
  const auto folder = some_pictures();
  PictureFolder pictures(folder->path("train"));
  expect_message(message_of([&] { pictures.picture(2); }),
                 {folder->path("train/dog/deep/er/y.jpg: "), "this is text that begins with \"<html>\""});
  const auto broken = pictures.broken();
  ASSERT_EQ(broken.size(), 1U);
  EXPECT_EQ(broken[0].index, 2);
  pictures.drop(broken);
  EXPECT_EQ(pictures.size(), 3);
  EXPECT_EQ(pictures.picture(2).width(), 5);
  EXPECT_EQ(pictures.class_names().size(), 3U);
}

TEST(PictureFolder, TakesTheClassesOfATrainingSet) {
  const auto folder = some_pictures();
  const PictureFolder more(folder->path("train"), {"dog", "bird", "cat", "ant"});
  EXPECT_EQ(more.label(0), 2);
  EXPECT_EQ(more.label(3), 0);
  expect_message(message_of([&] {
                   PictureFolder(folder->path("train"), {"dog", "cat"});
                 }),
                 {"the folder \"ant\" is none of the 2 known classes"});
}

TEST(PictureFolder, LinksInCirclesHaveAnEnd) {
  const Folder folder;
  namespace fs = std::filesystem;
  const auto link = [&](const std::string& to, const std::string& name) { fs::create_symlink(to, folder.path(name)); };
  for (const auto* name : {"train/cat/deep", "train/dog", "more"}) fs::create_directories(folder.path(name));
  for (const auto* name : {"train/cat/a.jpg", "train/cat/deep/b.jpg", "train/dog/c.jpg", "more/d.jpg"})
    folder.write(name, "x");
  link(".", "train/cat/again");
  link("..", "train/cat/deep/up");
  link("../..", "train/cat/above");  // has the dog
  link("/", "train/cat/all");
  link("self", "train/self");
  link("self.jpg", "train/cat/self.jpg");
  link("gone.jpg", "train/cat/gone.jpg");
  link("../../more", "train/dog/linked");
  link("linked", "train/dog/twice");
  const PictureFolder pictures(folder.path("train"));
  EXPECT_EQ(pictures.class_names(), (std::vector<std::string>{"cat", "dog"}));
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < pictures.size(); ++i)
    names.push_back(pictures.name(i).substr(folder.path("train").size() + 1));
  EXPECT_EQ(names, (std::vector<std::string>{"cat/a.jpg", "cat/deep/b.jpg", "dog/c.jpg", "dog/linked/d.jpg"}));
}

TEST(PictureFolder, EmptyOrMissingFoldersAreErrors) {
  const Folder folder;
  expect_message(message_of([&] { PictureFolder{folder.path()}; }),
                 {"no pictures; expected folders named after classes"});
  expect_message(message_of([&] { PictureFolder{folder.path("nowhere")}; }), {"nowhere: cannot read: No such file"});
}

// A ustar header and the bytes.
std::string tar_entry(const std::string& name, const std::string& bytes, char kind = '0') {
  std::string head(512, '\0');
  const auto put = [&](std::size_t at, const std::string& text) { head.replace(at, text.size(), text); };
  put(0, name.substr(0, 100));
  put(100, "0000644");
  char size[13];
  std::snprintf(size, sizeof size, "%011zo", bytes.size());
  put(124, size);
  head[156] = kind;
  put(257, std::string("ustar\0"
                       "00",
                       8));
  put(148, "        ");
  unsigned sum = 0;
  for (const char c : head) sum += static_cast<unsigned char>(c);
  char check[8];
  std::snprintf(check, sizeof check, "%06o", sum);
  put(148, std::string(check, 7));
  return head + bytes + std::string((512 - bytes.size() % 512) % 512, '\0');
}

std::string pax(const std::string& line) { return std::to_string(line.size() + 4) + " " + line + "\n"; }  // two digits

TEST(TarShards, ReadsUstarPaxAndGnuNames) {
  const Folder folder;
  const auto jpeg = jpeg_of(pattern(20, 10)), png = png_of(pattern(7, 9));
  const std::string long_name = "owl/" + std::string(150, 'n') + ".png";
  const std::string pax_name = "yak/" + std::string(60, 'p') + ".jpg";
  const auto one = tar_entry("./train/", "", '5') + tar_entry("./train/cat/a.jpg", jpeg) +
                   tar_entry("././@LongLink", long_name + '\0', 'L') + tar_entry("cut", png) +
                   tar_entry("pax", pax("path=" + pax_name), 'x') + tar_entry("cut", jpeg) +
                   tar_entry("cat/readme.txt", "no picture") + tar_entry("cat/link.jpg", "", '2') +
                   std::string(1024, '\0');
  const auto two = tar_entry("val/cat/b.png", png) + std::string(1024, '\0');
  folder.write("b.tar", two);
  folder.write("a.tar", one);
  const auto files = data::tar_files(folder.path());
  ASSERT_EQ(files.size(), 2U);
  const TarShards shards(files);
  EXPECT_EQ(shards.class_names(), (std::vector<std::string>{"cat", "owl", "yak"}));
  ASSERT_EQ(shards.size(), 4);
  const std::vector<std::int64_t> labels = {0, 1, 2, 0};
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(shards.label(i), labels[static_cast<std::size_t>(i)]);
    EXPECT_EQ(shards.bytes(i), i % 2 == 0 ? jpeg : png);
  }
  EXPECT_EQ(shards.picture(1).width(), 7);
  EXPECT_NE(shards.name(3).find("b.tar: \"val/cat/b.png\""), std::string::npos);
}

TEST(TarShards, TakesLabelsFromFilesBeside) {
  const Folder folder;
  const auto jpeg = jpeg_of(pattern(20, 10));
  const auto path = folder.write("a.tar", tar_entry("x/000.jpg", jpeg) + tar_entry("x/000.cls", "2\n") +
                                              tar_entry("x/001.cls", "0") + tar_entry("x/001.seg.jpg", jpeg));
  const TarShards shards({path});
  EXPECT_EQ(shards.class_names(), (std::vector<std::string>{"0", "1", "2"}));
  EXPECT_EQ(shards.label(0), 2);
  EXPECT_EQ(shards.label(1), 0);
  EXPECT_EQ(TarShards({path}, {"a", "b", "c", "d"}).label(0), 2);
  expect_message(message_of([&] {
                   TarShards({path}, {"a", "b"});
                 }),
                 {"a.tar: \"x/000.jpg\" has the label 2; there are 2 classes"});
}

TEST(TarShards, PassesOverHiddenFiles) {
  const Folder folder;
  const auto jpeg = jpeg_of(pattern(20, 10));
  const auto path = folder.write("a.tar", tar_entry("cat/._a.jpg", "of macOS") + tar_entry("cat/a.jpg", jpeg) +
                                              tar_entry("./.b.jpg", jpeg) + tar_entry("./._a.cls", "none"));
  const TarShards shards({path});
  ASSERT_EQ(shards.size(), 1);
  EXPECT_EQ(shards.bytes(0), jpeg);
}

TEST(TarShards, RefusesDamagedFilesAndMissingLabels) {
  const Folder folder;
  const auto jpeg = jpeg_of(pattern(20, 10));
  const auto good = tar_entry("cat/a.jpg", jpeg) + std::string(1024, '\0');
  const auto refused = [&](const std::string& bytes) {
    return message_of([&] { TarShards({folder.write("a.tar", bytes)}); });
  };
  expect_message(refused(""), {"a.tar: not a whole tar file: a part of a block at byte 0"});
  expect_message(refused(good.substr(0, 600)), {"an entry that ends behind the file at byte 0"});
  expect_message(refused(std::string(2000, 'x')), {"no header of a tar entry at byte 0"});
  auto flipped = good;
  flipped[0] ^= 1;
  expect_message(refused(flipped), {"no header of a tar entry"});
  expect_message(refused(tar_entry("a.jpg", jpeg)), {"\"a.jpg\" has no label"});
  expect_message(refused(tar_entry("x/a.jpg", jpeg) + tar_entry("x/a.cls", "-1")),
                 {"\"x/a.cls\": expected the number of a class, not \"-1\""});
  expect_message(refused(tar_entry("a.txt", "text")), {"a.tar: no pictures"});
  expect_message(refused(tar_entry("p", "99999 path=a\n", 'x')), {"attributes that are not pax's"});
  expect_message(message_of([&] { TarShards({folder.path("none.tar")}); }), {"none.tar: cannot open"});
}

TEST(TarShards, MayBeReadByManyThreads) {
  const Folder folder;
  std::string bytes;
  std::vector<std::string> files;
  for (int k = 0; k < 20; ++k) {
    files.push_back(png_of(pattern(30 + k, 20, k)));
    bytes += tar_entry("c/" + std::to_string(k) + ".png", files.back());
  }
  const TarShards shards({folder.write("a.tar", bytes)});
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (std::int64_t i = 0; i < 20; ++i) {
        EXPECT_EQ(shards.bytes(i), files[static_cast<std::size_t>(i)]);
        EXPECT_EQ(shards.picture(i).width(), 30 + i);
      }
    });
}

}  // namespace
}  // namespace contextpool::testing
