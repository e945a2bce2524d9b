// The folder of a table: reproduce.json in it says which table, scale and data its results are of.
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "contextpool/io/files.h"
#include "reproduce/runner.h"

namespace contextpool::reproduce {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

fs::path file_of(const Setting& setting) { return setting.out / "reproduce.json"; }

Json read(const Setting& setting) {
  const auto file = file_of(setting);
  auto json = Json::parse(io::read_file(file), nullptr, /*allow_exceptions=*/false);
  const bool good = json.is_object() && json.contains("table") && json.contains("scale") && json.contains("train") &&
                    json.contains("data") && json["data"].is_object();
  TORCH_CHECK_VALUE(good, file.string(), ": is damaged; --out names another folder");
  const auto expect = [&](const char* key, const std::string& wanted) {
    TORCH_CHECK_VALUE(json[key] == wanted, setting.out.string(), ": has results of ", key, " ", json[key].dump(),
                      ", not \"", wanted, "\"; --out names another folder");
  };
  expect("table", setting.table);
  expect("scale", setting.plan->scale);
  expect("train", setting.more);
  return json;
}

}  // namespace

DataFiles data_of_folder(const Setting& setting) {
  DataFiles files;
  const auto json = read(setting);
  for (const auto& [role, entry] : json.at("data").items()) {
    files[role] = {.path = entry.value("name", ""),
                   .name = entry.value("name", ""),
                   .bytes = entry.value("bytes", std::int64_t{0}),
                   .checksum = entry.value("crc32c", std::uint32_t{0})};
  }
  return files;
}

void open_folder(const Setting& setting) {
  DataFiles data;
  if (fs::exists(file_of(setting))) {
    data = data_of_folder(setting);
  } else {
    const bool free = !fs::exists(setting.out) || (fs::is_directory(setting.out) && fs::is_empty(setting.out));
    TORCH_CHECK_VALUE(free, setting.out.string(),
                      ": exists and has no results of `contextpool reproduce`; --out names another folder");
  }
  for (const auto& [role, file] : setting.data) {
    const auto before = data.try_emplace(role, file).first;
    TORCH_CHECK_VALUE(before->second.same(file), setting.out.string(), ": has results on another \"", role, "\", ",
                      before->second.described(), ", not ", file.described(), "; --out names another folder");
  }
  Json json = {
      {"table", setting.table}, {"scale", setting.plan->scale}, {"train", setting.more}, {"data", Json::object()}};
  for (const auto& [role, file] : data) {
    json["data"][role] = {{"name", file.name}, {"bytes", file.bytes}, {"crc32c", file.checksum}};
  }
  io::make_folder(setting.out / "results");
  io::replace_file(file_of(setting), json.dump(2) + "\n");
}

}  // namespace contextpool::reproduce
