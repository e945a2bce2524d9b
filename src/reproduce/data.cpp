#include "reproduce/data.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "contextpool/io/crc32c.h"
#include "contextpool/io/files.h"

namespace contextpool::reproduce {
namespace {

namespace fs = std::filesystem;

std::string listed(const std::vector<std::string>& words) {
  std::string list;
  for (const auto& word : words) list += (list.empty() ? "" : ", ") + word;
  return list;
}

const Role* role_named(const Recipe& recipe, const std::string& name) {
  for (const auto& role : recipe.data) {
    if (role.name == name) return &role;
  }
  return nullptr;
}

// Where a folder has the role's file; of a role that is a folder itself, that folder.
std::optional<fs::path> in_folder(const Role& role, const fs::path& folder) {
  if (role.folder) {
    const auto there = [&](const std::string& file) { return fs::is_regular_file(folder / file); };
    if (std::all_of(role.files.begin(), role.files.end(), there)) return folder;
    return std::nullopt;
  }
  for (const auto& file : role.files) {
    if (fs::is_regular_file(folder / file)) return folder / file;
  }
  return std::nullopt;
}

// Those that `word` names without saying the role.
void add_unnamed(const Recipe& recipe, const std::string& word, std::map<std::string, fs::path>& found) {
  TORCH_CHECK_VALUE(fs::exists(word), word, ": there is no such file or folder (--data)");
  if (fs::is_directory(word)) {
    for (const auto& role : recipe.data) {
      if (const auto path = in_folder(role, word)) found.try_emplace(role.name, *path);
    }
    return;
  }
  std::vector<std::string> names;
  for (const auto& role : recipe.data) names.push_back(role.name);
  TORCH_CHECK_VALUE(names.size() == 1, word, ": which data it is must be said: --data ROLE=", word, " with one of ",
                    listed(names));
  found.try_emplace(names.front(), word);
}

std::map<std::string, fs::path> paths_of(const Recipe& recipe, const std::vector<std::string>& words) {
  std::map<std::string, fs::path> found;
  std::vector<std::string> unnamed;
  for (const auto& word : words) {
    const auto equals = word.find('=');
    const auto* role = equals == std::string::npos ? nullptr : role_named(recipe, word.substr(0, equals));
    if (role == nullptr) {
      unnamed.push_back(word);
      continue;
    }
    const fs::path path = word.substr(equals + 1);
    TORCH_CHECK_VALUE(fs::exists(path), path.string(), ": there is no such file or folder (--data ", word, ")");
    TORCH_CHECK_VALUE(role->folder == fs::is_directory(path), path.string(), ": expected a ",
                      role->folder ? "folder" : "file", " (--data ", word, ")");
    found[role->name] = path;
  }
  for (const auto& word : unnamed) add_unnamed(recipe, word, found);
  return found;
}

DataFile identified(const Role& role, const fs::path& path) {
  auto whole = fs::absolute(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  DataFile file{.path = whole, .name = whole.filename().string()};
  std::vector<fs::path> parts = {file.path};
  if (role.folder) {
    parts.clear();
    for (const auto& name : role.files) parts.push_back(file.path / name);
  }
  for (const auto& part : parts) {
    const auto mapped = io::MappedFile::open(part);
    const auto bytes = mapped->bytes();
    file.checksum = io::crc32c(bytes, file.checksum);
    file.bytes += static_cast<std::int64_t>(bytes.size());
    TORCH_CHECK_VALUE(mapped->text().starts_with(role.opening), part.string(), ": is not ", role.name, ", which is ",
                      role.what, " and begins with \"", role.opening, "\"; --scale small takes any text");
  }
  TORCH_CHECK_VALUE(role.bytes == 0 || file.bytes == role.bytes, path.string(), ": has ", file.bytes, " bytes, but ",
                    role.name, " (", role.what, ") has ", role.bytes);
  return file;
}

}  // namespace

std::string DataFile::described() const {
  char sum[16];
  std::snprintf(sum, sizeof sum, "%08x", checksum);
  return name + " (" + std::to_string(bytes) + " bytes, CRC-32C " + sum + ")";
}

std::set<std::string> roles_in(const std::string& command) {
  std::set<std::string> roles;
  for (auto open = command.find('{'); open != std::string::npos; open = command.find('{', open + 1)) {
    const auto name = command.substr(open + 1, command.find('}', open) - open - 1);
    if (name != "run") roles.insert(name);
  }
  return roles;
}

DataFiles find_data(const Recipe& recipe, const std::set<std::string>& needed, const std::vector<std::string>& words) {
  const auto paths = paths_of(recipe, words);
  DataFiles files;
  for (const auto& name : needed) {
    const auto* role = role_named(recipe, name);
    TORCH_INTERNAL_ASSERT(role != nullptr, name);
    const auto found = paths.find(name);
    TORCH_CHECK_VALUE(found != paths.end(), "data \"", name, "\" are needed (", role->what, "): --data ", name,
                      role->folder ? "=FOLDER, or that folder" : "=FILE, or a folder that has them", " (",
                      listed(role->files), ")");
    files[name] = identified(*role, found->second);
  }
  return files;
}

}  // namespace contextpool::reproduce
