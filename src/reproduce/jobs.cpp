#include "reproduce/jobs.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

namespace contextpool::reproduce {
namespace {

namespace fs = std::filesystem;

Words split(const std::string& line) {
  std::istringstream stream(line);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string value_of(const std::string& name, const Setting& setting, const JobFiles& files) {
  if (name == "run") return files.run.string();
  const auto found = setting.data.find(name);
  if (found != setting.data.end()) return found->second.path.string();
  auto capitals = name;
  std::transform(capitals.begin(), capitals.end(), capitals.begin(), [](unsigned char c) { return std::toupper(c); });
  return capitals;
}

// Of a flag that is named twice, the later one and its values stay: `train` would take both values of a list.
Words later_flags_win(const Words& words) {
  std::vector<Words> groups(1);  // a flag with its values; before the first flag, the subcommand
  for (const auto& word : words) {
    const auto name = word.substr(0, word.find('='));
    if (word.starts_with("--")) {
      std::erase_if(groups, [&](const Words& g) { return !g.empty() && g[0].substr(0, g[0].find('=')) == name; });
      groups.emplace_back();
    }
    groups.back().push_back(word);
  }
  Words all;
  for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

std::string joined(const Words& words) {
  std::string line;
  for (const auto& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

// Words first, then what they stand for: a path with a space stays one word.
Words filled_in(const std::string& line, const Setting& setting, const JobFiles& files) {
  auto words = split(line);
  for (auto& word : words) {
    const auto open = word.find('{'), close = word.find('}');
    if (open == std::string::npos || close == std::string::npos) continue;
    word.replace(open, close - open + 1, value_of(word.substr(open + 1, close - open - 1), setting, files));
  }
  return words;
}

Words with_device(Words words, const Setting& setting) {
  if (!setting.device.empty()) words.insert(words.end(), {"--device", setting.device});
  return words;
}

std::string train_line(const Setting& setting, const Job& job) {
  std::string line = "train";
  for (const auto* part : {&setting.plan->recipe.train, &job.row->flags, &setting.more}) {
    if (!part->empty()) line += " " + *part;
  }
  return joined(later_flags_win(split(line + " --seed " + std::to_string(job.seed))));
}

// "--flag value" or "--flag=value".
void drop_flag(Words& words, const std::string& flag) {
  const auto found = std::find_if(words.begin(), words.end(), [&](const std::string& word) {
    return word == flag || word.starts_with(flag + "=");
  });
  if (found == words.end()) return;
  const bool has_value_behind = *found == flag && found + 1 != words.end();
  words.erase(found, found + (has_value_behind ? 2 : 1));
}

}  // namespace

std::vector<Job> jobs_of(const Plan& plan, const std::vector<std::string>& rows,
                         const std::vector<std::int64_t>& seeds) {
  std::vector<Job> jobs;
  for (const auto& row : rows) find_row(plan, row);  // an error if there is none
  for (const auto seed : seeds) {
    for (const auto& row : plan.rows) {
      if (rows.empty() || std::find(rows.begin(), rows.end(), row.name) != rows.end()) jobs.push_back({&row, seed});
    }
  }
  return jobs;
}

JobFiles::JobFiles(const fs::path& out, const Job& job)
    : folder(out / job.name()),
      run(folder / "run"),
      definition(folder / "job.json"),
      result(out / "results" / (job.name() + ".json")) {}

fs::path JobFiles::of(std::size_t command, const char* ending) const {
  return folder / (std::to_string(command) + ending);
}

std::vector<Words> commands_of(const Setting& setting, const Job& job, bool resume) {
  const JobFiles files(setting.out, job);
  auto train = with_device(filled_in(train_line(setting, job), setting, files), setting);
  train.insert(train.end(), {"--run", files.run.string()});
  if (resume) {
    for (const auto* flag : {"--preset", "--config"}) drop_flag(train, flag);
    train.emplace_back("--resume");
  }
  std::vector<Words> all = {train};
  for (const auto& line : setting.plan->recipe.before) all.push_back(filled_in(line, setting, files));
  for (const auto& score : setting.plan->recipe.scores) {
    if (!score.command.empty()) all.push_back(with_device(filled_in(score.command, setting, files), setting));
  }
  return all;
}

std::size_t command_of_score(const Recipe& recipe, std::size_t score) {
  if (recipe.scores[score].command.empty()) return 0;
  auto place = recipe.before.size();
  for (std::size_t i = 0; i <= score; ++i) place += recipe.scores[i].command.empty() ? 0 : 1;
  return place;
}

std::string definition_of(const Setting& setting, const Job& job) {
  nlohmann::ordered_json json = {{"train", train_line(setting, job)}, {"before", setting.plan->recipe.before}};
  for (const auto& score : setting.plan->recipe.scores) json["scores"].push_back({score.name, score.command});
  return json.dump(2) + "\n";
}

void check_definition(const std::string& definition, const Setting& setting, const Job& job, const fs::path& file) {
  TORCH_CHECK_VALUE(definition == definition_of(setting, job), file.string(), ": is of another recipe than the row \"",
                    job.row->name, "\" of ", setting.table, " has now; --out names another folder");
}

std::string shell_line(const Words& words) {
  std::string line;
  for (const auto& word : words) {
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789-_./=,:+@%") == std::string::npos;
    auto quoted = word;
    for (std::size_t at = 0; !plain && (at = quoted.find('\'', at)) != std::string::npos; at += 4) {
      quoted.replace(at, 1, "'\\''");
    }
    line += (line.empty() ? "" : " ") + (plain ? word : "'" + quoted + "'");
  }
  return line;
}

}  // namespace contextpool::reproduce
