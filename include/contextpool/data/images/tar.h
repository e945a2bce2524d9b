// Pictures in tar files ("shards"), read in place: an index is made once, each picture is one read afterwards. ustar,
// pax and GNU's long names are understood; what is no regular file is passed over. No torch needed.
//
// A picture's label is, for CLASS/a.jpg, the folder it is in directly below the root (or below train/ or val/); for
// WebDataset's a.jpg with a.cls beside it (same name up to the first point of the last part), the number in that file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "contextpool/data/images/collection.h"

namespace contextpool::data {

struct TarEntry {
  std::string name;
  std::uint64_t offset;  // of its bytes in the tar file
  std::uint64_t size;

  bool operator==(const TarEntry&) const = default;
};

// Reads `size` bytes at `offset` into memory; what a tar file is made of.
using TarRead = std::function<void(std::uint64_t offset, std::size_t size, char* out)>;

// The regular files in a tar file of `size` bytes. Throws io::Error with `name` where it is damaged or cut short.
std::vector<TarEntry> read_tar(const TarRead& read, std::uint64_t size, const std::string& name);

class TarShards final : public PictureCollection {
 public:
  // In the order given. With `class_names`, these are the classes; else those found, in the order of their names'
  // bytes, or "0" ... as many as .cls files name.
  explicit TarShards(const std::vector<std::filesystem::path>& files, std::vector<std::string> class_names = {});
  ~TarShards() override;

  std::int64_t size() const override;
  const std::vector<std::string>& class_names() const override;
  std::int64_t label(std::int64_t i) const override;
  std::string name(std::int64_t i) const override;
  std::string bytes(std::int64_t i) const override;

 private:
  struct Index;
  std::unique_ptr<const Index> index_;
};

// The files that end in .tar in a folder, sorted.
std::vector<std::filesystem::path> tar_files(const std::filesystem::path& folder);

}  // namespace contextpool::data
