// contextpool models: the registry as a table.
#include <contextpool/models/registry.h>

#include <cstdio>

#include "cli/cli.h"

namespace contextpool::cli {
namespace {

std::string scaled(double count) {
  constexpr double kGiga = 1e9, kMega = 1e6;
  char text[32];
  std::snprintf(text, sizeof text, count >= kGiga ? "%.2fG" : "%.2fM", count / (count >= kGiga ? kGiga : kMega));
  return text;
}

}  // namespace

int models(const Arguments& arguments) {
  std::int64_t length = 0;
  std::string family;
  CLI::App app("Lists the named models. MACs (multiply-adds) are those of a forward pass.", "contextpool models");
  app.add_option("--length", length, "tokens of a row, for the MACs; else each model's own");
  app.add_option("--family", family, "list the models of this family only");
  if (!parse(app, arguments)) return 0;
  if (app.count("--length") > 0 && length < 1)
    throw UsageError("--length is " + std::to_string(length) + ", expected at least 1");
  if (!family.empty()) as_command([&] { contextpool::models::find_family(family); });

  for (const auto* f : contextpool::models::families()) {
    if (!family.empty() && f->name() != family) continue;
    std::printf("%-28s %11s %10s %12s  %-22s %s\n", f->name().c_str(), "parameters", "MACs", "with pooling", "of one",
                "");
    for (const auto& model : f->models()) {
      const auto cost = f->cost(model.options, length);
      constexpr double kPerMac = 2;  // floating-point operations
      std::printf("%-28s %11lld %10s %12s  %-22s %s\n", model.name.c_str(), static_cast<long long>(cost.parameters),
                  scaled(cost.flops / kPerMac).c_str(), scaled((cost.flops + cost.pooling_flops) / kPerMac).c_str(),
                  cost.per.c_str(), model.summary.c_str());
    }
  }
  return 0;
}

}  // namespace contextpool::cli
