// A text file as symbols, read into memory, and its division into train, dev and test.
//
//   layout    file                    symbols                        train / dev / test
//   bytes     any                     the 256 bytes                  90 / 5 / 5 per cent of the file
//   letters   only a-z and the space  27: the space is 0, a is 1     the same
//   enwik8    100,000,000 bytes       as bytes                       90 / 5 / 5 million bytes
//   text8     100,000,000 bytes       as letters                     90 / 5 / 5 million bytes
//
// A file that is missing, empty, a directory, of the wrong size for its layout or with a symbol outside it is an error
// that names the file. Once read, the text does not change, whatever becomes of the file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "contextpool/io/files.h"

namespace contextpool::data {

enum class Split { train, dev, test, all };  // all: the whole file

std::vector<std::string> splits();
Split split_named(const std::string& name);

std::vector<std::string> layouts();
std::int64_t vocabulary_of(const std::string& layout);
std::string layout_of(std::int64_t vocabulary);  // the one for any file

// Symbols from and to text, for a vocabulary of 256 (bytes) or 27 (letters).
class Alphabet {
 public:
  explicit Alphabet(std::int64_t vocabulary);
  std::int64_t size() const { return size_; }
  // Throws at the first character outside the alphabet; `what` names the text in the message.
  at::Tensor encode(std::string_view text, const std::string& what) const;  // int64 [text.size()]
  std::string decode(const at::Tensor& symbols) const;

 private:
  std::int64_t size_;
};

class Text {
 public:
  Text(const std::string& path, const std::string& layout);

  const std::string& path() const { return path_; }
  const Alphabet& alphabet() const { return alphabet_; }
  std::uint32_t checksum() const { return checksum_; }  // CRC-32C of the file
  std::int64_t size(Split split) const;
  // `count` symbols of the split from `begin` on, int64 [count].
  at::Tensor symbols(Split split, std::int64_t begin, std::int64_t count) const;

 private:
  std::int64_t start(Split split) const;

  std::string path_;
  Alphabet alphabet_;
  std::shared_ptr<const std::string> bytes_;  // shared by copies
  std::uint32_t checksum_;
};

}  // namespace contextpool::data
