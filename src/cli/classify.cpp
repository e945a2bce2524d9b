// contextpool classify: the likeliest classes of pictures.
#include <cstdio>
#include <iostream>
#include <span>

#include "cli/cli.h"
#include "contextpool/io/files.h"
#include "contextpool/runtime/device.h"
#include "contextpool/tasks/image_classifier.h"

namespace contextpool::cli {

int classify(const Arguments& arguments) {
  ModelFlags flags;
  std::vector<std::string> files;
  std::int64_t top = 5;
  CLI::App app("Prints the likeliest classes of pictures (JPEG or PNG), one line a picture.", "contextpool classify");
  flags.add_to(app);
  app.add_option("files", files, "pictures")->take_all();
  app.add_option("--top", top, "classes to print for each picture");
  if (!parse(app, arguments)) return 0;
  if (files.empty()) throw UsageError("a picture FILE is needed");
  if (top < 1) throw UsageError("--top is " + std::to_string(top) + ", expected at least 1");
  const auto device = as_command([&] { return runtime::device_named(flags.device); });

  tasks::TrainedClassifier classifier(flags.file(), device);
  int status = 0;
  for (const auto& file : files) {
    try {
      const auto bytes = io::read_file(file);
      const auto found = classifier.classify(std::as_bytes(std::span(bytes)), top);
      std::cout << file << ":";
      for (const auto& [name, probability] : found) std::printf("  %s %.1f %%", name.c_str(), 100 * probability);
      std::cout << "\n" << std::flush;
    } catch (const std::exception& e) {  // the others are still classified
      const std::string what = e.what();
      std::cerr << "contextpool: " << (what.find(file) == std::string::npos ? file + ": " : "")
                << what.substr(0, what.find('\n')) << "\n";
      status = kFailed;
    }
  }
  return status;
}

}  // namespace contextpool::cli
