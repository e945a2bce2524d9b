#include "contextpool/data/batch.h"

#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include <vector>

#include "contextpool/data/random.h"

namespace contextpool::data {

Rows part_of(Rows rows, std::int64_t index, std::int64_t parts) {
  TORCH_CHECK_VALUE(parts > 0 && index >= 0 && index < parts, "contextpool: part ", index, " of ", parts,
                    " does not exist");
  const auto count = rows.end - rows.begin;
  return {rows.begin + count * index / parts, rows.begin + count * (index + 1) / parts};
}

void check_window(const Text& text, Split split, std::int64_t length) {
  TORCH_CHECK_VALUE(length > 0, "contextpool: a window of ", length, " symbols; expected at least 1");
  TORCH_CHECK_VALUE(text.size(split) > length, text.path(), ": the split \"", splits()[static_cast<int>(split)],
                    "\" has ", text.size(split), " symbols, too few for a window of ", length,
                    " and the symbol after it; give a longer text or a smaller length");
}

Batch make_batch(const Text& text, Split split, std::int64_t length, std::int64_t seed, std::int64_t step, Rows rows) {
  check_window(text, split, length);
  TORCH_CHECK_VALUE(rows.begin < rows.end, "contextpool: a batch without rows");
  std::vector<at::Tensor> windows;
  for (auto row = rows.begin; row < rows.end; ++row) {
    const auto bits = random_bits(
        {static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(row)});
    windows.push_back(text.symbols(split, below(text.size(split) - length, bits), length + 1));
  }
  const auto all = at::stack(windows);
  return {all.slice(1, 0, length).contiguous(), all.slice(1, 1, length + 1).contiguous()};
}

}  // namespace contextpool::data
