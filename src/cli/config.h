// Config files and flags are one definition: the line `key = value` is the flag --key value. Files are TOML; a key
// stands in the section of its flag's group ([model], [data], [optimizer], [train]) or in none. A flag on the command
// line wins over a config file, which wins over a preset, which wins over the preset that it names with `base = "..."`.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "cli/cli.h"

namespace contextpool::cli {

struct ConfigFile {
  std::string name;  // for messages
  std::map<std::string, std::vector<std::string>> values;
  std::map<std::string, std::string> sections;  // of the keys that stand in one
};

ConfigFile read_config(const std::string& path);
ConfigFile parse_config(const std::string& name, const std::string& text);

// The presets built into the program, from configs/, with what they take from their base.
std::vector<std::string> preset_names();
ConfigFile preset(const std::string& name);

// Parses the arguments, then the files' values for the flags that the arguments leave open; later files win. An unknown
// key is a UsageError, with the nearest name, and so is one in another section. The app's options keep all of it, as if
// it had been typed.
void parse_with(CLI::App& app, const std::vector<ConfigFile>& files, const Arguments& arguments);

// The words that stand for an option in a config file; none if it has no value. And to replace them.
std::vector<std::string> config_words(const CLI::App& app, const std::string& name);
void set_word(CLI::App& app, const std::string& name, const std::string& word);

// Every configurable option that has a value, `key = value` by sections. Reading it gives the same options again.
std::string config_text(const CLI::App& app);

}  // namespace contextpool::cli
