#include "contextpool/data/recall.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <numeric>
#include <utility>
#include <vector>

#include "base/words.h"
#include "contextpool/data/random.h"

namespace contextpool::data {
namespace {

constexpr std::int64_t kMaxCount = 1 << 20;  // pairs and queries

using Symbols = std::vector<std::int64_t>;

// The draws of one row, one after the other.
class Draws {
 public:
  Draws(Split split, std::int64_t seed, std::int64_t step, std::int64_t row)
      : bits_(random_bits({static_cast<std::uint64_t>(split), word(seed), word(step), word(row)})) {}

  std::int64_t below(std::int64_t count) { return data::below(count, random_bits({bits_, count_++})); }

  // `count` different numbers of 0 .. size - 1, in random order.
  Symbols different(std::int64_t count, std::int64_t size) {
    Symbols all(size);
    std::iota(all.begin(), all.end(), std::int64_t{0});
    for (std::int64_t i = 0; i < count; ++i) std::swap(all[i], all[i + below(size - i)]);
    all.resize(count);
    return all;
  }

 private:
  static std::uint64_t word(std::int64_t number) { return static_cast<std::uint64_t>(number); }

  std::uint64_t bits_, count_ = 0;
};

struct Row {
  Symbols symbols;
  std::vector<std::pair<std::int64_t, std::int64_t>> answers;  // where, and which
};

Row recall_row(const RecallOptions& o, Draws draws) {
  const auto keys = (o.symbols - 1) / 2, values = o.symbols - 1 - keys;
  Row row;
  for (const auto key : draws.different(o.pairs, keys)) {
    row.symbols.push_back(1 + key);
    row.symbols.push_back(1 + keys + draws.below(values));
  }
  for (std::int64_t i = 0; i < o.queries; ++i) {
    const auto pair = draws.below(o.pairs);
    row.answers.emplace_back(row.symbols.size(), row.symbols[2 * pair + 1]);
    row.symbols.push_back(row.symbols[2 * pair]);
    row.symbols.push_back(0);
  }
  return row;
}

Row hops_row(const RecallOptions& o, Draws draws) {
  const auto chain = draws.different(o.pairs + 1, o.symbols - 1 - o.hops);
  const auto first = 1 + o.hops;  // symbol of the chain
  Row row;
  for (const auto at : draws.different(o.pairs, o.pairs)) {
    row.symbols.push_back(first + chain[at]);
    row.symbols.push_back(first + chain[at + 1]);
  }
  for (std::int64_t i = 0; i < o.queries; ++i) {
    const auto hops = 1 + draws.below(o.hops);
    const auto at = draws.below(o.pairs + 1 - hops);
    row.symbols.push_back(hops);
    row.answers.emplace_back(row.symbols.size(), first + chain[at + hops]);
    row.symbols.push_back(first + chain[at]);
  }
  return row;
}

}  // namespace

std::vector<std::string> recall_kinds() { return {"recall", "k-hop"}; }

void validate(const RecallOptions& o) {
  check_word("recall", "kind", o.kind, recall_kinds());
  const auto within = [&](const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
    TORCH_CHECK_VALUE(value >= least && value <= most, o.kind, ": ", name, " must be from ", least, " to ", most,
                      ", but is ", value);
  };
  within("pairs", o.pairs, 1, kMaxCount);
  within("queries", o.queries, 1, kMaxCount);
  if (o.kind == "recall") {
    within("symbols", o.symbols, 2 * o.pairs + 1, 4 * kMaxCount);
  } else {
    within("hops", o.hops, 1, o.pairs);
    within("symbols", o.symbols, o.pairs + o.hops + 2, 4 * kMaxCount);
  }
}

Batch make_recall(const RecallOptions& options, Split split, std::int64_t seed, std::int64_t step, Rows rows) {
  validate(options);
  const auto length = 2 * (options.pairs + options.queries), count = rows.end - rows.begin;
  Batch batch{at::empty({count, length}, at::kLong), at::full({count, length}, kNotAsked, at::kLong)};
  auto input = batch.input.accessor<std::int64_t, 2>(), target = batch.target.accessor<std::int64_t, 2>();
  for (std::int64_t r = 0; r < count; ++r) {
    const Draws draws(split, seed, step, rows.begin + r);
    const auto row = options.kind == "recall" ? recall_row(options, draws) : hops_row(options, draws);
    for (std::int64_t i = 0; i < length; ++i) input[r][i] = row.symbols[i];
    for (const auto& [at, answer] : row.answers) target[r][at] = answer;
  }
  return batch;
}

}  // namespace contextpool::data
