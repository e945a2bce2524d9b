// contextpool reproduce: the runs of a table of experiments as one list of jobs that can be stopped and goes on, and
// the table that they give.
#include <torch/version.h>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "base/words.h"
#include "cli/cli.h"
#include "cli/console.h"
#include "contextpool/io/files.h"
#include "contextpool/runtime/machine.h"
#include "reproduce/commit.h"
#include "reproduce/report.h"
#include "reproduce/runner.h"

namespace contextpool::cli {
namespace {

namespace fs = std::filesystem;
constexpr int kLeft = 3;  // exit status: the time is up and jobs are left
constexpr std::int64_t kMostJobs = 64, kMostThreads = 1024;

struct ReproduceFlags {
  std::string table, scale = "smoke", out, train, device, against;
  std::vector<std::string> data, rows;
  std::vector<std::int64_t> seeds;
  std::int64_t jobs = 1, threads = 0;
  double minutes = 0;
  bool list = false, report = false;
};

std::vector<std::string> table_names() {
  std::vector<std::string> names;
  for (const auto& table : contextpool::reproduce::tables()) names.push_back(table.name);
  return names;
}

std::string table_list() {
  std::string text = "\nTables, and their scales:\n";
  for (const auto& table : contextpool::reproduce::tables()) {
    std::string scales;
    for (const auto& plan : table.plans) scales += (scales.empty() ? "" : ", ") + plan.scale;
    text += "  " + table.name + std::string(14 - table.name.size(), ' ') + table.title + " (" + scales + ")\n";
  }
  return text;
}

void add_flags(CLI::App& app, ReproduceFlags& f) {
  app.option_defaults()->take_last();
  app.add_option("table", f.table, "which");
  app.add_option("--scale", f.scale,
                 "smoke (seconds a run), demo or quick (minutes on a CPU), small (minutes on a GPU) or paper (days)")
      ->capture_default_str();
  app.add_option("--data", f.data, "a folder that has the data, a file, or ROLE=PATH; may be given several times")
      ->take_all();
  app.add_option("--out", f.out, "folder for runs and results; runs/TABLE-SCALE unless it is given");
  app.add_option("--rows", f.rows, "only these, by name")->delimiter(',');
  app.add_option("--seeds", f.seeds, "one run of each row for each; else the table's")->delimiter(',');
  app.add_option("--train", f.train, "more flags of train for every run, in one word: \"--steps 6000\"");
  app.add_option("--jobs", f.jobs, "runs at once")->capture_default_str();
  app.add_option("--minutes", f.minutes, "after which the runs save and stop; the next call goes on. 0: no limit")
      ->capture_default_str();
  app.add_option("--threads", f.threads, "of the CPU for each run; 0: the cores divided by --jobs")
      ->capture_default_str();
  app.add_option("--device", f.device, "auto, cpu, cuda or cuda:N");
  app.add_option("--against", f.against, "the row that all others are compared with");
  app.add_flag("--list", f.list, "print the commands and run nothing");
  app.add_flag("--report", f.report, "print the table of the results that are there, and run nothing");
  app.footer(table_list());
}

void check(const ReproduceFlags& f) {
  if (f.table.empty()) {
    throw UsageError("reproduce needs a table: " + CLI::detail::join(table_names(), ", "));
  }
  if (f.jobs < 1 || f.jobs > kMostJobs)
    throw UsageError("--jobs is " + std::to_string(f.jobs) + ", expected 1 to " + std::to_string(kMostJobs));
  if (!(f.minutes >= 0))
    throw UsageError("--minutes is " + std::to_string(f.minutes) + ", expected 0 (no limit) or more");
  if (f.threads < 0 || f.threads > kMostThreads)
    throw UsageError("--threads is " + std::to_string(f.threads) + ", expected 0 to " + std::to_string(kMostThreads));
  if (f.list && f.report) throw UsageError("--list and --report are two different things; give one of them");
  for (const auto seed : f.seeds) {
    if (std::count(f.seeds.begin(), f.seeds.end(), seed) > 1)
      throw UsageError("--seeds names " + std::to_string(seed) + " twice");
  }
}

std::set<std::string> needed_roles(const contextpool::reproduce::Setting& setting,
                                   const std::vector<contextpool::reproduce::Job>& jobs) {
  std::set<std::string> needed;
  const auto add = [&](const std::string& command) { needed.merge(contextpool::reproduce::roles_in(command)); };
  const auto& recipe = setting.plan->recipe;
  add(recipe.train);
  for (const auto& command : recipe.before) add(command);
  for (const auto& score : recipe.scores) add(score.command);
  for (const auto& job : jobs) add(job.row->flags);
  return needed;
}

int list(const contextpool::reproduce::Setting& setting, const std::vector<contextpool::reproduce::Job>& jobs) {
  for (const auto& job : jobs) {
    for (const auto& words : commands_of(setting, job, /*resume=*/false)) {
      std::cout << "contextpool " << contextpool::reproduce::shell_line(words) << "\n";
    }
  }
  return 0;
}

contextpool::reproduce::Machine machine(std::int64_t threads, std::int64_t jobs) {
  const auto usable = static_cast<std::int64_t>(runtime::cores().usable());
  contextpool::reproduce::Machine machine{.version = version().substr(0, version().find(',')),
                                          .torch = TORCH_VERSION,
                                          .commit = contextpool::reproduce::commit(),
                                          .cpu = runtime::cpu_model(),
                                          .cores = usable,
                                          .threads = threads,
                                          .gpus = runtime::gpu_models()};
  if (threads == 0) machine.threads = std::max<std::int64_t>(1, usable / jobs);
  return machine;
}

// The table to stdout and to OUT/table.md.
void tell(const contextpool::reproduce::ReportRequest& request) {
  const auto text = report(request);
  std::cout << text << std::flush;
  const auto file = request.setting->out / "table.md";
  contextpool::io::replace_file(file, text);
  std::cerr << "contextpool: the table is in " << file.string() << ", each run's result in "
            << (request.setting->out / "results").string() << "\n";
}

int status_of(const contextpool::reproduce::Outcome& outcome) {
  if (caught_signal() != 0) return kSignalled + caught_signal();
  if (!outcome.failed.empty()) return kFailed;
  return outcome.left > 0 ? kLeft : 0;
}

int run_all(const ReproduceFlags& f, const contextpool::reproduce::Setting& setting,
            const std::vector<contextpool::reproduce::Job>& jobs, contextpool::reproduce::ReportRequest& request) {
  contextpool::reproduce::RunOptions options;
  options.program = fs::read_symlink("/proc/self/exe");
  options.at_once = static_cast<int>(f.jobs);
  options.minutes = f.minutes;
  options.machine = machine(f.threads, f.jobs);
  options.say = [](const std::string& line) { std::cerr << "contextpool: " << line << "\n" << std::flush; };
  options.wants_stop = [] { return caught_signal() != 0; };
  catch_signals();
  const auto outcome = run_jobs(setting, jobs, options);
  request.results = read_results(setting);
  request.failed = outcome.failed;
  tell(request);
  std::cerr << "contextpool: " << outcome.done << " of " << jobs.size() << " runs done, " << outcome.failed.size()
            << " failed, " << outcome.left << " left";
  std::cerr << (outcome.left > 0 ? "; the same command goes on\n" : "\n");
  return status_of(outcome);
}

}  // namespace

int reproduce(const Arguments& arguments) {
  namespace r = contextpool::reproduce;
  ReproduceFlags f;
  CLI::App app(
      "Runs a table of experiments: every row with every seed, several at once. A call that was stopped or "
      "killed goes on when it is repeated.",
      "contextpool reproduce");
  add_flags(app, f);
  if (!parse(app, arguments)) return 0;
  check(f);
  r::Setting setting;
  r::ReportRequest request;
  std::vector<r::Job> jobs;
  as_command([&] {
    request.table = &r::find_table(f.table);
    setting.plan = &r::find_plan(*request.table, f.scale);
    jobs = r::jobs_of(*setting.plan, f.rows, f.seeds.empty() ? setting.plan->recipe.seeds : f.seeds);
    if (!f.against.empty()) r::find_row(*setting.plan, f.against);
  });
  setting.table = f.table;
  setting.more = f.train;
  setting.device = f.device;
  setting.out = fs::absolute(f.out.empty() ? "runs/" + f.table + "-" + f.scale : f.out).lexically_normal();
  request.setting = &setting;
  request.against = f.against;
  if (f.report) {
    if (!fs::exists(setting.out / "reproduce.json"))
      throw UsageError(setting.out.string() + ": has no results of `contextpool reproduce`; --out names the folder");
    as_command([&] { setting.data = r::data_of_folder(setting); });
    request.results = read_results(setting);
    tell(request);
    return 0;
  }
  const bool bare = f.list && f.data.empty();  // commands with the roles' names instead
  as_command([&] {
    if (!bare) setting.data = r::find_data(setting.plan->recipe, needed_roles(setting, jobs), f.data);
  });
  if (f.list) return list(setting, jobs);
  as_command([&] { r::open_folder(setting); });
  return run_all(f, setting, jobs, request);
}

}  // namespace contextpool::cli
