#include "contextpool/train/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "contextpool/data/batch.h"
#include "contextpool/data/random.h"
#include "contextpool/eval/device.h"
#include "contextpool/eval/model_file.h"
#include "contextpool/eval/windows.h"
#include "contextpool/train/memory.h"
#include "train/log.h"

namespace contextpool::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t kDropout = 1;  // tells dropout's random numbers from the rows of a batch
constexpr double kOldSpeed = 0.9;      // share of the earlier steps in the speed that is shown
constexpr const char* kMetric = "dev_loss";
constexpr double kMinute = 60;       // seconds
constexpr double kFirstMinutes = 1;  // until the first checkpoint by the clock

TrainOptions checked(TrainOptions options) {
  validate(options);
  return options;
}

data::Text open_text(const TrainOptions& options) {
  data::Text text(options.data, options.layout);
  for (const auto& stage : options.stages) data::check_window(text, data::Split::train, stage.length);
  if (options.eval_tokens > 0) data::check_window(text, data::Split::dev, 1);
  TORCH_CHECK_VALUE(options.model.vocabulary == text.alphabet().size(), options.data, ": the layout ", options.layout,
                    " has ", text.alphabet().size(), " symbols, the model ", options.model.vocabulary);
  return text;
}

Json identity(const data::Text& text) { return {{"bytes", text.size(data::Split::all)}, {"crc32c", text.checksum()}}; }

// Throws unless the text is the one that the checkpoint was trained on.
void check_text(const data::Text& text, const Json& trained_on, const fs::path& checkpoint) {
  const auto now = text.size(data::Split::all), then = trained_on.at("bytes").get<std::int64_t>();
  const bool same = trained_on == identity(text);
  TORCH_CHECK_VALUE(same, text.path(), ": not the text of this run: it has ", now, " bytes, and ", checkpoint.string(),
                    " was trained on ", then == now ? "others" : std::to_string(then),
                    now > then ? " (it has grown)" : "", now < then ? " (it has shrunk)" : "",
                    now == then ? " (the checksum differs)" : "",
                    "; name that text with --data FILE, or start another run with this one");
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

models::LanguageModel make_model(const TrainOptions& options, torch::Device device) {
  check_memory(options, device);
  torch::manual_seed(static_cast<std::uint64_t>(options.seed));
  models::LanguageModel model(options.model);
  model->to(device);
  return model;
}

io::NamedTensors parameters_of(const models::LanguageModel& model) {
  io::NamedTensors all;
  for (const auto& p : model->named_parameters()) all.emplace_back(p.key(), p.value());
  return all;
}

// The folder appears with its config in it: however early a run is killed, it can be resumed, or there is none.
void make_run_folder(const fs::path& folder, const std::string& config) {
  TORCH_CHECK_VALUE(
      !fs::exists(fs::symlink_status(folder)), folder.string(), ": exists already; ",
      fs::exists(folder / "config.toml") ? "go on with it by --resume, or " : "it is no run: ", "choose another name");
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

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Trainer::Trainer(TrainOptions options, const Start& start, Observer& observer)
    : options_(checked(std::move(options))),
      observer_(observer),
      schedule_(options_.stages, options_.schedule, options_.final_share),
      device_(eval::device_named(options_.device)),
      text_(open_text(options_)),
      model_(make_model(options_, device_)),
      parameters_(parameters_of(model_)),
      adamw_(parameters_, options_.adamw) {
  if (options_.ema > 0) average_.emplace(parameters_, options_.ema);
  open_run(start);
}

Trainer::~Trainer() = default;

void Trainer::open_run(const Start& start) {
  std::optional<std::int64_t> resumed_from;
  if (start.resume) {
    resumed_from = resume(start);
    if (finished()) return;
  } else {
    make_run_folder(start.folder, start.config);
    fresh_ = start.folder;
  }
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
  for (const auto& skipped : newest.skipped) observer_.on_message("skipped a broken checkpoint: " + skipped.why);
  TORCH_CHECK_VALUE(newest.checkpoint || newest.skipped.empty(), start.folder.string(),
                    ": no checkpoint passes verification (", kept_weights(newest.skipped), "); ",
                    start.unverified ? "to begin again, choose another folder"
                                     : "--resume --unverified goes on from the newest that can be read, without its "
                                       "checksums; to begin again, choose another folder");
  if (newest.checkpoint) restore(*newest.checkpoint);
  if (finished()) {
    observer_.on_message(start.folder.string() + ": finished already, at step " + std::to_string(step_) +
                         "; nothing was changed. A larger --steps makes the run longer");
  } else {
    observer_.on_message(newest.checkpoint ? "resumed from " + newest.checkpoint->folder.string()
                                           : "no checkpoint to resume from: starting at step 0");
  }
  return step_;
}

void Trainer::restore(const io::Checkpoint& checkpoint) {
  const auto file = checkpoint.folder / "model.safetensors";
  TORCH_CHECK_VALUE(models::to_json(eval::model_options(checkpoint.metadata, file)) == models::to_json(options_.model),
                    file.string(), ": a checkpoint of another model than config.toml and the flags describe");
  io::load_into(io::named_tensors(*model_), checkpoint.model, file.string());
  io::load_into(adamw_.state(), checkpoint.optimizer, (checkpoint.folder / "optimizer.safetensors").string());
  if (average_) io::load_into(average_->tensors(), checkpoint.ema, (checkpoint.folder / "ema.safetensors").string());

  const auto state_file = (checkpoint.folder / "state.json").string();
  const auto state = Json::parse(checkpoint.state, nullptr, /*allow_exceptions=*/false);
  try {
    step_ = state.at("step").get<std::int64_t>();
    tokens_ = state.at("tokens").get<std::int64_t>();
    skipped_ = state.at("skipped").get<std::int64_t>();
    skipped_in_a_row_ = state.at("skipped_in_a_row").get<std::int64_t>();
    if (!state.at("best").is_null()) best_ = state.at("best").get<double>();
    if (state.contains("text")) check_text(text_, state.at("text"), checkpoint.folder);
  } catch (const Json::exception& e) {
    TORCH_CHECK_VALUE(false, state_file, ": is not the state of a training run: ", e.what());
  }
  TORCH_CHECK_VALUE(step_ == checkpoint.step, state_file, ": says step ", step_, " in the folder of step ",
                    checkpoint.step);
}

Outcome Trainer::run() {
  saved_at_ = std::chrono::steady_clock::now();
  while (!finished()) {
    if (observer_.wants_stop()) {
      save_last(std::nullopt);
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
  return Outcome::finished;
}

void Trainer::train_step() {
  const auto update = take_step();
  fresh_.clear();
  const bool due = finished() || step_ % options_.checkpoint_every == 0;
  const auto dev_loss = due ? score_dev() : std::nullopt;
  record(update, dev_loss, dev_loss ? look_at_windows() : std::vector<nn::WindowStatistics>{});
  if (finished()) {
    save_last(dev_loss);
  } else if (due || time_for_checkpoint()) {
    try_to_save(dev_loss);
  }
}

bool Trainer::time_for_checkpoint() const {
  const auto minutes = saved_ ? options_.checkpoint_minutes : std::min(options_.checkpoint_minutes, kFirstMinutes);
  return minutes > 0 && seconds_since(saved_at_) >= minutes * kMinute;
}

Trainer::Update Trainer::take_step() {
  clock_ = std::chrono::steady_clock::now();
  const auto& stage = schedule_.stages()[schedule_.stage_of(step_)];
  model_->train();
  adamw_.zero_grad();
  const auto loss_on_device = backward(stage);
  // Loss and norm come from the device together: one wait a step.
  const auto read = torch::stack({loss_on_device, gradient_norm(parameters_).to(torch::kDouble)}).cpu();
  const auto loss = read[0].item<double>(), norm = read[1].item<double>(), lr = schedule_.lr(step_);

  const bool good = std::isfinite(loss) && std::isfinite(norm);
  if (good) {
    if (options_.clip > 0 && norm > options_.clip) scale_gradients(parameters_, options_.clip / norm);
    adamw_.step(lr);
    model_->clamp_spans();
    if (average_) average_->update(step_ - skipped_);
  }
  skipped_ += good ? 0 : 1;
  skipped_in_a_row_ = good ? 0 : skipped_in_a_row_ + 1;
  tokens_ += stage.batch * stage.length;
  ++step_;
  return {loss, lr, norm, !good};
}

torch::Tensor Trainer::backward(const Stage& stage) {
  const auto tokens = static_cast<double>(stage.batch * stage.length);
  auto total = torch::zeros({}, torch::dtype(torch::kDouble).device(device_));
  for (std::int64_t part = 0; part < options_.accumulate; ++part) {
    const auto rows = data::part_of({0, stage.batch}, part, options_.accumulate);
    const auto batch = data::make_batch(text_, data::Split::train, stage.length, options_.seed, step_, rows);
    torch::manual_seed(data::random_bits({static_cast<std::uint64_t>(options_.seed), static_cast<std::uint64_t>(step_),
                                          static_cast<std::uint64_t>(part), kDropout}));
    torch::Tensor logits;
    {
      const eval::Autocast autocast(device_, options_.bfloat16);
      logits = model_->forward(batch.input.to(device_));
    }
    const auto loss =
        torch::nn::functional::cross_entropy(logits.flatten(0, 1).to(torch::kFloat), batch.target.to(device_).flatten(),
                                             torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum)) /
        tokens;
    loss.backward();
    total += loss.detach();
  }
  if (const auto of_spans = model_->span_loss(); of_spans.defined()) of_spans.backward();
  return total;
}

std::optional<double> Trainer::score_dev() {
  if (options_.eval_tokens == 0) return std::nullopt;
  const auto length = schedule_.stages()[schedule_.stage_of(step_ - 1)].length;
  std::optional<AverageInPlace> in_place;
  if (average_) in_place.emplace(*average_);
  return eval::evaluate(model_, text_, data::Split::dev,
                        {.window = length,
                         .step = std::max<std::int64_t>(1, length / 2),
                         .batch = options_.eval_batch,
                         .tokens = options_.eval_tokens,
                         .bfloat16 = options_.bfloat16})
      .nats;
}

std::vector<nn::WindowStatistics> Trainer::look_at_windows() {
  const torch::NoGradGuard no_grad;
  const auto length = schedule_.stages()[schedule_.stage_of(step_ - 1)].length;
  const auto count = std::min(length, text_.size(data::Split::dev));
  const auto tokens = text_.symbols(data::Split::dev, 0, count).unsqueeze(0).to(device_);
  std::optional<AverageInPlace> in_place;
  if (average_) in_place.emplace(*average_);
  model_->eval();
  const eval::Autocast autocast(device_, options_.bfloat16);
  const auto predicted = model_->windows(tokens);
  std::vector<nn::WindowStatistics> all;
  for (std::size_t layer = 0; layer < predicted.size(); ++layer) {
    const auto& pool = model_->blocks()[layer]->options().pool;
    if (const auto statistics = nn::window_statistics(pool, predicted[layer])) all.push_back(*statistics);
  }
  return all;
}

StepReport Trainer::report(const Update& update, std::optional<double> dev_loss) {
  const auto& stages = schedule_.stages();
  const auto& stage = stages[schedule_.stage_of(step_ - 1)];
  const auto seconds = seconds_since(clock_);
  const auto now = seconds / static_cast<double>(stage.batch * stage.length);
  seconds_per_token_ = seconds_per_token_ == 0 ? now : kOldSpeed * seconds_per_token_ + (1 - kOldSpeed) * now;
  double left = 0;
  for (auto s = step_, i = std::int64_t{0}; i < static_cast<std::int64_t>(stages.size()); s -= stages[i++].steps) {
    left += static_cast<double>(stages[i].steps - std::clamp<std::int64_t>(s, 0, stages[i].steps)) *
            static_cast<double>(stages[i].batch * stages[i].length);
  }
  return {.step = step_,
          .steps = schedule_.steps(),
          .loss = update.loss,
          .lr = update.lr,
          .gradient_norm = update.gradient_norm,
          .skipped = update.skipped,
          .dev_loss = dev_loss,
          .seconds = seconds,
          .tokens_per_second = 1 / seconds_per_token_,
          .seconds_left = left * seconds_per_token_,
          .memory = eval::peak_memory(device_)};
}

void Trainer::record(const Update& update, std::optional<double> dev_loss, std::vector<nn::WindowStatistics> windows) {
  auto told = report(update, dev_loss);
  told.windows = std::move(windows);
  Json line = {{"step", step_},
               {"stage", schedule_.stage_of(step_ - 1)},
               {"loss", update.loss},  // JSON has no word for what is not finite: null
               {"bpc", update.loss / std::numbers::ln2},
               {"lr", update.lr},
               {"gradient_norm", update.gradient_norm},
               {"tokens", tokens_}};
  if (update.skipped) line["skipped"] = true;
  if (dev_loss) line["dev_loss"] = *dev_loss, line["dev_bpc"] = *dev_loss / std::numbers::ln2;
  for (const auto& w : told.windows) {
    line["windows"].push_back({{"sigma", w.sigma},
                               {"sigma_spread", w.sigma_spread},
                               {"log_weight_spread", w.log_weight_spread},
                               {"tokens", w.tokens}});
  }
  line["time"] = {{"seconds", told.seconds}, {"tokens_per_second", told.tokens_per_second}, {"memory", told.memory}};
  const bool failed_before = log_failed_;
  log_failed_ = !try_to_write(failed_before ? "" : "the log", [&] { log_->write(line); });

  std::vector<std::pair<std::string, double>> values = {{"train/lr", update.lr},
                                                        {"time/tokens_per_second", told.tokens_per_second},
                                                        {"time/memory", static_cast<double>(told.memory)}};
  if (!update.skipped) {
    values.insert(values.end(), {{"train/loss", update.loss},
                                 {"train/bpc", update.loss / std::numbers::ln2},
                                 {"train/gradient_norm", update.gradient_norm}});
  }
  if (dev_loss) values.emplace_back("dev/bpc", *dev_loss / std::numbers::ln2);
  for (std::size_t layer = 0; layer < told.windows.size(); ++layer) {
    const auto name = "windows/layer" + std::to_string(layer);
    values.emplace_back(name + "/sigma", told.windows[layer].sigma);
    values.emplace_back(name + "/tokens", told.windows[layer].tokens);
  }
  try_to_write(log_failed_ ? "" : "TensorBoard's events", [&] { events_->scalars(values, step_); });
  observer_.on_step(told);
}

void Trainer::save(std::optional<double> dev_loss) {
  const bool better = dev_loss && std::isfinite(*dev_loss) && (!best_ || *dev_loss < *best_);
  const auto best_now = better ? dev_loss : best_;
  io::Checkpoint checkpoint;
  checkpoint.step = step_;
  checkpoint.model = io::named_tensors(*model_);
  checkpoint.optimizer = adamw_.state();
  if (average_) checkpoint.ema = average_->tensors();
  const auto last = std::clamp<std::int64_t>(step_ - 1, 0, schedule_.steps() - 1);
  checkpoint.metadata = eval::model_metadata(options_.model, schedule_.stages()[schedule_.stage_of(last)].length);
  checkpoint.state = Json({{"step", step_},
                           {"tokens", tokens_},
                           {"skipped", skipped_},
                           {"skipped_in_a_row", skipped_in_a_row_},
                           {"best", best_now ? Json(*best_now) : Json()},
                           {"text", identity(text_)}})
                         .dump(2) +
                     "\n";
  log_->sync();
  events_->sync();
  checkpoints_->save(checkpoint);
  best_ = best_now;
  if (better) checkpoints_->mark_best({step_, *dev_loss, kMetric});
}

bool Trainer::try_to_save(std::optional<double> dev_loss) {
  saved_ = true;
  saved_at_ = std::chrono::steady_clock::now();
  return try_to_write("the checkpoint of step " + std::to_string(step_), [&] { save(dev_loss); });
}

void Trainer::save_last(std::optional<double> dev_loss) {
  try {
    save(dev_loss);
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
    if (!what.empty()) observer_.on_message(what + " was not written, training goes on: " + e.what());
    return false;
  }
}

}  // namespace contextpool::train
