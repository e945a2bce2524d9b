#include "contextpool/data/images/cifar.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "contextpool/io/files.h"
#include "io/text.h"

namespace contextpool::data {
namespace {

namespace fs = std::filesystem;

struct Layout {
  std::int64_t classes;
  std::vector<const char*> train;
  const char* test;
  const char* names;
  const char* folder;
  std::int64_t train_records, test_records;  // of one file
};

const Layout& layout_of(std::int64_t classes) {
  static const Layout ten = {
      10,
      {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
      "test_batch.bin",
      "batches.meta.txt",
      "cifar-10-batches-bin",
      10'000,
      10'000};
  static const Layout hundred = {100,    {"train.bin"}, "test.bin", "fine_label_names.txt", "cifar-100-binary",
                                 50'000, 10'000};
  return classes == 10 ? ten : hundred;
}

void append(LabelledBytes& all, const fs::path& path, const Layout& layout, std::int64_t records) {
  const auto file = io::read_file(path);
  const auto part = parse_cifar(std::as_bytes(std::span(file)), layout.classes, path.string());
  if (part.size() != records)
    throw io::Error(io::text(path.string(), ": has ", part.size(), " records, but CIFAR-", layout.classes, " has ",
                             records, " in this file"));
  all.pixels.insert(all.pixels.end(), part.pixels.begin(), part.pixels.end());
  all.labels.insert(all.labels.end(), part.labels.begin(), part.labels.end());
}

std::vector<std::string> read_names(const fs::path& path, std::int64_t classes) {
  std::istringstream lines(io::read_file(path));
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (static_cast<std::int64_t>(names.size()) != classes)
    throw io::Error(io::text(path.string(), ": names ", names.size(), " classes, expected ", classes));
  return names;
}

fs::path folder_with(const fs::path& folder, const Layout& layout) {
  for (const auto& place : {folder, folder / layout.folder})
    if (fs::exists(place / layout.test)) return place;
  return {};
}

}  // namespace

LabelledBytes parse_cifar(std::span<const std::byte> bytes, std::int64_t classes, const std::string& name) {
  const std::size_t head = classes == 10 ? 1 : 2, record = head + kCifarBytes;
  if (bytes.empty() || bytes.size() % record != 0)
    throw io::Error(io::text(name, ": has ", bytes.size(), " bytes, which is not a whole number of records of ", record,
                             " (record ", bytes.size() / record, " is cut short)"));
  const auto count = bytes.size() / record;
  LabelledBytes all;
  all.pixels.resize(count * kCifarBytes);
  all.labels.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto* const at = bytes.data() + i * record;
    const auto label = std::to_integer<std::int64_t>(at[head - 1]);
    if (label >= classes)
      throw io::Error(io::text(name, ": record ", i, " has the label ", label, ", expected 0 ... ", classes - 1));
    all.labels[i] = label;
    std::transform(at + head, at + record, all.pixels.data() + i * kCifarBytes,
                   [](std::byte b) { return std::to_integer<std::uint8_t>(b); });
  }
  return all;
}

Cifar read_cifar(const fs::path& folder, std::int64_t classes) {
  if (classes != 0 && classes != 10 && classes != 100)
    throw io::Error(io::text("CIFAR has 10 or 100 classes, not ", classes));
  if (classes == 0) classes = folder_with(folder, layout_of(10)).empty() ? 100 : 10;
  const auto& layout = layout_of(classes);
  const auto place = folder_with(folder, layout);
  if (place.empty()) {
    const std::string why =
        fs::exists(folder / (std::string(layout_of(10).test) + ".xz")) ? "; unpack its .xz files first" : "";
    throw io::Error(folder.string() + ": has neither test_batch.bin (CIFAR-10) nor test.bin (CIFAR-100)" + why);
  }
  Cifar cifar;
  cifar.class_names = read_names(place / layout.names, layout.classes);
  for (const auto* const file : layout.train) append(cifar.train, place / file, layout, layout.train_records);
  append(cifar.test, place / layout.test, layout, layout.test_records);
  return cifar;
}

}  // namespace contextpool::data
