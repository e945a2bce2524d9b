#include "train/log.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace contextpool::train {
namespace {

namespace fs = std::filesystem;

// The lines of a log that are kept.
struct Kept {
  std::string text;
  std::int64_t count = 0;
  bool damaged = false;  // something before the last of them is no line of a step
};

std::optional<std::int64_t> step_of(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto step = json.is_object() ? json.value("step", nlohmann::json()) : nlohmann::json();
  if (!step.is_number_integer()) return std::nullopt;
  return step.get<std::int64_t>();
}

Kept lines_to(const std::string& log, std::int64_t keep_to) {
  Kept kept;
  bool bad = false;
  for (std::size_t begin = 0, end = 0; (end = log.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const auto line = std::string_view(log).substr(begin, end - begin);
    const auto step = step_of(line);
    if (!step) bad = true;
    if (!step || *step > keep_to) continue;
    kept.text.append(line).push_back('\n');
    ++kept.count;
    kept.damaged = kept.damaged || bad;
  }
  kept.damaged = kept.damaged || (bad && kept.count < keep_to);
  return kept;
}

fs::path free_name(const fs::path& path) {
  for (int k = 1;; ++k) {
    auto name = path;
    name += ".damaged-" + std::to_string(k);
    if (!fs::exists(name)) return name;
  }
}

// Leaves the lines up to keep_to in the file. What was wrong with it, in a line.
std::string cut(const fs::path& path, std::int64_t keep_to) {
  io::remove_unfinished(path);
  const auto log = fs::exists(path) ? io::read_file(path) : std::string();
  const auto kept = lines_to(log, keep_to);
  std::string note;
  if (kept.count < keep_to) {
    note = path.string() + ": has only " + std::to_string(kept.count) + " of the " + std::to_string(keep_to) +
           " steps so far" + (log.empty() ? " (the log is missing)" : "");
  }
  if (kept.damaged) {
    const auto aside = free_name(path);
    io::replace_file(aside, log);
    note += (note.empty() ? path.string() + ": has damaged lines" : std::string()) + "; as it was, it is in " +
            aside.string();
  }
  if (log.starts_with(kept.text)) {
    if (kept.text.size() < log.size()) fs::resize_file(path, kept.text.size());
  } else {
    io::replace_file(path, kept.text);
  }
  return note;
}

}  // namespace

Log::Log(const fs::path& path, std::int64_t keep_to)
    : note_(cut(path, keep_to)), file_(path, io::OutputFile::Mode::kAppend) {}

void Log::write(const nlohmann::ordered_json& line) {
  pending_ += line.dump() + "\n";
  flush();
}

void Log::flush() {
  if (pending_.empty()) return;
  file_.write(pending_);
  pending_.clear();
}

void Log::sync() {
  flush();
  file_.sync();
}

}  // namespace contextpool::train
