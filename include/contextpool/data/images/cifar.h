// CIFAR-10 and CIFAR-100 in their binary files: records of a label (CIFAR-100: a coarse and a fine one) and 3 x 32 x 32
// bytes, red first, rows from the top.
//
//   cifar10    data_batch_1.bin ... data_batch_5.bin, test_batch.bin, batches.meta.txt    10,000 records a file
//   cifar100   train.bin, test.bin, coarse_label_names.txt, fine_label_names.txt          50,000 and 10,000 records
//
// A file of another length or a label outside the classes is an error that names the file and the record. No torch
// needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "contextpool/data/images/image.h"

namespace contextpool::data {

inline constexpr std::int64_t kCifarSide = 32;
inline constexpr std::int64_t kCifarBytes = kColours * kCifarSide * kCifarSide;

// Pictures and labels as they are in memory.
struct LabelledBytes {
  std::vector<std::uint8_t> pixels;  // [n, 3, 32, 32]
  std::vector<std::int64_t> labels;  // [n]
  std::int64_t size() const { return static_cast<std::int64_t>(labels.size()); }
};

// The records of one file; `classes` is 10 or 100, `name` is for messages.
LabelledBytes parse_cifar(std::span<const std::byte> bytes, std::int64_t classes, const std::string& name);

struct Cifar {
  LabelledBytes train;
  LabelledBytes test;
  std::vector<std::string> class_names;
};

// The data set in a folder, which may lie one deeper (cifar-10-batches-bin, cifar-100-binary). `classes` is 10 or 100,
// or 0 to see which files there are. Files whose names end in .bin only; unpack .xz first.
Cifar read_cifar(const std::filesystem::path& folder, std::int64_t classes = 0);

}  // namespace contextpool::data
