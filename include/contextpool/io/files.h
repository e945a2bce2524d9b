// Files as the project reads and writes them: mapped for reading; written whole or not at all, and synced, so that a
// process killed at any moment leaves the old file or the new one. All functions throw FileError. No torch needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "contextpool/io/error.h"

namespace contextpool::io {

// A regular file, mapped into memory. The mapping is private: writing to the bytes changes this process's copy, never
// the file. It outlives the file's removal or replacement, but not its truncation in place.
class MappedFile {
 public:
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<std::byte> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  MappedFile(std::filesystem::path path, std::span<std::byte> bytes) : path_(std::move(path)), bytes_(bytes) {}

  std::filesystem::path path_;
  std::span<std::byte> bytes_;
};

// The bytes of a regular file, read. Unlike a mapping they stay what they are, whatever becomes of the file.
std::string read_file(const std::filesystem::path& path);

// A file being written. Nothing is buffered here: what write() took, other processes see.
class OutputFile {
 public:
  enum class Mode {
    kCreate,  // a new file; one that is there is emptied
    kNew,     // a new file; one that is there is refused
    kAppend,  // at the end of what is there, if anything
  };
  // `name` is what path() and messages say, if not the path: the file that this one will become.
  OutputFile(std::filesystem::path path, Mode mode, std::filesystem::path name = {});
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // All of the bytes; if that fails, the file is cut back to where it was, so that a later write may follow.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void sync();   // to the disk
  void close();  // reports what a network disk says only now; the destructor closes in silence

  const std::filesystem::path& path() const { return name_; }
  std::uint64_t written() const { return written_; }    // bytes, by this object
  std::uint32_t checksum() const { return checksum_; }  // CRC-32C of them

 private:
  std::filesystem::path path_;
  std::filesystem::path name_;
  int descriptor_ = -1;
  std::uint64_t end_ = 0;
  std::uint64_t written_ = 0;
  std::uint32_t checksum_ = 0;
};

// Held by one object at a time, of this process or another; gone with it, however it ends. A file system without locks
// is used without.
class FolderLock {
 public:
  // Error "<path>: <held>" if it is held.
  FolderLock(const std::filesystem::path& path, std::string_view held);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  bool is_of(const std::filesystem::path& path) const;  // false once the folder was removed or replaced

 private:
  int descriptor_;
};

// Writes a file beside `path` (a hidden name), lets `fill` write to it, syncs it and renames it to `path`. If anything
// fails, `path` is as before and nothing is left. A link stays one, and what it leads to is replaced; a device or a
// pipe is written to.
void replace_file(const std::filesystem::path& path, const std::function<void(OutputFile&)>& fill);
void replace_file(const std::filesystem::path& path, std::string_view text);

// An error where replace_file(path) could not begin: for what takes long to compute.
void check_replaceable(const std::filesystem::path& path);

void make_folder(const std::filesystem::path& path);  // and those above it; one that is there is fine
void sync_folder(const std::filesystem::path& path);  // the names in it, to the disk
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// The two names change places in one step. False where the file system cannot.
bool exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b);
void remove_tree(const std::filesystem::path& path);  // a file, or a folder with all in it; nothing there is fine
// What replace_file() of a killed process left beside `path`. For the one process that writes there.
void remove_unfinished(const std::filesystem::path& path);

// For tests. The hook is called before every operation that changes the disk, by whichever class or function above; if
// it returns an errno other than 0, the operation fails with it instead of being done (a write leaves half of its bytes
// to be cut off). One for the process; an empty function takes it away.
enum class FileOperation { kCreate, kWrite, kSync, kRename, kExchange, kRemove, kMakeFolder };
using FileHook = std::function<int(FileOperation, const std::filesystem::path&)>;
void set_file_hook(FileHook hook);

}  // namespace contextpool::io
