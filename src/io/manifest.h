// The two small JSON files of checkpoints: MANIFEST.json in each, BEST.json beside them. Both are read strictly: a
// manifest must be, byte for byte, what write_manifest would write for the values in it, so that no change to it
// passes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "contextpool/io/checkpoint.h"

namespace contextpool::io {

struct Manifest {
  struct File {
    std::uint64_t size = 0;
    std::uint32_t checksum = 0;
  };
  std::int64_t step = 0;
  std::map<std::string, File> files;
};

void write_manifest(const std::filesystem::path& folder, const Manifest& manifest);  // synced, and the folder too
Manifest read_manifest(const std::filesystem::path& folder);

// Opens a file of the folder and verifies it; Error if the manifest does not list it or it is not what it lists.
std::shared_ptr<const MappedFile> open_listed(const std::filesystem::path& folder, const Manifest& manifest,
                                              const std::string& name);

void write_best(const std::filesystem::path& folder, const Best& best);
std::optional<Best> read_best(const std::filesystem::path& folder);

bool is_json(std::string_view text);

}  // namespace contextpool::io
