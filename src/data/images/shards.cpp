// Tar shards as a collection of pictures: files, an index over all of them, labels.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include "contextpool/data/images/folder.h"
#include "contextpool/data/images/tar.h"
#include "contextpool/io/files.h"
#include "io/text.h"

namespace contextpool::data {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLongestPicture = std::uint64_t{1} << 30;
constexpr std::uint64_t kLongestLabel = 64;
constexpr std::int64_t kMostClasses = 1'000'000;

// A file read at any offset by any thread.
class TarFile {
 public:
  explicit TarFile(fs::path path) : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat status {};
    if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
      const int code = errno;
      close();
      throw io::FileError(path_, "open", code);
    }
    if (!S_ISREG(status.st_mode)) {
      close();
      throw io::Error(path_.string() + ": not a regular file");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
  }
  ~TarFile() { close(); }
  TarFile(const TarFile&) = delete;
  TarFile& operator=(const TarFile&) = delete;

  const fs::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }

  void read(std::uint64_t offset, std::size_t size, char* out) const {
    while (size > 0) {
      const auto got = ::pread(descriptor_, out, size, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw io::FileError(path_, "read", errno);
      if (got == 0) throw io::Error(path_.string() + ": was cut short while it was read");
      out += got;
      offset += static_cast<std::uint64_t>(got);
      size -= static_cast<std::size_t>(got);
    }
  }

 private:
  void close() const {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  fs::path path_;
  int descriptor_;
  std::uint64_t size_ = 0;
};

// "a/b.c.jpg" -> "a/b"
std::string key_of(const std::string& name) {
  const auto slash = name.rfind('/');
  return name.substr(0, name.find('.', slash == std::string::npos ? 0 : slash));
}

// The folder that names the class, or nothing.
std::string folder_of(std::string_view name) {
  while (name.starts_with("./")) name.remove_prefix(2);
  for (const std::string_view split : {"train/", "val/"})
    if (name.starts_with(split)) name.remove_prefix(split.size());
  const auto slash = name.find('/');
  return slash == std::string_view::npos ? "" : std::string(name.substr(0, slash));
}

// As of "._a.jpg", which macOS's tar writes beside "a.jpg".
bool is_hidden(std::string_view name) { return name.substr(name.rfind('/') + 1).starts_with('.'); }

std::int64_t parse_label(std::string_view text, const std::string& name) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
  std::int64_t label = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
  if (error != std::errc() || end != text.data() + text.size() || label < 0 || label >= kMostClasses)
    throw io::Error(name + ": expected the number of a class, not " + io::in_quotes(text));
  return label;
}

}  // namespace

struct TarShards::Index {
  struct Picture {
    std::size_t file;
    TarEntry entry;
    std::int64_t label;
    std::string folder;  // until it has a label
  };
  std::vector<std::unique_ptr<const TarFile>> files;
  std::vector<Picture> pictures;
  std::vector<std::string> class_names;

  const Picture& at(std::int64_t i) const { return pictures[static_cast<std::size_t>(i)]; }
  std::string name(const Picture& picture) const {
    return files[picture.file]->path().string() + ": " + io::in_quotes(picture.entry.name);
  }

  void add(const fs::path& path) {
    files.push_back(std::make_unique<TarFile>(path));
    const auto& file = *files.back();
    const TarRead read = [&](std::uint64_t offset, std::size_t size, char* out) { file.read(offset, size, out); };
    const auto entries = read_tar(read, file.size(), path.string());
    std::unordered_map<std::string, std::int64_t> labels;
    for (const auto& entry : entries) {
      if (is_hidden(entry.name) || !entry.name.ends_with(".cls") || entry.size > kLongestLabel) continue;
      std::string text(entry.size, '\0');
      read(entry.offset, text.size(), text.data());
      labels[key_of(entry.name)] = parse_label(text, path.string() + ": " + io::in_quotes(entry.name));
    }
    for (const auto& entry : entries) {
      if (is_hidden(entry.name) || !is_picture_name(entry.name)) continue;
      const auto label = labels.find(key_of(entry.name));
      const bool numbered = label != labels.end();
      pictures.push_back(
          {files.size() - 1, entry, numbered ? label->second : -1, numbered ? "" : folder_of(entry.name)});
      const auto& picture = pictures.back();
      if (!numbered && picture.folder.empty())
        throw io::Error(name(picture) +
                        " has no label: expected it in a folder named after its class, or a .cls file beside it");
      if (entry.size > kLongestPicture) throw io::Error(name(picture) + " is larger than a gigabyte");
    }
  }

  // Class names from folders, or from the greatest number; not both.
  void name_classes(const std::string& where) {
    std::set<std::string> folders;
    std::int64_t most = -1;
    for (const auto& picture : pictures) {
      most = std::max(most, picture.label);
      if (!picture.folder.empty()) folders.insert(picture.folder);
    }
    if (most >= 0 && !folders.empty())
      throw io::Error(where + ": some pictures have .cls files, others do not; one kind of label is expected");
    if (!class_names.empty()) return;
    class_names.assign(folders.begin(), folders.end());
    for (std::int64_t k = 0; k <= most; ++k) class_names.push_back(std::to_string(k));
  }

  void number_classes() {
    std::map<std::string, std::int64_t> numbers;
    for (std::size_t k = 0; k < class_names.size(); ++k) numbers[class_names[k]] = static_cast<std::int64_t>(k);
    for (auto& picture : pictures) {
      if (!picture.folder.empty()) {
        const auto found = numbers.find(picture.folder);
        if (found == numbers.end()) throw io::Error(name(picture) + " is of none of the known classes");
        picture.label = found->second;
        picture.folder = {};
      }
      if (picture.label >= static_cast<std::int64_t>(class_names.size()))
        throw io::Error(
            io::text(name(picture), " has the label ", picture.label, "; there are ", class_names.size(), " classes"));
    }
  }
};

TarShards::TarShards(const std::vector<fs::path>& files, std::vector<std::string> class_names) {
  auto index = std::make_unique<Index>();
  index->class_names = std::move(class_names);
  for (const auto& file : files) index->add(file);
  const std::string where = files.empty() ? "tar shards" : files.front().string();
  if (index->pictures.empty())
    throw io::Error(where + ": no pictures; expected .jpg, .jpeg or .png files in tar files");
  index->name_classes(where);
  index->number_classes();
  index_ = std::move(index);
}

TarShards::~TarShards() = default;

std::int64_t TarShards::size() const { return static_cast<std::int64_t>(index_->pictures.size()); }

const std::vector<std::string>& TarShards::class_names() const { return index_->class_names; }

std::int64_t TarShards::label(std::int64_t i) const {
  check_index(i);
  return index_->at(i).label;
}

std::string TarShards::name(std::int64_t i) const {
  check_index(i);
  return index_->name(index_->at(i));
}

std::string TarShards::bytes(std::int64_t i) const {
  check_index(i);
  const auto& picture = index_->at(i);
  std::string bytes(picture.entry.size, '\0');
  index_->files[picture.file]->read(picture.entry.offset, bytes.size(), bytes.data());
  return bytes;
}

std::vector<fs::path> tar_files(const fs::path& folder) {
  std::error_code code;
  fs::directory_iterator entries(folder, code);
  if (code) throw io::FileError(folder, "read", code.value());
  std::vector<fs::path> files;
  for (const auto& entry : entries) {
    std::error_code unknown;  // of a link that leads nowhere
    if (entry.path().extension() == ".tar" && entry.is_regular_file(unknown)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace contextpool::data
