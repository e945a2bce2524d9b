#include "contextpool/data/images/folder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <stdexcept>
#include <string_view>

#include "contextpool/io/files.h"
#include "io/text.h"

namespace contextpool::data {
namespace {

namespace fs = std::filesystem;

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::vector<std::string> folders_in(const fs::path& folder) {
  std::error_code code;
  fs::directory_iterator entries(folder, code);
  if (code) throw io::FileError(folder, "read", code.value());
  std::vector<std::string> names;
  for (const auto& entry : entries)
    if (entry.is_directory() && !hidden(entry.path())) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

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
  std::vector<std::string> paths;
  std::error_code code;
  fs::recursive_directory_iterator entries(folder_ / name, fs::directory_options::follow_directory_symlink, code);
  constexpr int kDeepest = 32;  // a link to a folder above would have no end
  for (; !code && entries != fs::recursive_directory_iterator(); entries.increment(code)) {
    if (hidden(entries->path()) || entries.depth() >= kDeepest) {
      entries.disable_recursion_pending();
    } else if (entries->is_regular_file() && is_picture_name(entries->path().filename().string())) {
      paths.push_back(entries->path().lexically_relative(folder_).string());
    }
  }
  if (code) throw io::FileError(folder_ / name, "read", code.value());
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
