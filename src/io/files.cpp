#include "contextpool/io/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "contextpool/io/crc32c.h"
#include "io/text.h"

namespace contextpool::io {
namespace {

namespace fs = std::filesystem;

// Large enough to cost nothing, small enough to be interrupted; also the unit in which checksums are taken.
constexpr std::size_t kChunk = std::size_t{4} << 20;

FileHook& hook() {
  static FileHook hook;
  return hook;
}

// Throws what the hook asks for, about the file that messages call `name`.
void ask(FileOperation operation, const fs::path& path, const fs::path& name, std::string_view action) {
  if (!hook()) return;
  if (const int code = hook()(operation, path)) throw FileError(name, action, code);
}

void ask(FileOperation operation, const fs::path& path, std::string_view action) { ask(operation, path, path, action); }

void check(bool good, const fs::path& path, std::string_view action) {
  if (!good) throw FileError(path, action, errno);
}

template <class Call>
auto retried(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Closes a descriptor on every way out.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

fs::path folder_of(const fs::path& path) {
  const auto parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

// Without O_NONBLOCK a named pipe would wait for a writer.
int open_to_read(const fs::path& path) {
  return retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
}

std::size_t size_of_regular(const Descriptor& file, const fs::path& path) {
  check(file.get() >= 0, path, "open");
  struct stat status {};
  check(::fstat(file.get(), &status) == 0, path, "open");
  if (S_ISDIR(status.st_mode)) throw FileError(path, "read", EISDIR);
  if (!S_ISREG(status.st_mode)) throw Error(path.string() + ": not a regular file");
  return static_cast<std::size_t>(status.st_size);
}

fs::file_type type_of(const fs::path& path) {
  std::error_code code;
  return fs::status(path, code).type();
}

// What is written to as it is, such as /dev/null or a pipe: a file in its place would end it.
bool is_stream(const fs::path& path) {
  const auto type = type_of(path);
  return type == fs::file_type::character || type == fs::file_type::fifo || type == fs::file_type::block;
}

// Where a link leads.
fs::path followed(const fs::path& path) {
  std::error_code code;
  if (!fs::is_symlink(path, code)) return path;
  const auto end = fs::canonical(path, code);
  return code ? path : end;
}

constexpr std::string_view kWriting = ".writing-";  // between the name and the process, in files of replace_file()

}  // namespace

void set_file_hook(FileHook new_hook) { hook() = std::move(new_hook); }

std::shared_ptr<const MappedFile> MappedFile::open(const fs::path& path) {
  const Descriptor file(open_to_read(path));
  const auto size = size_of_regular(file, path);
  std::span<std::byte> bytes;
  if (size > 0) {
    void* const address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
    check(address != MAP_FAILED, path, "map");
    bytes = {static_cast<std::byte*>(address), size};
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, bytes));
}

std::string read_file(const fs::path& path) {
  const Descriptor file(open_to_read(path));
  std::string bytes(size_of_regular(file, path), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto most = std::min(bytes.size() - done, kChunk);
    const auto count = retried([&] { return ::read(file.get(), bytes.data() + done, most); });
    check(count >= 0, path, "read");
    if (count == 0) break;  // shortened meanwhile
    done += static_cast<std::size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

OutputFile::OutputFile(fs::path path, Mode mode, fs::path name)
    : path_(std::move(path)), name_(name.empty() ? path_ : std::move(name)) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC;
  constexpr mode_t kPermissions = 0666;
  const int more = mode == Mode::kAppend ? O_APPEND : mode == Mode::kNew ? O_EXCL : O_TRUNC;
  ask(FileOperation::kCreate, path_, name_, "create");
  descriptor_ = retried([&] { return ::open(path_.c_str(), kFlags | more, kPermissions); });
  check(descriptor_ >= 0, name_, "create");
  const auto end = ::lseek(descriptor_, 0, SEEK_END);
  end_ = end > 0 ? static_cast<std::uint64_t>(end) : 0;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      name_(std::move(other.name_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      end_(other.end_),
      written_(other.written_),
      checksum_(other.checksum_) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  const auto put = [&](std::span<const std::byte> piece) {
    while (!piece.empty()) {
      const auto count = retried([&] { return ::write(descriptor_, piece.data(), piece.size()); });
      check(count >= 0, name_, "write");
      piece = piece.subspan(static_cast<std::size_t>(count));
    }
  };
  auto checksum = checksum_;
  try {
    for (auto left = bytes; !left.empty();) {
      const auto piece = left.first(std::min(left.size(), kChunk));
      try {
        ask(FileOperation::kWrite, path_, name_, "write");
      } catch (const FileError&) {
        put(piece.first(piece.size() / 2));
        throw;
      }
      put(piece);
      checksum = crc32c(piece, checksum);
      left = left.subspan(piece.size());
    }
  } catch (const FileError&) {
    // If even this fails there is nothing more to do here; the first failure is the one to report.
    if (::ftruncate(descriptor_, static_cast<off_t>(end_)) == 0) ::lseek(descriptor_, 0, SEEK_END);
    throw;
  }
  checksum_ = checksum;
  end_ += bytes.size();
  written_ += bytes.size();
}

void OutputFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void OutputFile::sync() {
  ask(FileOperation::kSync, path_, name_, "sync");
  check(retried([&] { return ::fsync(descriptor_); }) == 0, name_, "sync");
}

void OutputFile::close() {
  // Not tried again after EINTR: the descriptor is gone either way.
  const int result = ::close(std::exchange(descriptor_, -1));
  check(result == 0 || errno == EINTR, name_, "close");
}

FolderLock::FolderLock(const fs::path& path, std::string_view held)
    : descriptor_(retried([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); })) {
  check(descriptor_ >= 0, path, "open folder");
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(descriptor_);
  throw Error(text(path.string(), ": ", held));
}

FolderLock::~FolderLock() { ::close(descriptor_); }

bool FolderLock::is_of(const fs::path& path) const {
  struct stat held {
  }, there{};
  return ::fstat(descriptor_, &held) == 0 && ::stat(path.c_str(), &there) == 0 && held.st_ino == there.st_ino &&
         held.st_dev == there.st_dev;
}

void check_replaceable(const fs::path& path) {
  const auto place = followed(path);
  if (type_of(place) == fs::file_type::directory) throw FileError(path, "write", EISDIR);
  const auto written = is_stream(place) ? place : folder_of(place);
  check(::access(written.c_str(), W_OK) == 0, path, "write");
}

void replace_file(const fs::path& given, const std::function<void(OutputFile&)>& fill) {
  const auto path = followed(given);
  if (is_stream(path)) {
    OutputFile stream(path, OutputFile::Mode::kCreate, given);
    fill(stream);
    stream.close();
    return;
  }
  const auto name = text(".", path.filename().string(), kWriting, ::getpid());
  const auto temporary = folder_of(path) / name;
  try {
    OutputFile file(temporary, OutputFile::Mode::kCreate, given);
    fill(file);
    file.sync();
    file.close();
    rename_path(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(folder_of(path));
}

void replace_file(const fs::path& path, std::string_view text) {
  replace_file(path, [&](OutputFile& file) { file.write(text); });
}

void make_folder(const fs::path& path) {
  if (fs::is_directory(path)) return;
  const auto parent = folder_of(path);
  if (!fs::is_directory(parent)) make_folder(parent);
  constexpr mode_t kPermissions = 0777;
  ask(FileOperation::kMakeFolder, path, "create folder");
  // Another process may have made it meanwhile; a file of that name is another matter.
  check(::mkdir(path.c_str(), kPermissions) == 0 || (errno == EEXIST && fs::is_directory(path)), path, "create folder");
  sync_folder(parent);
}

void sync_folder(const fs::path& path) {
  ask(FileOperation::kSync, path, "sync");
  const Descriptor folder(retried([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  check(folder.get() >= 0, path, "open folder");
  const int result = retried([&] { return ::fsync(folder.get()); });
  check(result == 0 || errno == EINVAL, path, "sync");  // EINVAL: this file system has no such thing
}

void rename_path(const fs::path& from, const fs::path& to) {
  ask(FileOperation::kRename, to, "rename to");
  check(::rename(from.c_str(), to.c_str()) == 0, to, "rename to");
}

bool exchange_paths(const fs::path& a, const fs::path& b) {
  try {
    ask(FileOperation::kExchange, b, "replace");
    check(::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0, b, "replace");
  } catch (const FileError& error) {
    if (error.code() == EINVAL || error.code() == ENOSYS) return false;
    throw;
  }
  return true;
}

void remove_tree(const fs::path& path) {
  std::error_code code;
  const auto status = fs::symlink_status(path, code);
  if (status.type() == fs::file_type::not_found) return;
  if (status.type() == fs::file_type::directory) {
    for (const auto& entry : fs::directory_iterator(path, code)) remove_tree(entry.path());
  }
  ask(FileOperation::kRemove, path, "remove");
  fs::remove(path, code);
  if (code) throw FileError(path, "remove", code.value());
}

void remove_unfinished(const fs::path& path) {
  const auto prefix = text(".", path.filename().string(), kWriting);
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder_of(path), code)) {
    if (entry.path().filename().string().starts_with(prefix)) remove_tree(entry.path());
  }
}

}  // namespace contextpool::io
