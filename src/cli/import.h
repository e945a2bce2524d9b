// contextpool import: the weights of others as a file of ours.
#pragma once

#include "cli/cli.h"

namespace contextpool::cli {

int import_weights(const Arguments& arguments);

}  // namespace contextpool::cli
