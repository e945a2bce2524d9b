// The table as Markdown: the rows by the first score with everything about them, the other scores, what became of the
// claims, and the command of each row. A difference is paired by seed; a figure of the paper stands only beside figures
// on the paper's data.
#pragma once

#include <string>
#include <vector>

#include "reproduce/runner.h"

namespace contextpool::reproduce {

struct ReportRequest {
  const Table* table = nullptr;
  const Setting* setting = nullptr;
  std::string against;  // the row that all are compared with, instead of each row's own; empty: these
  std::vector<Result> results;
  std::vector<Failure> failed;
};

std::string report(const ReportRequest& request);

// a - b of the seeds that both have.
std::vector<double> paired_differences(const std::vector<Result>& results, const std::string& row,
                                       const std::string& than, const std::string& score);

}  // namespace contextpool::reproduce
