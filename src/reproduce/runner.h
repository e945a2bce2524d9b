// Runs jobs, several at once, each as processes of this program. The same call goes on where the last one was stopped
// or killed. A job that fails is told of and leaves the others alone.
#pragma once

#include <functional>

#include "reproduce/result.h"

namespace contextpool::reproduce {

struct RunOptions {
  std::filesystem::path program;  // contextpool
  int at_once = 1;
  double minutes = 0;  // after which the jobs are asked to save and stop; 0: no limit
  Machine machine;     // its threads are those of each job
  std::function<void(const std::string& line)> say;
  std::function<bool()> wants_stop;  // asked ten times a second
};

struct Failure {
  std::string job, line;  // the last that it said
};

struct Outcome {
  std::size_t done = 0;  // now or before
  std::size_t left = 0;  // not begun or not finished
  std::vector<Failure> failed;
};

Outcome run_jobs(const Setting& setting, const std::vector<Job>& jobs, const RunOptions& options);

// Makes the folder that results go to, or takes one that is of the same table, scale and data; throws at any other.
// What `setting.data` lacks stays as it was there.
void open_folder(const Setting& setting);
// The data that a folder's results stand on, by role; throws if it is not of this table and scale.
DataFiles data_of_folder(const Setting& setting);

}  // namespace contextpool::reproduce
