// Labelled pictures by number, from files on a disk: folders, tar shards, CIFAR's binaries. Made once, then read by any
// number of threads at once. No torch needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contextpool/data/images/decode.h"

namespace contextpool::data {

class PictureCollection {
 public:
  PictureCollection() = default;
  virtual ~PictureCollection() = default;
  PictureCollection(const PictureCollection&) = delete;
  PictureCollection& operator=(const PictureCollection&) = delete;

  virtual std::int64_t size() const = 0;
  virtual const std::vector<std::string>& class_names() const = 0;
  virtual std::int64_t label(std::int64_t i) const = 0;
  virtual std::string name(std::int64_t i) const = 0;   // for messages: the file, or the file and the record
  virtual std::string bytes(std::int64_t i) const = 0;  // of the JPEG or PNG file; throws io::Error

  // The picture. ImageError says what is wrong with it, after its name.
  virtual Image picture(std::int64_t i, const ImageLimits& limits = {}) const;

 protected:
  void check_index(std::int64_t i) const;  // throws std::out_of_range
};

}  // namespace contextpool::data
