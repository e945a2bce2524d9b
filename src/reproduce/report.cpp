#include "reproduce/report.h"

#include <algorithm>
#include <cstdio>
#include <set>

namespace contextpool::reproduce {
namespace {

constexpr double kMega = 1e6, kGiga = 1e9, kMilli = 1e-3;
const char* const kNothing = "";

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string fixed(double value, int digits) { return format("%.*f", digits, value); }
std::string with_sign(double value, int digits) { return format("%+.*f", digits, value); }

// A Markdown table whose columns are aligned, so that it can be read as text too.
class Grid {
 public:
  explicit Grid(std::vector<std::string> head) : lines_{std::move(head)} {}
  void add(std::vector<std::string> cells) { lines_.push_back(std::move(cells)); }
  std::string text() const {
    std::vector<std::size_t> widths(lines_.front().size(), 1);
    for (const auto& line : lines_) {
      for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
    }
    std::string all;
    for (std::size_t n = 0; n < lines_.size(); ++n) {
      for (std::size_t i = 0; i < widths.size(); ++i) {
        all += "| " + lines_[n][i] + std::string(widths[i] - lines_[n][i].size() + 1, ' ');
      }
      all += "|\n";
      if (n > 0) continue;
      for (const auto width : widths) all += "|" + std::string(width + 2, '-');
      all += "|\n";
    }
    return all;
  }

 private:
  std::vector<std::vector<std::string>> lines_;
};

std::vector<const Result*> of_row(const std::vector<Result>& results, const std::string& row) {
  std::vector<const Result*> found;
  for (const auto& r : results) {
    if (r.row == row) found.push_back(&r);
  }
  return found;
}

std::optional<Summary> summary_of(const std::vector<Result>& results, const std::string& row,
                                  const std::string& score) {
  std::vector<double> values;
  for (const auto* r : of_row(results, row)) values.push_back(r->scores.at(score));
  if (values.empty()) return std::nullopt;
  return summarize(values);
}

std::string mean_and_spread(const std::optional<Summary>& s, int digits) {
  if (!s) return "-";
  const auto spread = s->deviation ? " (" + fixed(*s->deviation, digits) + ")" : std::string();
  return fixed(s->mean, digits) + spread;
}

std::string mean_and_interval(const std::vector<double>& values, int digits) {
  if (values.empty()) return "-";
  const auto s = summarize(values);
  auto mean = with_sign(s.mean, digits);
  if (!s.half) return mean;
  return mean + " [" + with_sign(s.mean - *s.half, digits) + ", " + with_sign(s.mean + *s.half, digits) + "]";
}

class Report {
 public:
  explicit Report(const ReportRequest& request)
      : request_(request), plan_(*request.setting->plan), recipe_(plan_.recipe), results_(request.results) {}
  std::string text() const;

 private:
  std::string title() const;
  std::string main_grid() const;
  std::string other_grid(const Score& score) const;
  std::string claims() const;
  std::string notes() const;
  std::string commands() const;
  std::string against(const Row& row) const;
  std::string difference(const Row& row, const Score& score) const;
  double mean_of(const std::string& row, double Result::*figure) const;
  bool has_paper(const Score& score) const;
  bool has_results(const std::string& row) const { return !of_row(results_, row).empty(); }

  const ReportRequest& request_;
  const Plan& plan_;
  const Recipe& recipe_;
  const std::vector<Result>& results_;
};

std::string Report::against(const Row& row) const {
  if (!request_.against.empty()) return request_.against;
  return row.against.empty() ? plan_.rows.front().name : row.against;
}

// With other flags than the recipe's, or on other data, the paper's figures are of something else.
bool Report::has_paper(const Score& score) const {
  if (!recipe_.stands_for.empty() || !request_.setting->more.empty()) return false;
  return std::any_of(plan_.rows.begin(), plan_.rows.end(),
                     [&](const Row& row) { return row.paper.contains(score.name); });
}

std::string Report::title() const {
  const auto& setting = *request_.setting;
  std::string text = "# " + request_.table->title + ", scale " + plan_.scale + "\n\n";
  std::string data;
  std::set<std::string> named;
  for (const auto& [role, file] : setting.data) {
    if (named.insert(file.name).second) data += (data.empty() ? "" : ", ") + file.described();
  }
  text += recipe_.described;
  if (!setting.more.empty()) text += "; changed by " + setting.more;
  if (!data.empty()) text += "; data: " + data;
  if (!recipe_.stands_for.empty()) {
    text += ". A stand-in for " + recipe_.stands_for +
            ": these figures can be compared with each other only, not with the paper's";
  }
  return text + ".\n\n";
}

std::string Report::difference(const Row& row, const Score& score) const {
  const auto than = against(row);
  if (than == row.name) return kNothing;
  return mean_and_interval(paired_differences(results_, row.name, than, score.name), score.digits);
}

double Report::mean_of(const std::string& row, double Result::*figure) const {
  const auto found = of_row(results_, row);
  double sum = 0;
  for (const auto* r : found) sum += r->*figure;
  return found.empty() ? 0 : sum / static_cast<double>(found.size());
}

std::string Report::main_grid() const {
  const auto& score = recipe_.scores.front();
  const bool paper = has_paper(score);
  std::vector<std::string> head = {"row", "name"};
  if (paper) head.emplace_back("paper");
  for (const auto* name :
       {"n", "difference [95 %]", "to", "parameters", "MACs", "with pooling", "memory", "ms a step", "speed"})
    head.emplace_back(name);
  head.insert(head.begin() + (paper ? 3 : 2), score.name + (score.lower_is_better ? " (lower is better)" : ""));
  Grid grid(head);
  for (const auto& row : plan_.rows) {
    if (!has_results(row.name)) continue;
    std::vector<std::string> cells = {row.label, row.name};
    if (paper) cells.push_back(row.paper.contains(score.name) ? fixed(row.paper.at(score.name), 2) : kNothing);
    const auto found = of_row(results_, row.name);
    cells.push_back(mean_and_spread(summary_of(results_, row.name, score.name), score.digits));
    cells.push_back(std::to_string(found.size()));
    const auto than = against(row);
    cells.push_back(difference(row, score));
    cells.push_back(than == row.name ? kNothing : than);
    const auto seconds = mean_of(row.name, &Result::seconds_a_step);
    const auto other = mean_of(than, &Result::seconds_a_step);
    cells.push_back(fixed(static_cast<double>(found.front()->parameters) / kMega, 3) + " M");
    cells.push_back(fixed(found.front()->macs / kMega, 2) + " M");
    cells.push_back(fixed(found.front()->macs_with_pooling / kMega, 2) + " M");
    cells.push_back(fixed(mean_of(row.name, &Result::memory) / kGiga, 2) + " GB");
    cells.push_back(fixed(seconds / kMilli, 1));
    cells.push_back(other > 0 && seconds > 0 ? fixed(other / seconds, 2) : kNothing);
    grid.add(cells);
  }
  return grid.text() + "\n";
}

std::string Report::other_grid(const Score& score) const {
  const bool paper = has_paper(score);
  std::vector<std::string> head = {"row", score.name + (score.lower_is_better ? " (lower is better)" : ""), "n",
                                   "difference [95 %]", "to"};
  if (paper) head.insert(head.begin() + 1, "paper");
  Grid grid(head);
  for (const auto& row : plan_.rows) {
    if (!has_results(row.name)) continue;
    const auto than = against(row);
    std::vector<std::string> cells = {
        row.label, mean_and_spread(summary_of(results_, row.name, score.name), score.digits),
        std::to_string(of_row(results_, row.name).size()), difference(row, score), than == row.name ? kNothing : than};
    if (paper)
      cells.insert(cells.begin() + 1, row.paper.contains(score.name) ? fixed(row.paper.at(score.name), 2) : kNothing);
    grid.add(cells);
  }
  return grid.text() + "\n";
}

std::string Report::claims() const {
  if (plan_.claims.empty()) return "";
  Grid grid({"claim", "difference [95 %]", "pairs", "what came out"});
  for (const auto& claim : plan_.claims) {
    const auto name = claim.score.empty() ? recipe_.scores.front().name : claim.score;
    const auto score =
        std::find_if(recipe_.scores.begin(), recipe_.scores.end(), [&](const Score& s) { return s.name == name; });
    if (!has_results(claim.row) || !has_results(claim.than)) continue;
    const auto pairs = paired_differences(results_, claim.row, claim.than, name);
    const auto result = pairs.empty() ? Verdict::unknown : verdict(summarize(pairs), score->lower_is_better);
    grid.add({claim.text + " (" + claim.row + ", " + claim.than + ")", mean_and_interval(pairs, score->digits),
              std::to_string(pairs.size()), word(result)});
  }
  return "## Claims\n\n" + grid.text() + "\n";
}

std::string Report::notes() const {
  std::set<std::string> places, commits, per;
  int at_once = 1;
  for (const auto& r : results_) {
    places.insert(r.where);
    commits.insert(r.commit);
    per.insert(r.per);
    at_once = std::max(at_once, r.at_once);
  }
  const auto joined = [](const std::set<std::string>& words) {
    std::string all;
    for (const auto& word : words) all += (all.empty() ? "" : "; ") + word;
    return all;
  };
  std::string text =
      "Mean, and the standard deviation between seeds in parentheses. Differences are paired by seed, with ";
  text +=
      "the 95 % interval by Student's t; where it has 0 in it, these runs show no difference. MACs are multiply-adds ";
  text += "of a forward pass (of one " + joined(per) + "), without and with the pooling sum as its formula reads. ";
  text += "Memory is the most in training. Speed is that of training, relative to the row compared with";
  if (at_once > 1) {
    text += "; up to " + std::to_string(at_once) + " runs shared the machine, so that it is not that of a run alone";
  }
  text += ".\n\n";
  if (!results_.empty()) text += "Trained on: " + joined(places) + ". Commit: " + joined(commits) + ".\n\n";
  std::string absent;
  for (const auto& row : plan_.rows) {
    if (!has_results(row.name)) absent += (absent.empty() ? "" : ", ") + row.name;
  }
  if (!absent.empty()) text += "Without results: " + absent + ".\n\n";
  if (request_.failed.empty()) return text;
  text += "Failed:\n\n";
  for (const auto& failure : request_.failed) text += "- " + failure.job + ": " + failure.line + "\n";
  return text + "\n";
}

std::string Report::commands() const {
  std::string text = "## Commands\n\nOf each row, with its seed in SEED and the run's folder in RUN:\n\n```text\n";
  Setting setting = *request_.setting;
  for (const auto& row : plan_.rows) {
    if (!has_results(row.name)) continue;
    const Job job{&row, 0};
    const JobFiles files(setting.out, job);
    auto train = commands_of(setting, job, /*resume=*/false).front();
    for (std::size_t i = 0; i + 1 < train.size(); ++i) {
      if (train[i] == "--seed") train[i + 1] = "SEED";
      if (train[i] == "--run") train[i + 1] = "RUN";
    }
    text += "# " + row.name + "\ncontextpool " + shell_line(train) + "\n";
  }
  const Job job{&plan_.rows.front(), 0};
  auto rest = commands_of(setting, job, /*resume=*/false);
  rest.erase(rest.begin());
  if (!rest.empty()) text += "# then, for every row\n";
  const auto run = JobFiles(setting.out, job).run.string();
  for (auto& words : rest) {
    for (auto& word : words) {
      if (const auto at = word.find(run); at != std::string::npos) word.replace(at, run.size(), "RUN");
    }
    text += "contextpool " + shell_line(words) + "\n";
  }
  return text + "```\n";
}

std::string Report::text() const {
  std::string text = title() + main_grid();
  for (std::size_t i = 1; i < recipe_.scores.size(); ++i) text += other_grid(recipe_.scores[i]);
  return text + notes() + claims() + commands();
}

}  // namespace

std::vector<double> paired_differences(const std::vector<Result>& results, const std::string& row,
                                       const std::string& than, const std::string& score) {
  std::vector<double> differences;
  for (const auto* a : of_row(results, row)) {
    for (const auto* b : of_row(results, than)) {
      if (a->seed == b->seed) differences.push_back(a->scores.at(score) - b->scores.at(score));
    }
  }
  return differences;
}

std::string report(const ReportRequest& request) { return Report(request).text(); }

}  // namespace contextpool::reproduce
