// contextpool <subcommand> [options]. Errors are one line on stderr.
#include <c10/util/Exception.h>

#include <array>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>

#include "cli/cli.h"
#include "nn/names.h"

namespace contextpool::cli {
namespace {

struct Subcommand {
  const char* name;
  int (*run)(const Arguments&);
  const char* help;
};
constexpr std::array<Subcommand, 5> kSubcommands = {{
    {"train", train, "train a language model, or go on with a run"},
    {"eval", eval, "bits per character of a trained model on held-out text"},
    {"generate", generate, "text from a trained model"},
    {"models", models, "the named models, their parameters and FLOPs"},
    {"inspect-checkpoint", inspect_checkpoint, "the tensors of a safetensors file"},
}};

void print_help() {
  std::cout << "contextpool <subcommand> [options]\n\n";
  for (const auto& s : kSubcommands)
    std::cout << "  " << s.name << std::string(20 - std::string_view(s.name).size(), ' ') << s.help << "\n";
  std::cout << "\n`contextpool <subcommand> --help` lists its options.\n";
}

int dispatch(const Arguments& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    print_help();
    return arguments.empty() ? kWrong : 0;
  }
  std::vector<std::string> names;
  for (const auto& s : kSubcommands) {
    if (arguments[0] == s.name) return s.run({arguments.begin() + 1, arguments.end()});
    names.emplace_back(s.name);
  }
  throw Wrong("unknown subcommand \"" + arguments[0] + "\"; did you mean \"" + nn::nearest(arguments[0], names) +
              "\"?");
}

int complain(std::string message, int status) {
  for (auto& c : message) c = c == '\n' ? ' ' : c;
  if (message.rfind("contextpool: ", 0) != 0) message = "contextpool: " + message;
  std::cerr << message << '\n';
  return status;
}

}  // namespace
}  // namespace contextpool::cli

int main(int count, char** words) {
  using namespace contextpool::cli;  // NOLINT: the program's own names
  try {
    return dispatch(Arguments(words + 1, words + count));
  } catch (const Wrong& e) {
    return complain(e.what(), kWrong);
  } catch (const c10::Error& e) {
    return complain(e.what_without_backtrace(), kFailed);
  } catch (const std::exception& e) {
    return complain(e.what(), kFailed);
  }
}
