#include "cli/data_of_run.h"

#include <algorithm>

#include "cli/config.h"
#include "cli/option_flags.h"

namespace contextpool::cli {

OptionList with_data_of_run(OptionList options, const tasks::TaskKind& kind, const std::string& run,
                            const std::vector<std::string>& given) {
  const auto is_given = [&](const std::string& name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  };
  if (run.empty() || is_given("data")) return options;
  const auto config = read_config(run + "/config.toml").values;
  for (const auto& option : kind.train_options()) {
    const auto found = config.find(OptionFlags::dashed(option.name));
    if (found == config.end() || is_given(option.name) || !options.has(option.name)) continue;
    auto value = options.at(option.name);
    std::visit([&](auto& v) { CLI::detail::lexical_cast(found->second.front(), v); }, value);
    options.set(option.name, value);
  }
  return options;
}

}  // namespace contextpool::cli
