// The runs of a plan as a list of jobs, and the commands of each. A job has a folder of its own,
//
//   OUT/NAME/run/           the training run
//   OUT/NAME/job.json       its commands before anything is filled in: another recipe is another job
//   OUT/NAME/K.out, K.err   what the K-th command printed; K.done instead of K.out once it has succeeded
//   OUT/results/NAME.json   its result, once all commands have succeeded
//
// so that what is done is seen in the files alone, and a job that was interrupted anywhere goes on where it was.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reproduce/data.h"
#include "reproduce/table.h"

namespace contextpool::reproduce {

using Words = std::vector<std::string>;

struct Job {
  const Row* row = nullptr;
  std::int64_t seed = 1;
  std::string name() const { return row->name + "-seed-" + std::to_string(seed); }
};

// What is the same for all jobs of a call.
struct Setting {
  std::string table;
  const Plan* plan = nullptr;
  DataFiles data;      // without a role's file, commands have the role's name in capitals
  std::string more;    // flags of train beside the recipe's and the row's
  std::string device;  // for train and eval; empty: as they choose
  std::filesystem::path out;
};

// One seed of all rows after the other, so that what is there at any time can be compared.
std::vector<Job> jobs_of(const Plan& plan, const std::vector<std::string>& rows,
                         const std::vector<std::int64_t>& seeds);

struct JobFiles {
  JobFiles(const std::filesystem::path& out, const Job& job);
  std::filesystem::path of(std::size_t command, const char* ending) const;
  bool done(std::size_t command) const { return std::filesystem::exists(of(command, ".done")); }

  std::filesystem::path folder, run, definition, result;
};

// The words after the program's name: train, then the recipe's `before`, then those of its scores that have a command.
// `resume` is for a run that has begun; it names the same flags, but for the preset and the config file, which the
// run's own config.toml has.
std::vector<Words> commands_of(const Setting& setting, const Job& job, bool resume);
// The place of a score's command among them; 0, the training, for one that is in the log.
std::size_t command_of_score(const Recipe& recipe, std::size_t score);

// What makes two jobs of one name the same: the commands with nothing filled in. JSON.
std::string definition_of(const Setting& setting, const Job& job);
// Throws unless `definition`, which `file` has, is the job's.
void check_definition(const std::string& definition, const Setting& setting, const Job& job,
                      const std::filesystem::path& file);

// As one types it in a shell.
std::string shell_line(const Words& words);

}  // namespace contextpool::reproduce
