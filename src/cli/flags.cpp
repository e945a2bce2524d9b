// Parsing, as every subcommand does it.
#include <charconv>
#include <iostream>

#include "base/words.h"
#include "cli/cli.h"

namespace contextpool::cli {
namespace {

template <typename Integer>
bool fits(const std::string& word) {
  Integer value = 0;
  const auto* end = word.data() + word.size();
  const auto result = std::from_chars(word.data(), end, value);
  return result.ec == std::errc() && result.ptr == end && std::to_string(value) == word;
}

// CLI11 2.1 reads whole numbers by strtoll: 1e30 of digits become the largest one, 010 becomes 8, -1 without a sign
// 2^64-1. Later ones refuse some of these themselves, in other words.
void check_integers(const CLI::App& app) {
  for (const auto* option : app.get_options()) {
    const auto type = option->get_type_name();
    if (type.find("INT") == std::string::npos) continue;
    const bool is_unsigned = type.find("UINT") != std::string::npos;
    for (const auto& word : option->results()) {
      if (is_unsigned ? fits<std::uint64_t>(word) : fits<std::int64_t>(word)) continue;
      throw UsageError(option->get_name() + " is " + word + ", expected a whole number" +
                       (is_unsigned ? " of at least 0" : "") + " in decimal digits, below 2^" +
                       (is_unsigned ? "64" : "63"));
    }
  }
}

}  // namespace

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

bool parse(CLI::App& app, const Arguments& arguments) {
  app.allow_extras();  // so that they can be answered with the nearest name
  try {
    app.parse(Arguments(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return false;
  } catch (const CLI::ParseError& e) {
    check_integers(app);
    throw UsageError(e.what());
  }
  if (app.remaining().empty()) {
    check_integers(app);
    return true;
  }
  const auto extra = app.remaining().front();
  if (extra.rfind("--", 0) != 0) throw UsageError("unexpected argument \"" + extra + "\"; --help lists the options");
  const auto name = extra.substr(2, extra.find('=') - 2);
  throw UsageError("unknown option --" + name + did_you_mean(name, flag_names(app), "--", "") + " (--help lists them)");
}

void ModelFlags::add_to(CLI::App& app) {
  app.option_defaults()
      ->always_capture_default()
      ->take_last();  // --help shows defaults; a flag given twice counts once
  app.add_option("--run", run, "folder of a training run; its newest checkpoint that passes verification is used");
  app.add_option("--checkpoint", checkpoint, "a model's safetensors file, instead of --run");
  app.add_option("--which", which, "checkpoint of the run: newest or best");
  app.add_option("--device", device, "auto, cpu, cuda or cuda:N");
}

void ModelFlags::check_which() const {
  as_command([&] { check_word("contextpool", "which", which, {"newest", "best"}); });
}

contextpool::models::RunModel ModelFlags::find() const {
  if (run.empty() == checkpoint.empty()) throw UsageError("one of --run DIR and --checkpoint FILE is needed");
  if (run.empty()) return {checkpoint, ""};
  check_which();
  return contextpool::models::model_of_run(run, which);
}

std::string ModelFlags::file() const {
  const auto found = find();
  if (!found.note.empty()) std::cerr << "contextpool: skipped a broken checkpoint: " << found.note << "\n";
  if (!run.empty()) std::cerr << "contextpool: using " << found.file.string() << "\n";
  return found.file.string();
}

}  // namespace contextpool::cli
