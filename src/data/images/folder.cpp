#include "contextpool/data/images/folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <set>
#include <span>
#include <stdexcept>
#include <string_view>

#include "contextpool/io/files.h"
#include "io/text.h"

namespace contextpool::data {
namespace {

namespace fs = std::filesystem;

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// What an entry is, or what a link leads to; `none` for a link that leads nowhere or in a circle.
fs::file_type kind_of(const fs::directory_entry& entry) {
  std::error_code code;
  const auto type = entry.status(code).type();
  return code ? fs::file_type::none : type;
}

std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::directory_entry> entries;
  fs::directory_iterator entry(folder, code);
  for (; !code && entry != fs::directory_iterator(); entry.increment(code)) {
    if (!hidden(entry->path())) entries.push_back(*entry);
  }
  if (code) throw io::FileError(folder, "read", code.value());
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::vector<std::string> folders_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : entries_of(folder)) {
    if (kind_of(entry) == fs::file_type::directory) names.push_back(entry.path().filename().string());
  }
  return names;
}

// Goes through a folder and those below, links among them. Each is entered once, and those above never, so that links
// in circles have an end.
class Walk {
 public:
  explicit Walk(const fs::path& above) {
    for (auto folder = fs::canonical(above);; folder = folder.parent_path()) {
      is_new(folder);
      if (folder == folder.parent_path()) break;
    }
  }

  void collect(const fs::path& folder, std::vector<fs::path>& pictures) {
    if (!is_new(folder)) return;
    for (const auto& entry : entries_of(folder)) {
      const auto kind = kind_of(entry);
      if (kind == fs::file_type::directory) collect(entry.path(), pictures);
      if (kind == fs::file_type::regular && is_picture_name(entry.path().filename().string()))
        pictures.push_back(entry.path());
    }
  }

 private:
  bool is_new(const fs::path& folder) {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) throw io::FileError(folder, "read", errno);
    return entered_.emplace(status.st_dev, status.st_ino).second;
  }

  std::set<std::pair<dev_t, ino_t>> entered_;
};

}  // namespace

Image PictureCollection::picture(std::int64_t i, const ImageLimits& limits) const {
  const auto file = bytes(i);
  try {
    return decode(std::as_bytes(std::span(file)), limits);
  } catch (const ImageError& error) {
    throw ImageError(name(i) + ": " + error.what());
  }
}

void PictureCollection::check_index(std::int64_t i) const {
  if (i < 0 || i >= size()) throw std::out_of_range(io::text("picture ", i, " was asked for; there are ", size()));
}

bool is_picture_name(const std::string& name) {
  std::string low = name;
  std::transform(low.begin(), low.end(), low.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return low.ends_with(".jpg") || low.ends_with(".jpeg") || low.ends_with(".png");
}

PictureFolder::PictureFolder(const fs::path& folder, std::vector<std::string> class_names)
    : folder_(folder), class_names_(std::move(class_names)) {
  const auto found = folders_in(folder);
  if (class_names_.empty()) class_names_ = found;
  for (const auto& name : found)
    if (std::find(class_names_.begin(), class_names_.end(), name) == class_names_.end())
      throw io::Error(folder.string() + ": the folder " + io::in_quotes(name) + " is none of the " +
                      std::to_string(class_names_.size()) + " known classes");
  for (const auto& name : found) add_class(name);
  if (files_.empty())
    throw io::Error(folder.string() +
                    ": no pictures; expected folders named after classes, with .jpg, .jpeg or .png files");
}

void PictureFolder::add_class(const std::string& name) {
  const auto label = std::find(class_names_.begin(), class_names_.end(), name) - class_names_.begin();
  std::vector<fs::path> pictures;
  Walk(folder_).collect(folder_ / name, pictures);
  std::vector<std::string> paths;
  for (const auto& path : pictures) paths.push_back(path.lexically_relative(folder_).string());
  std::sort(paths.begin(), paths.end());
  for (auto& path : paths) files_.push_back({std::move(path), label});
}

std::int64_t PictureFolder::label(std::int64_t i) const {
  check_index(i);
  return files_[static_cast<std::size_t>(i)].label;
}

std::string PictureFolder::name(std::int64_t i) const {
  check_index(i);
  return (folder_ / files_[static_cast<std::size_t>(i)].path).string();
}

std::string PictureFolder::bytes(std::int64_t i) const { return io::read_file(name(i)); }

std::vector<PictureFolder::Broken> PictureFolder::broken(const ImageLimits& limits) const {
  std::vector<Broken> all;
  for (std::int64_t i = 0; i < size(); ++i) {
    try {
      const auto file = bytes(i);
      const ImageDecoder decoder(std::as_bytes(std::span(file)), limits);
    } catch (const io::Error& error) {
      all.push_back({i, error.what()});
    }
  }
  return all;
}

void PictureFolder::drop(const std::vector<Broken>& broken) {
  std::vector<bool> dropped(files_.size());
  for (const auto& one : broken) {
    check_index(one.index);
    dropped[static_cast<std::size_t>(one.index)] = true;
  }
  std::vector<File> kept;
  for (std::size_t i = 0; i < files_.size(); ++i)
    if (!dropped[i]) kept.push_back(std::move(files_[i]));
  files_ = std::move(kept);
}

}  // namespace contextpool::data
