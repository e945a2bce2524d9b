// The folder of a table: reproduce.json in it says which table, scale and data its results are of.
#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "contextpool/io/files.h"
#include "reproduce/runner.h"

namespace contextpool::reproduce {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

fs::path file_of(const Setting& setting) { return setting.out / "reproduce.json"; }

bool is_entry(const Json& entry) {
  return entry.is_object() && entry.contains("name") && entry["name"].is_string() && entry.contains("bytes") &&
         entry["bytes"].is_number_integer() && entry.contains("crc32c") && entry["crc32c"].is_number_integer();
}

Json read(const Setting& setting) {
  const auto file = file_of(setting);
  auto json = Json::parse(io::read_file(file), nullptr, /*allow_exceptions=*/false);
  const bool good = json.is_object() && json.contains("table") && json.contains("scale") && json.contains("train") &&
                    json.contains("data") && json["data"].is_object() &&
                    std::all_of(json["data"].begin(), json["data"].end(), is_entry);
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
    files[role] = {.path = entry.at("name").get<std::string>(),
                   .name = entry.at("name"),
                   .bytes = entry.at("bytes"),
                   .checksum = entry.at("crc32c")};
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
  io::make_folder(setting.out);
  io::replace_file(file_of(setting), json.dump(2) + "\n");  // first: what has none is no folder of results
  io::make_folder(setting.out / "results");
}

}  // namespace contextpool::reproduce
