#include "contextpool/train/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "contextpool/io/crc32c.h"
#include "contextpool/models/model_file.h"
#include "contextpool/runtime/device.h"
#include "contextpool/tasks/registry.h"
#include "contextpool/train/memory.h"
#include "train/log.h"

namespace contextpool::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr double kOldSpeed = 0.9;    // share of the earlier steps in the speed that is shown
constexpr std::int64_t kAhead = 2;   // steps whose batches are made before they are needed, for each loader
constexpr std::int64_t kBehind = 2;  // steps that a GPU may be given before the first of them is done
constexpr double kMinute = 60;       // seconds
constexpr double kFirstMinutes = 1;  // until the first checkpoint by the clock

TrainOptions checked(TrainOptions options) {
  validate(options);
  return options;
}

std::vector<Stage> counted_stages(const TrainOptions& options, const tasks::Task& task) {
  auto stages = options.stages;
  for (auto& stage : stages) {
    task.kind().check(task.model_options(), task.options(), stage.length, stage.batch, parts(options));
    task.check_stage(stage.length, stage.batch);
    stage = counted(stage, task.steps_per_epoch(stage.length, stage.batch));
  }
  return stages;
}

// What is left of checkpoints that do not pass, for a message.
std::string kept_weights(const std::vector<io::NewestWhole::Skipped>& skipped) {
  std::string list;
  for (const auto& s : skipped) {
    const bool weights = fs::exists(s.folder / "model.safetensors");
    list += (list.empty() ? "" : ", ") + s.folder.filename().string() + (weights ? "" : " without weights");
  }
  return list;
}

void build(tasks::Task& task, const TrainOptions& options, torch::Device device) {
  check_memory(options, task.kind(), task.family(), task.model_options(), device);
  torch::manual_seed(static_cast<std::uint64_t>(options.seed));
  task.build(device);
}

// The folder appears with its config in it: however early a run is killed, it can be resumed, or there is none.
void make_run_folder(const fs::path& folder, const std::string& config) {
  TORCH_CHECK_VALUE(
      !fs::exists(fs::symlink_status(folder)), folder.string(), ": exists already; ",
      fs::exists(folder / "config.toml") ? "continue it with --resume, or " : "not a run: ", "choose another name");
  auto path = fs::absolute(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "runs/a/"
  const auto fresh = path.parent_path() / ("." + path.filename().string() + ".new-" + std::to_string(::getpid()));
  io::remove_tree(fresh);  // of a killed process that had the same number
  io::make_folder(fresh);
  try {
    io::replace_file(fresh / "config.toml", config);
    io::rename_path(fresh, path);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(fresh, ignored);
    throw;
  }
  io::sync_folder(path.parent_path());
}

std::uint32_t checksum(const io::NamedTensors& tensors) {
  std::uint32_t sum = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto here = tensor.detach().cpu().contiguous();
    sum = io::crc32c({static_cast<const std::byte*>(here.const_data_ptr()), here.nbytes()}, sum);
  }
  return sum;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Trainer::Trainer(TrainOptions options, std::shared_ptr<tasks::Task> task, const Start& start, Observer& observer)
    : options_(checked(std::move(options))),
      task_(std::move(task)),
      observer_(observer),
      processes_(start.processes ? start.processes : std::make_shared<runtime::Processes>()),
      schedule_(counted_stages(options_, *task_), options_.schedule, options_.final_share),
      device_(runtime::device_named(options_.device)),
      behind_(options_.behind.value_or(device_.is_cpu() ? 0 : kBehind)) {
  TORCH_CHECK_VALUE(options_.processes == processes_->size(), "contextpool: options for ", options_.processes,
                    " processes in a job of ", processes_->size());
  build(*task_, options_, device_);
  join(start);
  updater_.emplace(task_, options_, processes_);
  open_run(start);
}

Trainer::~Trainer() = default;

void Trainer::join(const Start& start) {
  processes_->connect(device_);
  processes_->check_same("config", std::to_string(io::crc32c(std::as_bytes(std::span(start.config)))));
  processes_->check_same("data", task_->data_identity());
}

void Trainer::open_run(const Start& start) {
  std::optional<std::int64_t> resumed_from;
  if (start.resume) {
    resumed_from = resume(start);
    // Before the first process changes anything in the folder that the others read.
    processes_->check_same("step", std::to_string(step_));
    processes_->check_same("weights", std::to_string(checksum(io::named_tensors(*task_->model()))));
    if (finished()) return;
  } else if (processes_->first()) {
    make_run_folder(start.folder, start.config);
    fresh_ = start.folder;
  }
  if (!processes_->first()) return;
  processes_->note(kRunNote, fs::absolute(start.folder).lexically_normal().string());
  checkpoints_.emplace(start.folder, io::CheckpointWriter::Options{options_.keep, resumed_from});
  const auto config = start.folder / "config.toml";
  io::remove_unfinished(config);
  if (start.resume && io::read_file(config) != start.config) io::replace_file(config, start.config);
  log_ = std::make_unique<Log>(start.folder / "log.jsonl", step_);
  if (!log_->note().empty()) observer_.on_message(log_->note());
  events_.emplace(start.folder, resumed_from);
}

std::optional<std::int64_t> Trainer::resume(const Start& start) {
  TORCH_CHECK_VALUE(fs::is_directory(start.folder), start.folder.string(), ": there is no such run to resume");
  const auto newest = io::newest_whole(start.folder, start.unverified ? io::Verify::no : io::Verify::yes);
  const auto tell = [this](const std::string& line) {
    if (processes_->first()) observer_.on_message(line);
  };
  for (const auto& skipped : newest.skipped) tell("skipped a broken checkpoint: " + skipped.why);
  TORCH_CHECK_VALUE(newest.checkpoint || newest.skipped.empty(), start.folder.string(),
                    ": no checkpoint passes verification (", kept_weights(newest.skipped), "); ",
                    start.unverified ? "to begin again, choose another folder"
                                     : "--resume --unverified resumes from the newest that can be read, without its "
                                       "checksums; to begin again, choose another folder");
  if (newest.checkpoint) restore(*newest.checkpoint);
  if (finished()) {
    tell(start.folder.string() + ": finished already, at step " + std::to_string(step_) +
         "; nothing was changed. A larger --steps makes the run longer");
  } else {
    tell(newest.checkpoint ? "resumed from " + newest.checkpoint->folder.string()
                           : "no checkpoint to resume from: starting at step 0");
  }
  return step_;
}

void Trainer::restore(const io::Checkpoint& checkpoint) {
  const auto file = checkpoint.folder / "model.safetensors";
  const auto saved = models::describe_model(checkpoint.metadata, file);
  const bool same =
      saved.family.name() == task_->family().name() && to_json(saved.options) == to_json(task_->model_options());
  TORCH_CHECK_VALUE(same, file.string(), ": a checkpoint of another model than config.toml and the flags describe");
  io::load_into(io::named_tensors(*task_->model()), checkpoint.model, file.string());
  updater_->optimizer().load(checkpoint.optimizer, (checkpoint.folder / "optimizer.safetensors").string());
  auto& average = updater_->average();
  if (average) io::load_into(average->tensors(), checkpoint.ema, (checkpoint.folder / "ema.safetensors").string());

  const auto state_file = (checkpoint.folder / "state.json").string();
  const auto state = Json::parse(checkpoint.state, nullptr, /*allow_exceptions=*/false);
  try {
    step_ = state.at("step").get<std::int64_t>();
    units_ = state.at(task_->kind().unit()).get<std::int64_t>();
    skipped_ = state.at("skipped").get<std::int64_t>();
    skipped_in_a_row_ = state.at("skipped_in_a_row").get<std::int64_t>();
    if (!state.at("best").is_null()) best_ = state.at("best").get<double>();
    for (const auto* key : {"data", "text"}) {  // version 0.1.0 knew texts only
      if (state.contains(key)) task_->check_data(state.at(key).dump(), checkpoint.folder.string());
    }
  } catch (const Json::exception& e) {
    TORCH_CHECK_VALUE(false, state_file, ": is not the state of a training run: ", e.what());
  }
  TORCH_CHECK_VALUE(step_ == checkpoint.step, state_file, ": says step ", step_, " in the folder of step ",
                    checkpoint.step);
  if (average) average->begin_at(step_ - skipped_);
}

Outcome Trainer::run() {
  saved_at_ = std::chrono::steady_clock::now();
  batches_.emplace(
      [this](std::int64_t step) { return make_step_batch(*task_, options_, place(step), processes_->rank()); }, step_,
      schedule_.steps(), static_cast<int>(options_.loaders), kAhead * std::max<std::int64_t>(1, options_.loaders));
  while (!finished()) {
    if (processes_->any(observer_.wants_stop())) {
      const auto reports = read(0);
      for (const auto& report : reports) {
        if (processes_->first()) record(report);
      }
      save_last(std::nullopt);
      processes_->barrier();
      return Outcome::stopped;
    }
    try {
      train_step();
    } catch (...) {
      std::error_code ignored;
      if (!fresh_.empty()) fs::remove_all(fresh_, ignored);
      throw;
    }
    if (skipped_in_a_row_ >= options_.give_up) {
      save_last(std::nullopt);
      TORCH_CHECK(false, "contextpool: stopped at step ", step_, ": ", skipped_in_a_row_,
                  " steps in a row had a loss or gradient that is not finite; the weights are those before them");
    }
  }
  processes_->barrier();  // nobody is done before the last checkpoint is
  return Outcome::finished;
}

void Trainer::train_step() {
  take_step();
  fresh_.clear();
  const bool due = finished() || step_ % options_.checkpoint_every == 0;
  const bool saves = saves_now(due);
  auto reports = read(saves ? 0 : behind_);
  if (!processes_->first()) return follow(saves);
  const auto dev = due ? score_dev() : std::nullopt;
  if (dev) {
    reports.back().dev = dev;
    reports.back().windows = look_at_windows();
  }
  for (const auto& report : reports) record(report);
  if (finished()) {
    save_last(dev);
  } else if (saves) {
    try_to_save(dev);
  }
}

void Trainer::follow(bool saves) {
  for (const auto& note : task_->take_notes()) observer_.on_message(note);
  if (saves) optimizer_state();
}

io::NamedTensors Trainer::optimizer_state() {
  // A GPU must not wait for as long as the first process may need to score: the processes do.
  if (options_.shard_optimizer) processes_->barrier();
  return updater_->optimizer().state();
}

bool Trainer::saves_now(bool due) {
  if (due) return true;
  const bool now = processes_->first() && time_for_checkpoint();
  // To save a sharded optimizer takes all processes; to save any other one, the first alone.
  return options_.shard_optimizer ? processes_->any(now) : now;
}

bool Trainer::time_for_checkpoint() const {
  const auto minutes = saved_ ? options_.checkpoint_minutes : std::min(options_.checkpoint_minutes, kFirstMinutes);
  return minutes > 0 && seconds_since(saved_at_) >= minutes * kMinute;
}

tasks::StepPlace Trainer::place(std::int64_t step) const {
  const auto& stage = schedule_.stages()[schedule_.stage_of(step)];
  return {options_.seed, step, stage.length, stage.batch, schedule_.items_before(step)};
}

void Trainer::take_step() {
  const auto start = std::chrono::steady_clock::now();
  const auto batch = batches_->next();
  const auto waited = seconds_since(start);
  const auto lr = schedule_.lr(step_);
  const auto done = updater_->step(batch, step_, lr);
  units_ += done.units;
  ++step_;
  enqueued_.push_back({step_, units_, lr, start, waited, runtime::Readback(done.figures)});
}

std::vector<StepReport> Trainer::read(std::int64_t behind) {
  std::vector<StepReport> reports;
  // No step is begun of which it is not known yet whether the run had to be given up before it.
  const auto may_wait = [&] { return std::clamp<std::int64_t>(options_.give_up - 1 - skipped_in_a_row_, 0, behind); };
  while (static_cast<std::int64_t>(enqueued_.size()) > may_wait()) {
    const auto step = std::move(enqueued_.front());
    enqueued_.pop_front();
    const auto figures = step.figures.tensor();
    const auto loss = figures[0].item<double>(), norm = figures[1].item<double>();
    const bool good = std::isfinite(loss) && std::isfinite(norm);
    skipped_ += good ? 0 : 1;
    skipped_in_a_row_ = good ? 0 : skipped_in_a_row_ + 1;
    reports.push_back(report(step, loss, norm));
  }
  return reports;
}

std::optional<tasks::Score> Trainer::score_dev() {
  std::optional<AverageInPlace> in_place;
  if (updater_->average()) in_place.emplace(*updater_->average());
  return task_->score_dev(place(step_ - 1), options_.bfloat16);
}

std::vector<nn::WindowStatistics> Trainer::look_at_windows() {
  std::optional<AverageInPlace> in_place;
  if (updater_->average()) in_place.emplace(*updater_->average());
  return task_->windows(place(step_ - 1), options_.bfloat16);
}

StepReport Trainer::report(const Enqueued& step, double loss, double norm) {
  const auto& stages = schedule_.stages();
  const auto units = [&](const Stage& stage) { return task_->units_per_step(stage.length, stage.batch); };
  // A step that was enqueued early took as long as it is since the one before was done.
  const auto seconds = seconds_since(std::max(step.start, read_at_));
  read_at_ = std::chrono::steady_clock::now();
  const auto now = seconds / units(stages[schedule_.stage_of(step.number - 1)]);
  seconds_per_unit_ = seconds_per_unit_ == 0 ? now : kOldSpeed * seconds_per_unit_ + (1 - kOldSpeed) * now;
  double left = 0;
  for (auto s = step.number, i = std::int64_t{0}; i < static_cast<std::int64_t>(stages.size());
       s -= stages[i++].steps) {
    left += static_cast<double>(stages[i].steps - std::clamp<std::int64_t>(s, 0, stages[i].steps)) * units(stages[i]);
  }
  StepReport step_report;
  step_report.step = step.number;
  step_report.steps = schedule_.steps();
  step_report.loss = loss;
  step_report.figures = task_->figures_of_loss(loss);
  step_report.lr = step.lr;
  step_report.gradient_norm = norm;
  step_report.skipped = !std::isfinite(loss) || !std::isfinite(norm);
  step_report.units = step.units;
  step_report.seconds = seconds;
  step_report.waited = step.waited;
  step_report.units_per_second = 1 / seconds_per_unit_;
  step_report.unit = task_->kind().unit();
  step_report.seconds_left = left * seconds_per_unit_;
  step_report.memory = runtime::peak_memory(device_);
  return step_report;
}

void Trainer::record(const StepReport& report) {
  Json line = {{"step", report.step}, {"stage", schedule_.stage_of(report.step - 1)}, {"loss", report.loss}};
  // JSON has no word for what is not finite: null
  for (const auto& [name, value] : report.figures) line[name] = value;
  line["lr"] = report.lr;
  line["gradient_norm"] = report.gradient_norm;
  line[report.unit] = report.units;
  if (report.skipped) line["skipped"] = true;
  if (report.dev) {
    for (const auto& [name, value] : report.dev->figures) line["dev_" + name] = value;
  }
  for (const auto& w : report.windows) {
    line["windows"].push_back({{"sigma", w.sigma},
                               {"sigma_spread", w.sigma_spread},
                               {"log_weight_spread", w.log_weight_spread},
                               {"tokens", w.tokens}});
  }
  line["time"] = {{"seconds", report.seconds},
                  {"waited", report.waited},
                  {report.unit + "_per_second", report.units_per_second},
                  {"memory", report.memory}};
  const bool failed_before = log_failed_;
  log_failed_ = !try_to_write(failed_before ? "" : "the log", [&] { log_->write(line); });

  std::vector<std::pair<std::string, double>> values = {
      {"train/lr", report.lr},
      {"time/" + report.unit + "_per_second", report.units_per_second},
      {"time/waited", report.waited},
      {"time/memory", static_cast<double>(report.memory)}};
  if (!report.skipped) {
    values.emplace_back("train/loss", report.loss);
    for (const auto& [name, value] : report.figures) values.emplace_back("train/" + name, value);
    values.emplace_back("train/gradient_norm", report.gradient_norm);
  }
  if (report.dev) {
    for (const auto& [name, value] : report.dev->figures) values.emplace_back("dev/" + name, value);
  }
  for (std::size_t layer = 0; layer < report.windows.size(); ++layer) {
    const auto name = "windows/layer" + std::to_string(layer);
    values.emplace_back(name + "/sigma", report.windows[layer].sigma);
    values.emplace_back(name + "/tokens", report.windows[layer].tokens);
  }
  try_to_write(log_failed_ ? "" : "TensorBoard's events", [&] { events_->scalars(values, report.step); });
  observer_.on_step(report);
  for (const auto& note : task_->take_notes()) observer_.on_message(note);
  for (const auto& note : updater_->take_notes()) observer_.on_message(note);
}

void Trainer::save(const std::optional<tasks::Score>& dev) {
  auto optimizer = optimizer_state();
  if (!processes_->first()) return;
  const auto value = dev ? std::optional(dev->figures.front().second) : std::nullopt;
  const auto beats = [&](double best) { return dev->higher_is_better ? *value > best : *value < best; };
  const bool better = value && std::isfinite(*value) && (!best_ || beats(*best_));
  const auto best_now = better ? value : best_;
  io::Checkpoint checkpoint;
  checkpoint.step = step_;
  checkpoint.model = io::named_tensors(*task_->model());
  checkpoint.optimizer = std::move(optimizer);
  if (updater_->average()) checkpoint.ema = updater_->average()->tensors();
  const auto last = place(std::clamp<std::int64_t>(step_ - 1, 0, schedule_.steps() - 1));
  checkpoint.metadata = models::model_metadata(task_->family(), task_->model_options(), task_->metadata(last));
  checkpoint.state = Json({{"step", step_},
                           {task_->kind().unit(), units_},
                           {"skipped", skipped_},
                           {"skipped_in_a_row", skipped_in_a_row_},
                           {"best", best_now ? Json(*best_now) : Json()},
                           {"data", Json::parse(task_->data_identity())}})
                         .dump(2) +
                     "\n";
  log_->sync();
  events_->sync();
  checkpoints_->save(checkpoint);
  best_ = best_now;
  if (better) checkpoints_->mark_best({step_, *value, "dev_" + dev->figures.front().first});
}

bool Trainer::try_to_save(const std::optional<tasks::Score>& dev) {
  saved_ = true;
  saved_at_ = std::chrono::steady_clock::now();
  return try_to_write("the checkpoint of step " + std::to_string(step_), [&] { save(dev); });
}

void Trainer::save_last(const std::optional<tasks::Score>& dev) {
  try {
    save(dev);
  } catch (const io::FileError& e) {
    TORCH_CHECK(false, "contextpool: stopped at step ", step_, ", and its checkpoint could not be written: ", e.what(),
                "; --resume repeats the steps since the one before");
  }
}

// A disk that is full, or away, must not cost the run: what was to be written is tried again when it is next due.
template <typename F>
bool Trainer::try_to_write(const std::string& what, F&& write) {
  try {
    write();
    return true;
  } catch (const io::FileError& e) {
    if (!what.empty()) observer_.on_message(what + " was not written, training continues: " + e.what());
    return false;
  }
}

}  // namespace contextpool::train
