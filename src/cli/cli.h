// The program: what its subcommands share. Exit status: 0 done; 1 something failed; 2 the command or a config file is
// wrong; 130 or 143 training was stopped by Ctrl-C or SIGTERM, after saving.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace contextpool::cli {

constexpr int kFailed = 1, kWrong = 2, kSignalled = 128;

using Arguments = std::vector<std::string>;

// A command line or config file that cannot be: one line for the user.
class Wrong : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One a subcommand, each in the file of its name. The return value is the exit status.
int train(const Arguments& arguments);
int eval(const Arguments& arguments);
int generate(const Arguments& arguments);
int models(const Arguments& arguments);
int inspect_checkpoint(const Arguments& arguments);

// Parses the arguments of a subcommand. False if help was asked for and printed. Throws Wrong, with the nearest name
// where one is unknown.
bool parse(CLI::App& app, const Arguments& arguments);

// The long names of an app's options, without the dashes.
std::vector<std::string> flag_names(const CLI::App& app);

// --run DIR or --checkpoint FILE, for subcommands that read a model.
struct ModelFlags {
  std::string run, checkpoint, which = "newest", device = "auto";

  void add_to(CLI::App& app);
  std::string file() const;  // says on stderr which checkpoint was taken, and what was skipped as broken
};

}  // namespace contextpool::cli
