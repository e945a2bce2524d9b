#include "contextpool/train/updater.h"

#include <map>
#include <utility>

#include "contextpool/data/random.h"
#include "contextpool/io/safetensors.h"
#include "contextpool/runtime/casts.h"
#include "contextpool/runtime/graph.h"
#include "contextpool/train/sharded.h"

namespace contextpool::train {
namespace {

constexpr std::uint64_t kDropout = 1;     // tells dropout's random numbers from the rows of a batch
constexpr int kAlikeBeforeRecording = 2;  // steps after the first of their shapes

std::int64_t first_part(const TrainOptions& options, int rank) { return rank * options.accumulate; }

std::vector<Trainable> parameters_of(const tasks::Task& task) {
  std::vector<Trainable> all;
  for (const auto& p : task.model()->named_parameters()) {
    if (p.value().requires_grad()) all.push_back({p.key(), p.value(), task.family().decays(p.key(), p.value())});
  }
  return all;
}

std::vector<torch::Tensor> tensors_of(const std::vector<Trainable>& parameters) {
  std::vector<torch::Tensor> all;
  for (const auto& p : parameters) all.push_back(p.parameter);
  return all;
}

std::unique_ptr<Optimizer> optimizer_for(const std::vector<Trainable>& parameters, const TrainOptions& options,
                                         runtime::Processes& processes) {
  if (!options.shard_optimizer || processes.size() == 1) return make_optimizer(parameters, options.optimizer);
  return std::make_unique<ShardedOptimizer>(parameters, options.optimizer, processes);
}

// The sizes and types of a part's tensors, those that stay on the CPU last; nothing where parts differ.
std::vector<std::pair<std::vector<std::int64_t>, torch::ScalarType>> shapes_of(const StepBatch& batch) {
  const auto of_part = [](const tasks::Batch& part) {
    std::vector<std::pair<std::vector<std::int64_t>, torch::ScalarType>> shapes;
    for (const auto& tensor : part.tensors) shapes.emplace_back(tensor.sizes().vec(), tensor.scalar_type());
    return shapes;
  };
  auto shapes = of_part(batch.front());
  for (const auto& part : batch) {
    if (of_part(part) != shapes) return {};
  }
  shapes.push_back({{static_cast<std::int64_t>(batch.size())}, torch::kLong});
  return shapes;
}

std::int64_t elements_of(const std::vector<std::pair<std::vector<std::int64_t>, torch::ScalarType>>& shapes) {
  std::int64_t sum = 0;
  for (const auto& [sizes, type] : shapes) sum += c10::multiply_integers(sizes);
  return sum;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

StepBatch make_step_batch(const tasks::Task& task, const TrainOptions& options, const tasks::StepPlace& place,
                          int rank) {
  StepBatch batch;
  for (std::int64_t part = 0; part < options.accumulate; ++part) {
    batch.push_back(task.batch(place, {first_part(options, rank) + part, parts(options)}));
    if (task.device().is_cpu()) continue;
    auto& tensors = batch.back().tensors;
    for (std::size_t i = 0; i + batch.back().stay < tensors.size(); ++i) tensors[i] = tensors[i].pin_memory();
  }
  return batch;
}

// Small tensors as they are when this is made. A row for each type: a kernel for each tensor would cost more than the
// copy itself.
class Updater::Remembered {
 public:
  explicit Remembered(const std::vector<torch::Tensor>& tensors) {
    for (const auto& tensor : tensors) by_type_[tensor.scalar_type()].push_back(tensor);
    for (const auto& [type, its] : by_type_) rows_[type] = row_of(its);
  }

  // Gives them these values again where `skip` is 1.
  void restore_if(const torch::Tensor& skip) {
    for (auto& [type, its] : by_type_) {
      std::vector<std::int64_t> sizes;
      for (const auto& tensor : its) sizes.push_back(tensor.numel());
      auto values = torch::where(skip > 0, rows_[type], row_of(its)).split_with_sizes(sizes);
      for (std::size_t i = 0; i < its.size(); ++i) values[i] = values[i].view(its[i].sizes());
      at::_foreach_copy_(its, values);
    }
  }

 private:
  static torch::Tensor row_of(const std::vector<torch::Tensor>& tensors) {
    std::vector<torch::Tensor> flat;
    for (const auto& tensor : tensors) flat.push_back(tensor.flatten());
    return torch::cat(flat);
  }

  std::map<torch::ScalarType, std::vector<torch::Tensor>> by_type_;
  std::map<torch::ScalarType, torch::Tensor> rows_;
};

Updater::Updater(std::shared_ptr<tasks::Task> task, const TrainOptions& options,
                 std::shared_ptr<runtime::Processes> processes)
    : task_(std::move(task)),
      options_(options),
      processes_(std::move(processes)),
      parameters_(parameters_of(*task_)),
      buffers_(task_->model()->buffers()) {
  const auto tensors = io::named_tensors(*task_->model());
  for (const auto& [name, tensor] : tensors) processes_->broadcast(tensor, /*from=*/0);
  gradients_ = processes_->sum_gradients(tensors_of(parameters_));
  optimizer_ = optimizer_for(parameters_, options_, *processes_);
  const auto device = task_->device();
  const auto scalar = [&](torch::ScalarType type) { return torch::zeros({}, torch::dtype(type).device(device)); };
  total_ = scalar(torch::kDouble);
  weight_ = scalar(torch::kFloat);
  lr_ = scalar(device.is_cpu() ? torch::kDouble : torch::kFloat);
  can_record_ =
      options_.cuda_graphs && processes_->size() == 1 && runtime::Graph::available(device) && task_->replayable();
  records_ = can_record_;
  // Only the process that scores and saves needs the average.
  if (options_.ema > 0 && processes_->first()) average_.emplace(tensors, options_.ema);
}

// The graphs of a step: its first part, each further part, and the update.
struct Updater::Recorded {
  std::vector<torch::Tensor> inputs;  // of a part, which are filled before it is replayed
  std::unique_ptr<runtime::Graph> first, further, update;
  torch::Tensor figures;
};

Updater::~Updater() = default;

Updater::Done Updater::step(const StepBatch& batch, std::int64_t step, double lr) {
  task_->model()->train();
  const auto [weight, units] = count(batch);
  weight_.fill_(weight);
  lr_.fill_(lr);
  if (replays(batch)) return {replay(batch, step), units};
  zero_gradients(parameters_);
  // Weights are cast to bfloat16 for the first part, and not again for the others.
  const runtime::KeepCasts keep_casts;
  begin();
  for (std::size_t part = 0; part < batch.size(); ++part) {
    seed_part(step, part);
    add_part(inputs_of(batch[part]), /*last=*/part + 1 == batch.size());
  }
  return {update(), units};
}

void Updater::begin() {
  total_.zero_();
  buffers_before_ = std::make_unique<Remembered>(buffers_);
}

void Updater::seed_part(std::int64_t step, std::size_t part) {
  const auto first = static_cast<std::uint64_t>(first_part(options_, processes_->rank()));
  torch::manual_seed(data::random_bits(
      {static_cast<std::uint64_t>(options_.seed), static_cast<std::uint64_t>(step), first + part, kDropout}));
}

std::vector<torch::Tensor> Updater::inputs_of(const tasks::Batch& part) {
  auto tensors = part.tensors;
  for (std::size_t i = 0; i + part.stay < tensors.size(); ++i) {
    tensors[i] = tensors[i].to(task_->device(), /*non_blocking=*/true);
  }
  return task_->inputs(std::move(tensors));
}

void Updater::add_part(const std::vector<torch::Tensor>& inputs, bool last) {
  const auto loss = task_->loss(inputs, options_.bfloat16) / weight_;
  if (gradients_ && last) {
    regularize(processes_->size());  // its share, before all gradients are summed
    gradients_->backward(loss);
  } else {
    loss.backward();
  }
  total_ += loss.detach();
}

torch::Tensor Updater::update() {
  if (!gradients_) regularize(1);
  const torch::NoGradGuard no_grad;
  processes_->sum_in_place(total_);
  const auto norm = gradient_norm(parameters_).to(torch::kDouble);
  const auto skip = total_.isfinite().logical_and_(norm.isfinite()).logical_not_().to(torch::kFloat);
  if (options_.clip > 0) scale_gradients(parameters_, (options_.clip / norm).clamp_max(1));
  optimizer_->step_unless(skip, lr_);
  buffers_before_->restore_if(skip);
  task_->after_step();  // of a step that was skipped it finds what it left after the one before
  if (average_) average_->update(skip);
  return torch::stack({total_, norm});
}

// A step is recorded when some like it have been taken: what is made once (tables of positions, plans of cuDNN) is then
// there. What was recorded stays while steps of other shapes come now and then, such as the last of an epoch.
bool Updater::replays(const StepBatch& batch) {
  if (!records_) return false;
  auto shapes = shapes_of(batch);
  alike_ = shapes == shapes_before_ ? alike_ + 1 : 0;
  shapes_before_ = std::move(shapes);
  if (recorded_ && shapes_before_ == recorded_shapes_) return true;
  // Its memory serves no other step: a larger one may need it.
  if (recorded_ && elements_of(shapes_before_) > elements_of(recorded_shapes_)) recorded_.reset();
  if (alike_ < kAlikeBeforeRecording || shapes_before_.empty()) return false;
  try {
    record(batch);
  } catch (const std::exception& e) {
    can_record_ = records_ = false;
    recorded_.reset();
    note_ = std::string("steps are launched kernel by kernel, since one could not be recorded as a CUDA graph: ") +
            first_line(e.what());
  }
  return records_;
}

void Updater::record(const StepBatch& batch) {
  recorded_.reset();  // its memory first
  auto recording = std::make_unique<Recorded>();
  for (const auto& input : inputs_of(batch.front())) recording->inputs.push_back(input.clone());
  const auto graph = [&](const runtime::Graph* before, const std::function<void()>& work) {
    auto recorded = std::make_unique<runtime::Graph>(task_->device(), before);
    recorded->record(work);
    return recorded;
  };
  zero_gradients(parameters_);
  const runtime::KeepCasts keep_casts;
  recording->first = graph(nullptr, [&] {
    begin();
    add_part(recording->inputs, /*last=*/batch.size() == 1);
  });
  if (batch.size() > 1) {
    recording->further = graph(recording->first.get(), [&] { add_part(recording->inputs, /*last=*/false); });
  }
  recording->update = graph(recording->first.get(), [&] { recording->figures = update(); });
  recorded_ = std::move(recording);
  recorded_shapes_ = shapes_before_;
}

torch::Tensor Updater::replay(const StepBatch& batch, std::int64_t step) {
  for (std::size_t part = 0; part < batch.size(); ++part) {
    const auto inputs = inputs_of(batch[part]);
    for (std::size_t i = 0; i < inputs.size(); ++i) recorded_->inputs[i].copy_(inputs[i], /*non_blocking=*/true);
    seed_part(step, part);
    (part == 0 ? recorded_->first : recorded_->further)->replay();
  }
  recorded_->update->replay();
  return recorded_->figures;
}

void Updater::set_recording(bool allowed) {
  records_ = allowed && can_record_;
  if (!records_) recorded_.reset();
  alike_ = 0;
}

std::vector<std::string> Updater::take_notes() {
  if (note_.empty()) return {};
  return {std::exchange(note_, {})};
}

void Updater::regularize(int sharers) {
  const auto more = task_->regularizer();
  if (!more.defined()) return;
  if (sharers == 1) {
    more.backward();
  } else {
    (more / sharers).backward();
  }
}

Updater::Count Updater::count(const StepBatch& batch) {
  double weight = 0;
  std::int64_t units = 0;
  for (const auto& part : batch) {
    weight += part.weight;
    units += part.units;
  }
  const auto all = processes_->sum({weight, static_cast<double>(units)});
  return {all[0], static_cast<std::int64_t>(all[1])};
}

}  // namespace contextpool::train
