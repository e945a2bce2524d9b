#include "train/log.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace contextpool::train {
namespace {

// Cuts the file behind the last whole line of a step up to keep_to; gives its path.
std::filesystem::path cut(const std::filesystem::path& path, std::int64_t keep_to) {
  if (!std::filesystem::exists(path)) return path;
  std::uintmax_t size = 0;
  {
    std::ifstream file(path, std::ios::binary);
    for (std::string line; std::getline(file, line) && !file.eof();) {
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      const auto step = json.is_object() ? json.value("step", nlohmann::json()) : nlohmann::json();
      if (!step.is_number_integer() || step.get<std::int64_t>() > keep_to) break;
      size += line.size() + 1;
    }
  }
  std::filesystem::resize_file(path, size);
  return path;
}

}  // namespace

Log::Log(const std::filesystem::path& path, std::int64_t keep_to)
    : file_(cut(path, keep_to), io::OutputFile::Mode::kAppend) {}

void Log::write(const nlohmann::ordered_json& line) {
  pending_ += line.dump() + "\n";
  file_.write(pending_);
  pending_.clear();
}

void Log::sync() { file_.sync(); }

}  // namespace contextpool::train
