#include "cli/config.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "cli/presets.h"
#include "nn/names.h"

namespace contextpool::cli {
namespace {

// CLI11 takes a # for a comment even inside quotation marks, and knows no escapes.
constexpr const char* kUnwritable = "#\"\n";

bool is_number(const std::string& word) {
  double value = 0;
  return CLI::detail::lexical_cast(word, value);
}

std::string quoted(const std::string& name, const std::string& word) {
  if (word == "true" || word == "false" || is_number(word)) return word;
  if (word.find_first_of(kUnwritable) != std::string::npos) {
    throw Wrong("--" + name + " is '" + word + "': a config file cannot hold #, quotation marks or line breaks");
  }
  return '"' + word + '"';
}

std::string line_of(const std::string& name, const std::vector<std::string>& words) {
  std::string list;
  for (const auto& word : words) list += (list.empty() ? "" : ", ") + quoted(name, word);
  return name + " = " + (words.size() == 1 ? list : "[" + list + "]") + "\n";
}

}  // namespace

ConfigFile read_config(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!(file && text << file.rdbuf())) throw Wrong(path + ": cannot be read as a config file");
  return parse_config(path, text.str());
}

ConfigFile parse_config(const std::string& name, const std::string& text) {
  std::istringstream stream(text);
  ConfigFile config{name, {}};
  for (const auto& item : CLI::ConfigTOML().from_config(stream)) {
    if (!item.parents.empty())
      throw Wrong(name + ": [" + item.parents.front() + "]: a config file here has no sections");
    if (!config.values.emplace(item.name, item.inputs).second) throw Wrong(name + ": " + item.name + " is there twice");
  }
  return config;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& p : kPresets) names.emplace_back(p.name);
  return names;
}

ConfigFile preset(const std::string& name) {
  for (const auto& p : kPresets) {
    if (name == p.name) return parse_config("preset " + name, p.text);
  }
  throw Wrong("unknown preset \"" + name + "\"" + nn::did_you_mean(name, preset_names()) + " (they are " +
              CLI::detail::join(preset_names(), ", ") + ")");
}

void parse_with(CLI::App& app, const std::vector<ConfigFile>& files, const Arguments& arguments) {
  parse(app, arguments);
  std::map<std::string, std::vector<std::string>> open;
  std::string sources;
  for (const auto& file : files) {
    sources += (sources.empty() ? "" : ", ") + file.name;
    for (const auto& [name, words] : file.values) {
      const auto* option = app.get_option_no_throw("--" + name);
      if (option == nullptr || !option->get_configurable()) {
        throw Wrong(file.name + ": unknown key " + name + nn::did_you_mean(name, flag_names(app), "", ""));
      }
      if (option->count() == 0 && words != std::vector<std::string>{""}) open[name] = words;
    }
  }
  Arguments all;
  for (const auto& [name, words] : open) all.push_back("--" + name + "=" + CLI::detail::join(words, ","));
  all.insert(all.end(), arguments.begin(), arguments.end());
  try {
    parse(app, all);
  } catch (const Wrong& e) {
    throw Wrong(sources.empty() ? e.what() : sources + ": " + e.what());
  }
}

std::vector<std::string> config_words(const CLI::App& app, const std::string& name) {
  const auto* option = app.get_option("--" + name);
  if (option->count() > 0) return option->reduced_results();
  auto word = option->get_default_str();
  if (word.empty()) return {};
  if (word.front() == '[') return CLI::detail::split(word.substr(1, word.size() - 2), ',');  // a list
  return {word};
}

void set_word(CLI::App& app, const std::string& name, const std::string& word) {
  auto* option = app.get_option("--" + name);
  option->clear();
  option->add_result(word);
  option->run_callback();
}

std::string config_text(const CLI::App& app) {
  std::string text;
  for (const auto& group : app.get_groups()) {
    std::string lines;
    for (const auto* option : app.get_options()) {
      if (!option->get_configurable() || option->get_group() != group) continue;
      const auto& name = option->get_lnames().front();
      const auto words = config_words(app, name);
      if (!words.empty()) lines += line_of(name, words);
    }
    if (!lines.empty()) text.append(text.empty() ? "# " : "\n# ").append(group).append("\n").append(lines);
  }
  return text;
}

}  // namespace contextpool::cli
