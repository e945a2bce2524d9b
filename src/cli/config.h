// Config files and flags are one definition: the line `key = value` is the flag --key value. A flag on the command line
// wins over a config file, which wins over a preset.
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
};

ConfigFile read_config(const std::string& path);
ConfigFile parse_config(const std::string& name, const std::string& text);

// The presets built into the program, from configs/.
std::vector<std::string> preset_names();
ConfigFile preset(const std::string& name);

// Parses the arguments, then the files' values for the flags that the arguments leave open; later files win. An unknown
// key is Wrong, with the nearest name. The app's options keep all of it, as if it had been typed.
void parse_with(CLI::App& app, const std::vector<ConfigFile>& files, const Arguments& arguments);

// The words that stand for an option in a config file; none if it has no value. And to replace them.
std::vector<std::string> config_words(const CLI::App& app, const std::string& name);
void set_word(CLI::App& app, const std::string& name, const std::string& word);

// Every configurable option that has a value, `key = value` by groups. Reading it gives the same options again.
std::string config_text(const CLI::App& app);

}  // namespace contextpool::cli
