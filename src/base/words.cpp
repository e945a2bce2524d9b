#include "base/words.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

namespace contextpool {
namespace {

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const auto change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row.back();
}

// A third of the letters may differ; of short words, two that were exchanged.
bool near(std::size_t changes, std::size_t letters) {
  return 3 * changes <= letters || (changes <= 2 && 2 * changes <= letters);
}

}  // namespace

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known, std::string_view open,
                         std::string_view close) {
  const std::string* nearest = nullptr;
  std::size_t least = 0;
  for (const auto& name : known) {
    const auto changes = name.starts_with(word) && word.size() > 2 ? 1 : distance(word, name);
    if (near(changes, std::max(word.size(), name.size())) && (nearest == nullptr || changes < least)) {
      nearest = &name;
      least = changes;
    }
  }
  if (nearest == nullptr) return {};
  return std::string("; did you mean ").append(open).append(*nearest).append(close).append("?");
}

void check_word(std::string_view who, std::string_view option, std::string_view word,
                const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), word) != known.end()) return;
  std::string list;
  for (const auto& name : known) list += (list.empty() ? "" : ", ") + name;
  TORCH_CHECK_VALUE(false, who, ": ", option, " is \"", word, "\", expected one of ", list, did_you_mean(word, known));
}

}  // namespace contextpool
