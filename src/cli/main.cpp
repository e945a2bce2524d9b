// contextpool <subcommand> [options]
#include "cli/cli.h"

int main(int count, char** words) { return contextpool::cli::run({words + 1, words + count}); }
