#include "cli/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/words.h"
#include "cli/presets.h"

namespace contextpool::cli {
namespace {

constexpr const char* kBase = "base";

bool is_number(const std::string& word) {
  double value = 0;
  return CLI::detail::lexical_cast(word, value);
}

std::string word_of(double number) {
  return std::isfinite(number) ? nlohmann::json(number).dump() : std::to_string(number);  // inf or nan, as TOML has it
}

// As TOML writes it: a basic string, or the number or truth value that the word is.
std::string quoted(const std::string& word) {
  if (word == "true" || word == "false") return word;
  if (is_number(word)) {  // one way to write a number
    const bool whole = word.find_first_not_of("+-0123456789") == std::string::npos;
    return whole ? word : word_of(std::stod(word));
  }
  std::ostringstream text;
  text << toml::value<std::string>(word);
  auto result = text.str();
  if (!result.starts_with('\'')) return result;
  return '"' + result.substr(1, result.size() - 2) + '"';  // one way to write a plain string
}

std::string line_of(const std::string& name, const std::vector<std::string>& words) {
  std::string list;
  for (const auto& word : words) list += (list.empty() ? "" : ", ") + quoted(word);
  return name + " = " + (words.size() == 1 ? list : "[" + list + "]") + "\n";
}

std::string word_of(const std::string& where, const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
  if (const auto* number = node.as_floating_point()) return word_of(number->get());
  throw UsageError(where + ": expected a word, a number, true or false, or a list of such");
}

void add(ConfigFile& config, const std::string& key, const toml::node& node) {
  const auto where = config.name + ": " + key;
  std::vector<std::string> words;
  if (const auto* list = node.as_array()) {
    for (const auto& item : *list) words.push_back(word_of(where, item));
    if (words.empty()) throw UsageError(where + ": an empty list; expected a value, or one for each stage");
  } else {
    words.push_back(word_of(where, node));
  }
  if (!config.values.emplace(key, words).second) throw UsageError(where + " is set twice");
}

std::string section_of(const CLI::Option& option) { return CLI::detail::to_lower(option.get_group()); }

}  // namespace

ConfigFile read_config(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file && file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (!file.good() && !file.eof()) throw UsageError(path + ": cannot be read as a config file");
  return parse_config(path, text.str());
}

ConfigFile parse_config(const std::string& name, const std::string& text) {
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& e) {
    throw UsageError(name + ": line " + std::to_string(e.source().begin.line) + ": " + std::string(e.description()));
  }
  ConfigFile config{name, {}, {}};
  for (const auto& [key, node] : table) {
    if (const auto* section = node.as_table()) {
      for (const auto& [inner, value] : *section) {
        add(config, std::string(inner.str()), value);
        config.sections[std::string(inner.str())] = key.str();
      }
    } else {
      add(config, std::string(key.str()), node);
    }
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
    if (name != p.name) continue;
    auto config = parse_config("preset " + name, p.text);
    const auto base = config.values.extract(kBase);
    if (base.empty()) return config;
    auto below = preset(base.mapped().front());
    config.values.merge(below.values);
    config.sections.merge(below.sections);
    return config;
  }
  throw UsageError("unknown preset \"" + name + "\"" + did_you_mean(name, preset_names()) + " (they are " +
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
      if (option != nullptr && !option->get_configurable())
        throw UsageError(file.name + ": " + name + " is for the command line, not for a config file");
      if (option == nullptr) {
        throw UsageError(file.name + ": unknown key " + name + did_you_mean(name, flag_names(app), "", ""));
      }
      const auto section = file.sections.find(name);
      if (section != file.sections.end() && section->second != section_of(*option)) {
        throw UsageError(file.name + ": [" + section->second + "] has " + name + ", which belongs in [" +
                         section_of(*option) + "]");
      }
      if (option->count() == 0 && words != std::vector<std::string>{""}) open[name] = words;
    }
  }
  Arguments all;
  for (const auto& [name, words] : open) all.push_back("--" + name + "=" + CLI::detail::join(words, ","));
  all.insert(all.end(), arguments.begin(), arguments.end());
  try {
    parse(app, all);
  } catch (const UsageError& e) {
    throw UsageError(sources.empty() ? e.what() : sources + ": " + e.what());
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
    if (!lines.empty()) text += (text.empty() ? "[" : "\n[") + CLI::detail::to_lower(group) + "]\n" + lines;
  }
  return text;
}

}  // namespace contextpool::cli
