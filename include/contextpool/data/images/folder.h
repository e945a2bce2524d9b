// Pictures in folders named after their classes, at any depth below: CLASS/a.jpg, CLASS/more/b.png. Classes and files
// are in the order of their names' bytes, so numbers do not depend on the disk. Links are followed, but a folder counts
// once in a class, and links to folders above do not count. No torch needed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "contextpool/data/images/collection.h"

namespace contextpool::data {

class PictureFolder final : public PictureCollection {
 public:
  // Files that end in .jpg, .jpeg or .png, in any case; others and hidden ones are passed over. With `class_names`,
  // these are the classes and no folder may be of another: how a validation set gets the numbers of its training set.
  explicit PictureFolder(const std::filesystem::path& folder, std::vector<std::string> class_names = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::int64_t label(std::int64_t i) const override;
  std::string name(std::int64_t i) const override;
  std::string bytes(std::int64_t i) const override;

  // Numbers of files whose header is not that of a picture, with the reason; for a first look over a data set.
  struct Broken {
    std::int64_t index;
    std::string reason;
  };
  std::vector<Broken> broken(const ImageLimits& limits = {}) const;
  // Leaves these out; numbers of those behind move up.
  void drop(const std::vector<Broken>& broken);

 private:
  struct File {
    std::string path;  // below the folder
    std::int64_t label;
  };
  void add_class(const std::string& name);

  std::filesystem::path folder_;
  std::vector<std::string> class_names_;
  std::vector<File> files_;
};

// Whether a file's name is that of a picture.
bool is_picture_name(const std::string& name);

}  // namespace contextpool::data
