#include "reproduce/runner.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <list>
#include <optional>
#include <thread>

#include "contextpool/io/checkpoint.h"
#include "contextpool/io/files.h"
#include "reproduce/child.h"

namespace contextpool::reproduce {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr auto kLook = std::chrono::milliseconds(100);
constexpr Seconds kTell{60};   // between two lines about how it goes
constexpr Seconds kGrace{90};  // for a process to save and stop
constexpr int kStopped = 128 + SIGTERM, kKilled = 128 + SIGKILL;

// The last line of a file that is not empty.
std::string last_line(const fs::path& file) {
  std::string last;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const auto back = line.rfind('\r');  // of a line that renewed itself
    if (back != std::string::npos) line.erase(0, back + 1);
    if (!line.empty()) last = line;
  }
  return last;
}

// "step 120" of the newest line of a log.
std::string step_in(const fs::path& log) {
  const auto line = last_line(log);
  const std::string key = "\"step\":";
  const auto at = line.find(key);
  if (at == std::string::npos) return "starting";
  return "step " + line.substr(at + key.size(), line.find(',', at) - at - key.size());
}

// A process of a call that was killed may still be saving: it holds the folder of its checkpoints.
void wait_until_free(const fs::path& run) {
  const auto checkpoints = io::checkpoint_folder(run, 0).parent_path();
  const auto end = Clock::now() + kGrace;
  while (fs::exists(checkpoints) && Clock::now() < end) {
    try {
      const io::FolderLock lock(checkpoints, "a training process still works in it");
      return;
    } catch (const io::Error&) {
      std::this_thread::sleep_for(kLook);
    }
  }
}

// A job with a process.
struct Running {
  Job job;
  JobFiles files;
  std::vector<Words> commands;
  std::size_t at = 0;  // of them
  std::optional<Child> process = std::nullopt;
  int at_once = 1;  // jobs that it shared the machine with at most, itself among them
};

class Runner {
 public:
  Runner(const Setting& setting, const RunOptions& options) : setting_(setting), options_(options) {}
  Outcome run(const std::vector<Job>& jobs);

 private:
  bool is_done(const Job& job);
  void begin(const Job& job);
  void start_command(Running& running);
  bool follow(Running& running);  // false once the job has no process any more
  bool next_command(Running& running);
  void fail(const Running& running, const std::string& line);
  bool time_is_up() const;
  void ask_to_stop();
  void tell();
  std::string count() const { return std::to_string(outcome_.done) + " of " + std::to_string(all_) + " done"; }

  const Setting& setting_;
  const RunOptions& options_;
  Clock::time_point start_ = Clock::now(), told_ = start_;
  std::optional<Clock::time_point> stopping_;
  std::size_t all_ = 0;
  std::deque<Job> waiting_;
  std::list<Running> running_;
  Outcome outcome_;
};

// A result of another recipe is refused, not replaced.
bool Runner::is_done(const Job& job) {
  const JobFiles files(setting_.out, job);
  if (fs::exists(files.result)) {
    check_definition(read_result(files.result).definition, setting_, job, files.result);
    return true;
  }
  if (fs::exists(files.definition)) check_definition(io::read_file(files.definition), setting_, job, files.definition);
  return false;
}

Outcome Runner::run(const std::vector<Job>& jobs) {
  all_ = jobs.size();
  for (const auto& job : jobs) {
    if (is_done(job)) {
      ++outcome_.done;
    } else {
      waiting_.push_back(job);
    }
  }
  const auto begun = [&](const Job& job) { return fs::exists(JobFiles(setting_.out, job).definition); };
  std::stable_partition(waiting_.begin(), waiting_.end(), begun);
  while (!running_.empty() || (!waiting_.empty() && !stopping_)) {
    if (!stopping_ && (options_.wants_stop() || time_is_up())) ask_to_stop();
    while (!stopping_ && !waiting_.empty() && running_.size() < static_cast<std::size_t>(options_.at_once)) {
      const auto job = waiting_.front();
      waiting_.pop_front();
      begin(job);
    }
    running_.remove_if([this](Running& running) { return !follow(running); });
    if (stopping_ && Clock::now() - *stopping_ > kGrace) {
      for (const auto& running : running_) running.process->signal(SIGKILL);
    }
    if (Clock::now() - told_ >= kTell) tell();
    if (!running_.empty()) std::this_thread::sleep_for(kLook);
  }
  outcome_.left = all_ - outcome_.done - outcome_.failed.size();
  return outcome_;
}

void Runner::begin(const Job& job) {
  JobFiles files(setting_.out, job);
  io::make_folder(files.folder);
  io::replace_file(files.definition, definition_of(setting_, job));
  const bool resume = fs::exists(files.run / "config.toml");
  if (resume) wait_until_free(files.run);
  running_.push_back({job, files, commands_of(setting_, job, resume)});
  auto& running = running_.back();
  const auto sharing = static_cast<int>(running_.size());
  for (auto& r : running_) r.at_once = std::max(r.at_once, sharing);
  options_.say(job.name() + (resume ? ": goes on (" : ": starts (") + count() + ")");
  while (running.at < running.commands.size() && files.done(running.at)) ++running.at;
  start_command(running);
}

// Nothing is started once all commands are done: follow() then writes the result.
void Runner::start_command(Running& running) {
  if (running.at == running.commands.size()) return;
  const auto out = running.files.of(running.at, ".out"), error = running.files.of(running.at, ".err");
  if (running.at > 0) io::remove_tree(out);  // of a try before; training goes on instead
  io::remove_tree(error);
  std::vector<std::string> environment;
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) environment.emplace_back("OMP_WAIT_POLICY=passive");  // NOLINT
  if (options_.machine.threads > 0)
    environment.push_back("OMP_NUM_THREADS=" + std::to_string(options_.machine.threads));
  running.process.emplace(options_.program, running.commands[running.at], environment, out, error);
  if (stopping_) running.process->signal(SIGTERM);
}

bool Runner::follow(Running& running) {
  if (running.process) {
    const auto status = running.process->status();
    if (!status) return true;
    running.process.reset();
    const bool ended_by_us = stopping_ && (*status == kStopped || *status == kKilled);
    if (ended_by_us) return false;
    if (*status != 0) {
      auto line = last_line(running.files.of(running.at, ".err"));
      if (line.empty()) line = last_line(running.files.of(running.at, ".out"));
      fail(running, line + " (exit status " + std::to_string(*status) + ")");
      return false;
    }
    io::rename_path(running.files.of(running.at, ".out"), running.files.of(running.at, ".done"));
    ++running.at;
  }
  return next_command(running);
}

bool Runner::next_command(Running& running) {
  try {
    if (running.at < running.commands.size()) {
      if (stopping_) return false;
      start_command(running);
      return true;
    }
    const auto result = result_of(setting_, running.job, options_.machine, running.at_once);
    io::replace_file(running.files.result, result.dump(2) + "\n");
    ++outcome_.done;
    std::string line = running.job.name() + ":";
    for (const auto& [name, figure] : result.at("scores").items()) line += " " + name + " " + figure.dump();
    options_.say(line + " (" + count() + ")");
  } catch (const c10::Error& e) {
    fail(running, e.what_without_backtrace());
  } catch (const io::Error& e) {
    fail(running, e.what());
  }
  return false;
}

void Runner::fail(const Running& running, const std::string& line) {
  outcome_.failed.push_back({running.job.name(), line});
  options_.say(running.job.name() + ": failed: " + line);
}

bool Runner::time_is_up() const {
  constexpr double kMinute = 60;
  return options_.minutes > 0 && Seconds(Clock::now() - start_).count() >= options_.minutes * kMinute;
}

void Runner::ask_to_stop() {
  stopping_ = Clock::now();
  if (!running_.empty()) options_.say("stopping; " + std::to_string(running_.size()) + " jobs save what they have");
  for (const auto& running : running_) {
    if (running.process) running.process->signal(SIGTERM);
  }
}

void Runner::tell() {
  told_ = Clock::now();
  std::string line = count();
  for (const auto& r : running_) {
    line += ", " + r.job.name() + " " + (r.at == 0 ? step_in(r.files.run / "log.jsonl") : "is being scored");
  }
  options_.say(line);
}

}  // namespace

Outcome run_jobs(const Setting& setting, const std::vector<Job>& jobs, const RunOptions& options) {
  const io::FolderLock lock(setting.out, "another `contextpool reproduce` works in it");
  return Runner(setting, options).run(jobs);
}

}  // namespace contextpool::reproduce
