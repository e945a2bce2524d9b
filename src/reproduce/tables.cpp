#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "base/words.h"
#include "reproduce/table.h"
#include "reproduce/tables/tables.h"

namespace contextpool::reproduce {
namespace {

template <typename Item, typename Name>
const Item& find(const std::vector<Item>& items, const std::string& wanted, const std::string& what, Name name) {
  std::vector<std::string> names;
  for (const auto& item : items) {
    if (name(item) == wanted) return item;
    names.push_back(name(item));
  }
  std::string list;
  for (const auto& n : names) list += (list.empty() ? "" : ", ") + n;
  TORCH_CHECK_VALUE(false, what, " \"", wanted, "\"", did_you_mean(wanted, names), " (there are ", list, ")");
}

void expect(bool good, const Table& table, const Plan& plan, const std::string& what) {
  if (!good) throw std::logic_error(table.name + ", " + plan.scale + ": " + what);
}

}  // namespace

const std::vector<Table>& tables() {
  static const std::vector<Table> all = {
      table_5(),   mixers(),  recall(),  k_hop(),    predictor(), placements(),
      ablations(), table_4(), table_6(), table_s1(), vit_forms(), resnet_forms(),
  };
  return all;
}

const Table& find_table(const std::string& name) {
  return find(tables(), name, "unknown table", [](const Table& t) { return t.name; });
}

const Plan& find_plan(const Table& table, const std::string& scale) {
  return find(table.plans, scale, table.name + " has no scale", [](const Plan& p) { return p.scale; });
}

const Row& find_row(const Plan& plan, const std::string& name) {
  return find(plan.rows, name, "unknown row", [](const Row& r) { return r.name; });
}

void check(const Table& table) {
  for (const auto& plan : table.plans) {
    std::set<std::string> names, scores;
    for (const auto& score : plan.recipe.scores) scores.insert(score.name);
    expect(!plan.rows.empty() && !scores.empty(), table, plan, "no rows or no score");
    for (const auto& row : plan.rows) {
      const auto plain = row.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-.") == std::string::npos;
      expect(plain && !row.name.empty(), table, plan, "row \"" + row.name + "\" is no name of a folder");
      expect(names.insert(row.name).second, table, plan, "two rows \"" + row.name + "\"");
      for (const auto& [score, figure] : row.paper) expect(scores.contains(score), table, plan, "no score " + score);
      expect(row.paper.empty() || plan.recipe.stands_for.empty(), table, plan, "the paper's figure on other data");
    }
    for (const auto& row : plan.rows)
      expect(row.against.empty() || names.contains(row.against), table, plan, row.against);
    for (const auto& claim : plan.claims) {
      expect(names.contains(claim.row) && names.contains(claim.than), table, plan, "claim \"" + claim.text + "\"");
      expect(claim.score.empty() || scores.contains(claim.score), table, plan, "claim by " + claim.score);
    }
  }
}

}  // namespace contextpool::reproduce
