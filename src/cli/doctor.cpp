// contextpool doctor: what this build and this machine have, and what is wrong with it.
#include <iostream>

#include "cli/cli.h"

namespace contextpool::cli {

int doctor(const Arguments& arguments) {
  CLI::App app("Shows what this build and this machine have, and what is wrong with it.", "contextpool doctor");
  if (!parse(app, arguments)) return 0;
  std::cout << version() << "\n";
  return 0;
}

}  // namespace contextpool::cli
