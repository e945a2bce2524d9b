#include "contextpool/data/recall.h"

#include <torch/torch.h>

#include <numeric>
#include <utility>
#include <vector>

#include "base/words.h"
#include "contextpool/data/random.h"

namespace contextpool::data {
namespace {

constexpr std::int64_t kMaxCount = 1 << 20;  // symbols, pairs and queries

using Symbols = std::vector<std::int64_t>;

// The draws of one row, one after the other.
class Draws {
 public:
  Draws(std::int64_t seed, std::int64_t step, std::int64_t row)
      : bits_(random_bits({word(seed), word(step), word(row)})) {}

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
  Symbols pairs;             // 2 P symbols
  Symbols queries, answers;  // Q each
};

Row recall_row(const RecallOptions& o, Draws draws) {
  const auto keys = (o.vocabulary - 1) / 2, values = o.vocabulary - 1 - keys;
  const auto chosen = draws.different(o.pairs, keys);
  Row row;
  for (const auto key : chosen) {
    row.pairs.push_back(1 + key);
    row.pairs.push_back(1 + keys + draws.below(values));
  }
  for (const auto pair : draws.different(o.queries, o.pairs)) {
    row.queries.push_back(row.pairs[2 * pair]);
    row.answers.push_back(row.pairs[2 * pair + 1]);
  }
  return row;
}

Row hops_row(const RecallOptions& o, Draws draws) {
  const auto chain = draws.different(o.pairs + 1, o.vocabulary - 1);
  Row row;
  for (const auto at : draws.different(o.pairs, o.pairs)) {
    row.pairs.push_back(1 + chain[at]);
    row.pairs.push_back(1 + chain[at + 1]);
  }
  for (const auto at : draws.different(o.queries, o.pairs + 1 - o.hops)) {
    row.queries.push_back(1 + chain[at]);
    row.answers.push_back(1 + chain[at + o.hops]);
  }
  return row;
}

void check(bool good, const char* name, std::int64_t least, std::int64_t most, std::int64_t value) {
  TORCH_CHECK_VALUE(good, "recall: ", name, " must be from ", least, " to ", most, ", but is ", value);
}

}  // namespace

void validate(const RecallOptions& o) {
  check_word("recall", "kind", o.kind, {"recall", "hops"});
  const auto within = [](const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
    check(value >= least && value <= most, name, least, most, value);
  };
  within("pairs", o.pairs, 1, kMaxCount);
  if (o.kind == "recall") {
    within("vocabulary", o.vocabulary, 2 * o.pairs + 1, 4 * kMaxCount);
    within("queries", o.queries, 1, o.pairs);
  } else {
    within("vocabulary", o.vocabulary, o.pairs + 2, 4 * kMaxCount);
    within("hops", o.hops, 1, o.pairs);
    within("queries", o.queries, 1, o.pairs + 1 - o.hops);
  }
}

Batch make_recall(const RecallOptions& options, std::int64_t seed, std::int64_t step, Rows rows) {
  validate(options);
  const auto length = 2 * (options.pairs + options.queries), count = rows.end - rows.begin;
  Batch batch{torch::zeros({count, length}, torch::kInt64), torch::full({count, length}, kNotAsked, torch::kInt64)};
  auto input = batch.input.accessor<std::int64_t, 2>(), target = batch.target.accessor<std::int64_t, 2>();
  for (std::int64_t r = 0; r < count; ++r) {
    const Draws draws(seed, step, rows.begin + r);
    const auto row = options.kind == "recall" ? recall_row(options, draws) : hops_row(options, draws);
    for (std::int64_t i = 0; i < 2 * options.pairs; ++i) input[r][i] = row.pairs[i];
    for (std::int64_t i = 0; i < options.queries; ++i) {
      input[r][2 * (options.pairs + i)] = row.queries[i];
      target[r][2 * (options.pairs + i)] = row.answers[i];
    }
  }
  return batch;
}

}  // namespace contextpool::data
