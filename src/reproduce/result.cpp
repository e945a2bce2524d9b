#include "reproduce/result.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <ranges>

#include "contextpool/io/files.h"
#include "contextpool/models/model_file.h"
#include "tasks/language_model_eval.h"

namespace contextpool::reproduce {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::vector<std::string> lines_of(const fs::path& file) {
  const auto text = io::read_file(file);
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    if (end > begin) lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::optional<double> figure_at(const Json& json, const std::string& pointer) {
  const Json::json_pointer place(pointer);
  if (!json.contains(place) || !json.at(place).is_number()) return std::nullopt;
  return json.at(place).get<double>();
}

// The last line that is an object: a command may have said something before it.
Json printed(const fs::path& file) {
  const auto lines = lines_of(file);
  for (const auto& line : std::views::reverse(lines)) {
    auto json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) return json;
  }
  TORCH_CHECK_VALUE(false, file.string(), ": expected a JSON object, which eval --json prints");
}

struct Training {
  std::vector<Json> log;
  double seconds_a_step = 0, seconds = 0, memory = 0;
};

Training training_of(const fs::path& file) {
  Training training;
  std::vector<double> seconds;
  for (const auto& line : lines_of(file)) {
    training.log.push_back(Json::parse(line, nullptr, /*allow_exceptions=*/false));
    const auto& json = training.log.back();
    const auto took = figure_at(json, "/time/seconds");
    if (!took) continue;
    seconds.push_back(*took);
    training.seconds += *took;
    training.memory = std::max(training.memory, figure_at(json, "/time/memory").value_or(0));
  }
  TORCH_CHECK_VALUE(!seconds.empty(), file.string(), ": expected a line for every step of the run");
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  training.seconds_a_step = seconds[seconds.size() / 2];
  return training;
}

double logged(const Training& training, const std::string& pointer, const fs::path& file) {
  for (const auto& line : std::views::reverse(training.log)) {
    if (const auto figure = figure_at(line, pointer)) return *figure;
  }
  TORCH_CHECK_VALUE(false, file.string(), ": no line has ", pointer);
}

void add_scores(Json& result, const Setting& setting, const JobFiles& files, const Training& training) {
  const auto& recipe = setting.plan->recipe;
  for (std::size_t i = 0; i < recipe.scores.size(); ++i) {
    const auto& score = recipe.scores[i];
    double figure = 0;
    if (score.command.empty()) {
      figure = logged(training, score.pointer, files.run / "log.jsonl");
    } else {
      const auto file = files.of(command_of_score(recipe, i), ".done");
      const auto evaluation = printed(file);
      const auto found = figure_at(evaluation, score.pointer);
      TORCH_CHECK_VALUE(found, file.string(), ": has no figure at ", score.pointer);
      figure = *found;
      result["evaluations"][score.name] = evaluation;
    }
    result["scores"][score.name] = score.factor * figure;
  }
}

std::int64_t trained_length(const io::Metadata& metadata) {
  const auto found = metadata.find(tasks::kTrainedLengthKey);
  std::int64_t length = 0;
  if (found != metadata.end())
    std::from_chars(found->second.data(), found->second.data() + found->second.size(), length);
  return length;
}

void add_cost(Json& result, const fs::path& run) {
  constexpr double kPerMac = 2;  // floating-point operations
  const auto model = models::describe_model(models::model_of_run(run, "newest").file);
  const auto cost = model.family.cost(model.options, trained_length(model.metadata));
  result["parameters"] = cost.parameters;
  result["macs"] = cost.flops / kPerMac;
  result["macs_with_pooling"] = (cost.flops + cost.pooling_flops) / kPerMac;
  result["per"] = cost.per;
}

void add_machine(Json& result, const Setting& setting, const Machine& machine, int at_once) {
  result["at_once"] = at_once;
  result["hardware"] = {{"cpu", machine.cpu},
                        {"cores", machine.cores},
                        {"threads", machine.threads},
                        {"gpus", machine.gpus},
                        {"device", setting.device.empty() ? "auto" : setting.device}};
  result["version"] = machine.version;
  result["torch"] = machine.torch;
  result["commit"] = machine.commit;
}

}  // namespace

Json result_of(const Setting& setting, const Job& job, const Machine& machine, int at_once) {
  const JobFiles files(setting.out, job);
  const auto training = training_of(files.run / "log.jsonl");
  Json result = {{"table", setting.table}, {"scale", setting.plan->scale}, {"row", job.row->name}, {"seed", job.seed}};
  add_scores(result, setting, files, training);
  add_cost(result, files.run);
  result["memory"] = training.memory;
  result["seconds_a_step"] = training.seconds_a_step;
  result["seconds"] = training.seconds;
  add_machine(result, setting, machine, at_once);
  for (const auto& [role, file] : setting.data) {
    result["data"][role] = {{"name", file.name}, {"bytes", file.bytes}, {"crc32c", file.checksum}};
  }
  result["command"] = "contextpool " + shell_line(commands_of(setting, job, /*resume=*/false).front());
  result["definition"] = definition_of(setting, job);
  result["config"] = io::read_file(files.run / "config.toml");
  return result;
}

Result read_result(const fs::path& file) {
  const auto json = nlohmann::json::parse(io::read_file(file), nullptr, /*allow_exceptions=*/false);
  try {
    Result r;
    r.row = json.at("row");
    r.seed = json.at("seed");
    for (const auto& [name, figure] : json.at("scores").items()) r.scores[name] = figure;
    r.parameters = json.at("parameters");
    r.macs = json.at("macs");
    r.macs_with_pooling = json.at("macs_with_pooling");
    r.per = json.at("per");
    r.memory = json.at("memory");
    r.seconds_a_step = json.at("seconds_a_step");
    r.at_once = json.at("at_once");
    const auto& hardware = json.at("hardware");
    const bool on_gpu = !hardware.at("gpus").empty() && hardware.at("device") != "cpu";
    r.where = on_gpu ? hardware.at("gpus").at(0) : hardware.at("cpu");
    r.commit = json.at("commit");
    r.definition = json.at("definition");
    return r;
  } catch (const nlohmann::json::exception& e) {
    TORCH_CHECK_VALUE(false, file.string(), ": is not the result of a run (", e.what(),
                      "); remove it, and the run is scored again");
  }
}

std::vector<Result> read_results(const Setting& setting) {
  std::vector<Result> results;
  std::vector<fs::path> files;
  const auto folder = setting.out / "results";
  std::error_code code;
  fs::directory_iterator entries(folder, code);
  if (code) throw io::FileError(folder, "read", code.value());
  for (const auto& entry : entries) {
    if (entry.path().extension() == ".json" && !entry.path().filename().string().starts_with('.')) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    auto result = read_result(file);
    for (const auto& row : setting.plan->rows) {
      if (row.name != result.row) continue;
      check_definition(result.definition, setting, {&row, result.seed}, file);
      for (const auto& score : setting.plan->recipe.scores) {
        TORCH_CHECK_VALUE(result.scores.contains(score.name), file.string(),
                          ": is not the result of a run (it has no \"", score.name,
                          "\"); remove it, and the run is scored again");
      }
      results.push_back(std::move(result));
      break;
    }
  }
  return results;
}

}  // namespace contextpool::reproduce
