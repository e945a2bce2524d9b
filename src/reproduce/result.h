// What a finished job says: its scores, what its model costs, how fast it trained, and where. One JSON object a job:
//
//   {"table", "scale", "row", "seed", "scores": {name: figure}, "evaluations": {name: what eval printed},
//    "parameters", "macs", "macs_with_pooling", "per", "memory" (bytes, the most in training),
//    "seconds_a_step" (median), "seconds" (of all steps), "at_once" (jobs that shared the machine at most),
//    "hardware": {...}, "version", "torch", "commit", "data": {role: {...}}, "command", "definition", "config"}
#pragma once

#include <nlohmann/json.hpp>

#include "reproduce/jobs.h"

namespace contextpool::reproduce {

struct Machine {
  std::string version, torch, commit;
  std::string cpu;
  std::int64_t cores = 0, threads = 0;
  std::vector<std::string> gpus;
};

// Of a job whose commands have all succeeded. Throws where what they wrote is not what they should have written.
nlohmann::ordered_json result_of(const Setting& setting, const Job& job, const Machine& machine, int at_once);

// A result as the report needs it.
struct Result {
  std::string row;
  std::int64_t seed = 0;
  std::map<std::string, double> scores;
  std::int64_t parameters = 0;
  double macs = 0, macs_with_pooling = 0;
  std::string per;
  double memory = 0, seconds_a_step = 0;
  int at_once = 1;
  std::string where, commit, definition;
};
// Throws where the file is no such result.
Result read_result(const std::filesystem::path& file);
// Those of a folder that are of rows of the table; throws at one that is of another recipe than the row has now.
std::vector<Result> read_results(const Setting& setting);

}  // namespace contextpool::reproduce
