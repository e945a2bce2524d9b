// The data that a run was trained on, for subcommands that name a run and no data.
#pragma once

#include <string>
#include <vector>

#include "contextpool/tasks/registry.h"

namespace contextpool::cli {

// `options` (of the kind's evaluation) with those that the run's config.toml has: the data, read as they were then.
// Options in `given` stay, and with "data" among them all do.
OptionList with_data_of_run(OptionList options, const tasks::TaskKind& kind, const std::string& run,
                            const std::vector<std::string>& given);

}  // namespace contextpool::cli
