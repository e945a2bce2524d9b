// The ablations of the paper's Tables 1, 2 and 3, whose rows are translators and classifiers, as language models.
#include "reproduce/tables/tables.h"

namespace contextpool::reproduce {
namespace {

std::vector<Row> rows(const std::string& plain, const std::string& pooled) {
  const auto cp = [&](const std::string& flags) { return "--model " + pooled + " --pool-size-range 0" + flags; };
  return {{"plain", "plain", "--model " + plain},
          {"cp", "ContextPool", cp("")},
          {"unnormalized", "unnormalized weights", cp(" --pool-weights unnormalized")},
          {"uniform", "uniform weights", cp(" --pool-weights uniform")},
          {"nonlocal", "nonlocal weights", cp(" --pool-weights nonlocal")},
          {"no-locality", "no locality", cp(" --pool-locality none")},
          {"fixed-window", "fixed window", cp(" --pool-locality fixed_window")},
          {"adaptive-window", "adaptive window", cp(" --pool-locality adaptive_window")},
          {"random-sparse", "random sparse", cp(" --pool-locality random_sparse")},
          {"mlp", "MLP as predictor", cp(" --pool-predictor mlp")}};
}

// In the paper the full module is better than each of its parts alone.
std::vector<Claim> claims() {
  std::vector<Claim> all = {{"ContextPool is better than the plain model", "cp", "plain"}};
  for (const auto& row : rows("", "")) {
    if (row.name != "plain" && row.name != "cp") all.push_back({"better than " + row.label, "cp", row.name});
  }
  return all;
}

}  // namespace

Table ablations() {
  return {"ablations",
          "Tables 1 to 3 (ablations), as language models",
          {{"smoke", text_smoke(), rows("tiny", "cp-tiny"), claims()},
           {"demo", text_demo(), rows("tiny", "cp-tiny"), claims()},
           {"small", text_small(), rows("transformer-6", "cp-transformer-6"), claims()}}};
}

}  // namespace contextpool::reproduce
