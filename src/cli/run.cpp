// contextpool <subcommand> [options]. Errors are one line on stderr.
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "base/words.h"
#include "cli/cli.h"
#include "cli/import.h"
#include "contextpool/runtime/processes.h"

namespace contextpool::cli {
namespace {

struct Subcommand {
  const char* name;
  int (*run)(const Arguments&);
  const char* help;
};
constexpr std::array<Subcommand, 14> kSubcommands = {{
    {"train", train, "train a model, or resume a run"},
    {"eval", eval, "the score of a trained model on held-out data"},
    {"generate", generate, "text from a trained language model"},
    {"classify", classify, "the likeliest classes of pictures"},
    {"translate", translate, "lines of text by a trained translator"},
    {"average", average, "the mean of the last checkpoints of a run, as one model"},
    {"data", data, "vocabularies for translation"},
    {"import", import_weights, "weights of timm, torchvision or Microsoft as a model of this program"},
    {"models", models, "the named models, their parameters and MACs"},
    {"inspect", inspect, "a page that shows what a model's ContextPool looks at"},
    {"inspect-checkpoint", inspect_checkpoint, "the tensors of a safetensors file"},
    {"bench", bench, "what a training step costs, and how fast data are loaded"},
    {"reproduce", reproduce, "the runs of a table of experiments, and the table"},
    {"doctor", doctor, "what this build and this machine have, and what is wrong with it"},
}};

void print_help() {
  std::cout << "contextpool <subcommand> [options]\ncontextpool --version | --help | help [subcommand]\n\n";
  for (const auto& s : kSubcommands)
    std::cout << "  " << s.name << std::string(20 - std::string_view(s.name).size(), ' ') << s.help << "\n";
  std::cout << "\n`contextpool <subcommand> --help` lists its options.\n";
}

int dispatch(const Arguments& arguments) {
  const auto word = arguments.empty() ? "" : arguments[0];
  if (word == "--version" || word == "version") {
    std::cout << version() << "\n";
    return 0;
  }
  if (word == "help" && arguments.size() > 1) return dispatch({arguments[1], "--help"});
  if (word.empty() || word == "--help" || word == "-h" || word == "help") {
    print_help();
    return arguments.empty() ? kUsageError : 0;
  }
  std::vector<std::string> names;
  for (const auto& s : kSubcommands) {
    if (word == s.name) return s.run({arguments.begin() + 1, arguments.end()});
    names.emplace_back(s.name);
  }
  throw UsageError("unknown subcommand \"" + word + "\"" + did_you_mean(word, names) + " (--help lists them)");
}

int complain(std::string message, int status) {
  for (auto& c : message) c = c == '\n' ? ' ' : c;
  if (message.rfind("contextpool: ", 0) != 0) message = "contextpool: " + message;
  std::cerr << message << '\n';
  return status;
}

int complain_of_memory() {
  return complain("out of memory; a smaller --batch or --length needs less, and so does --accumulate in training",
                  kFailed);
}

// On the CPU, c10 has no type of its own for it.
bool is_of_memory(const c10::Error& e) {
  return std::string_view(e.what_without_backtrace()).find("DefaultCPUAllocator: can't allocate") !=
         std::string_view::npos;
}

// What was printed may not have been written: to a full disk, say.
int check_output() {
  errno = 0;
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (written) return 0;
  const std::string why = errno == 0 ? "" : ": " + std::generic_category().message(errno);
  return complain("standard output: cannot write" + why, kFailed);
}

}  // namespace

std::string version() { return "contextpool " CONTEXTPOOL_VERSION ", torch " TORCH_VERSION; }

int run(const Arguments& arguments) {
  try {
    const int status = dispatch(arguments);
    const bool trained = !arguments.empty() && arguments[0] == "train";  // what counts is in its folder
    return status == 0 && !trained ? check_output() : status;
  } catch (const UsageError& e) {
    return complain(e.what(), kUsageError);
  } catch (const runtime::LostProcess& e) {
    complain(e.what(), kFailed);
    std::_Exit(kFailed);  // threads may wait for the lost process for ever
  } catch (const c10::OutOfMemoryError&) {
    return complain_of_memory();
  } catch (const std::bad_alloc&) {
    return complain_of_memory();
  } catch (const c10::Error& e) {
    if (is_of_memory(e)) return complain_of_memory();
    return complain(e.what_without_backtrace(), kFailed);
  } catch (const std::exception& e) {
    return complain(e.what(), kFailed);
  }
}

}  // namespace contextpool::cli
