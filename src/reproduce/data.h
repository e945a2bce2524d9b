// The files that a recipe needs, by role, as a user names them: a folder in which they have their usual names, a file,
// or ROLE=PATH. What they are is told by size and checksum, so that no two texts meet in one table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "reproduce/table.h"

namespace contextpool::reproduce {

struct DataFile {
  std::filesystem::path path = {};  // from the root
  std::string name = {};            // of the file alone
  std::int64_t bytes = 0;           // of a folder, of all its files together
  std::uint32_t checksum = 0;       // CRC-32C

  bool same(const DataFile& other) const { return bytes == other.bytes && checksum == other.checksum; }
  std::string described() const;  // "text.txt (123 bytes, CRC-32C 0123abcd)"
};
using DataFiles = std::map<std::string, DataFile>;  // by role

// The roles that a command names as {ROLE}; {run} is none.
std::set<std::string> roles_in(const std::string& command);

// Throws where a role in `needed` has no file, or one that is not what the recipe is for.
DataFiles find_data(const Recipe& recipe, const std::set<std::string>& needed, const std::vector<std::string>& words);

}  // namespace contextpool::reproduce
