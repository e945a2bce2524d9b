// The program as a library: main.cpp calls run(); a program that registers models and tasks of its own may do so too.
// Exit status: 0 done; 1 something failed; 2 the command or a config file is
// wrong; 128 + signal: training was stopped by Ctrl-C, SIGTERM, SIGHUP or SIGPIPE, after saving.
#pragma once

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "contextpool/models/model_file.h"

namespace contextpool::cli {

constexpr int kFailed = 1, kUsageError = 2, kSignalled = 128;

using Arguments = std::vector<std::string>;

// A command line or config file that cannot be: one line for the user.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// f(), where all that it can refuse (c10::Error) is the command's fault.
template <typename F>
auto as_command(F&& f) -> decltype(f()) {
  try {
    return std::forward<F>(f)();
  } catch (const c10::Error& e) {
    throw UsageError(e.what_without_backtrace());
  }
}

// The program: `contextpool <arguments>`. The exit status; errors are one line on stderr.
int run(const Arguments& arguments);

// One a subcommand, each in the file of its name. The return value is the exit status.
int train(const Arguments& arguments);
int eval(const Arguments& arguments);
int generate(const Arguments& arguments);
int classify(const Arguments& arguments);
int translate(const Arguments& arguments);
int average(const Arguments& arguments);
int bench(const Arguments& arguments);
int data(const Arguments& arguments);
int models(const Arguments& arguments);
int inspect(const Arguments& arguments);
int inspect_checkpoint(const Arguments& arguments);
int reproduce(const Arguments& arguments);
int doctor(const Arguments& arguments);

// "contextpool 0.1.0, torch 2.13.0"
std::string version();

// Parses the arguments of a subcommand. False if help was asked for and printed. Throws UsageError, with the nearest
// name where one is unknown. Whole numbers are decimal and must fit.
bool parse(CLI::App& app, const Arguments& arguments);

// The long names of an app's options, without the dashes.
std::vector<std::string> flag_names(const CLI::App& app);

// --run DIR or --checkpoint FILE, for subcommands that read a model.
struct ModelFlags {
  std::string run, checkpoint, which = "newest", device = "auto";

  void add_to(CLI::App& app);
  void check_which() const;
  contextpool::models::RunModel find() const;
  std::string file() const;  // says on stderr which checkpoint was taken, and what was skipped as broken
};

}  // namespace contextpool::cli
