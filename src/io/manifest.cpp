#include "io/manifest.h"

#include <cstdlib>
#include <iomanip>
#include <nlohmann/json.hpp>

#include "contextpool/io/crc32c.h"
#include "io/text.h"

namespace contextpool::io {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr auto kManifest = "MANIFEST.json";
constexpr auto kBest = "BEST.json";
constexpr int kFormat = 1;
constexpr int kIndent = 2;
constexpr std::size_t kLargest = 65536;  // bytes; these files have a few hundred

std::string hex(std::uint32_t value) {
  std::ostringstream out;
  out << std::hex << std::setw(8) << std::setfill('0') << value;
  return std::move(out).str();
}

std::string text_of(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files) files[name] = {{"size", file.size}, {"crc32c", hex(file.checksum)}};
  return Json{{"format", kFormat}, {"step", manifest.step}, {"files", files}}.dump(kIndent) + "\n";
}

// Parses a small JSON file and lets `take` pick what it needs; what nlohmann::json throws becomes an Error.
template <class Take>
auto parsed(const MappedFile& file, const char* what, Take take) {
  const auto fail = [&] { return Error(file.path().string() + ": not " + what); };
  if (file.bytes().size() > kLargest) throw fail();
  try {
    return take(Json::parse(file.text()));
  } catch (const Json::exception&) {
    throw fail();
  }
}

}  // namespace

bool is_json(std::string_view text) { return Json::accept(text); }

void write_manifest(const fs::path& folder, const Manifest& manifest) {
  OutputFile file(folder / kManifest, OutputFile::Mode::kCreate);
  file.write(text_of(manifest));
  file.sync();
  file.close();
  sync_folder(folder);
}

Manifest read_manifest(const fs::path& folder) {
  const auto file = MappedFile::open(folder / kManifest);
  const auto what = "a manifest of a checkpoint, or a damaged one";
  auto manifest = parsed(*file, what, [](const Json& json) {
    Manifest out;
    out.step = json.at("step").get<std::int64_t>();
    for (const auto& [name, value] : json.at("files").items()) {
      const auto checksum = std::strtoul(value.at("crc32c").get<std::string>().c_str(), nullptr, 16);
      out.files[name] = {value.at("size").get<std::uint64_t>(), static_cast<std::uint32_t>(checksum)};
    }
    return out;
  });
  if (text_of(manifest) != file->text()) throw Error(file->path().string() + ": not " + what);
  return manifest;
}

std::shared_ptr<const MappedFile> open_listed(const fs::path& folder, const Manifest& manifest,
                                              const std::string& name) {
  const auto path = folder / name;
  const auto at = manifest.files.find(name);
  if (at == manifest.files.end()) throw Error(text(path.string(), ": not listed in ", kManifest));
  auto file = MappedFile::open(path);
  const auto [size, checksum] = at->second;
  if (file->bytes().size() != size)
    throw Error(text(path.string(), ": has ", file->bytes().size(), " bytes, ", kManifest, " says ", size));
  const auto found = crc32c(file->bytes());
  if (found != checksum)
    throw Error(
        text(path.string(), ": damaged, its checksum is ", hex(found), ", ", kManifest, " says ", hex(checksum)));
  return file;
}

void write_best(const fs::path& folder, const Best& best) {
  replace_file(folder / kBest,
               Json{{"step", best.step}, {"metric", best.metric}, {"value", best.value}}.dump(kIndent) + "\n");
}

std::optional<Best> read_best(const fs::path& folder) {
  const auto path = folder / kBest;
  if (!fs::exists(path)) return std::nullopt;
  return parsed(*MappedFile::open(path), "a mark of the best checkpoint, or a damaged one", [](const Json& json) {
    return Best{json.at("step").get<std::int64_t>(), json.at("value").get<double>(),
                json.at("metric").get<std::string>()};
  });
}

}  // namespace contextpool::io
