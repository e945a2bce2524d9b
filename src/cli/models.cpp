// contextpool models: the registry as a table.
#include <contextpool/models/registry.h>

#include <cstdio>

#include "cli/cli.h"

namespace contextpool::cli {

int models(const Arguments& arguments) {
  std::int64_t length = 0;
  CLI::App app("Lists the named models. FLOPs are of one token's forward pass.", "contextpool models");
  app.add_option("--length", length, "tokens of a row, for the FLOPs; else each model's own");
  if (!parse(app, arguments)) return 0;
  if (app.count("--length") > 0 && length < 1)
    throw Wrong("--length is " + std::to_string(length) + ", expected at least 1");

  constexpr double kMega = 1e6;
  std::printf("%-22s %11s %8s %14s %18s  %s\n", "model", "parameters", "length", "MFLOPs/token", "with pooling sum",
              "");
  for (const auto& model : contextpool::models::language_models()) {
    const auto row = length > 0 ? length : model.options.length;
    const auto cost = contextpool::models::cost(model.options, row);
    std::printf("%-22s %11lld %8lld %14.2f %18.2f  %s\n", model.name.c_str(), static_cast<long long>(cost.parameters),
                static_cast<long long>(row), cost.flops / kMega, (cost.flops + cost.pooling_flops) / kMega,
                model.summary.c_str());
  }
  return 0;
}

}  // namespace contextpool::cli
