#include "contextpool/train/updater.h"

#include <map>
#include <utility>

#include "contextpool/data/random.h"
#include "contextpool/io/safetensors.h"
#include "contextpool/runtime/casts.h"
#include "contextpool/train/sharded.h"

namespace contextpool::train {
namespace {

constexpr std::uint64_t kDropout = 1;  // tells dropout's random numbers from the rows of a batch

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

// Small tensors as they are when this is made. A row for each type: a kernel for each tensor would cost more than the
// copy itself.
class Remembered {
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

}  // namespace

StepBatch make_step_batch(const tasks::Task& task, const TrainOptions& options, const tasks::StepPlace& place,
                          int rank) {
  StepBatch made;
  for (std::int64_t part = 0; part < options.accumulate; ++part) {
    made.push_back(task.batch(place, {first_part(options, rank) + part, parts(options)}));
    if (task.device().is_cpu()) continue;
    auto& tensors = made.back().tensors;
    for (std::size_t i = 0; i + made.back().stay < tensors.size(); ++i) tensors[i] = tensors[i].pin_memory();
  }
  return made;
}

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
  // Only the process that scores and saves needs the average.
  if (options_.ema > 0 && processes_->first()) average_.emplace(tensors, options_.ema);
}

Updater::Done Updater::step(const StepBatch& batch, std::int64_t step, double lr) {
  task_->model()->train();
  zero_gradients(parameters_);
  const auto [weight, units] = count(batch);
  Remembered buffers(buffers_);
  const auto loss = backward(batch, step, weight);

  const torch::NoGradGuard no_grad;
  const auto norm = gradient_norm(parameters_).to(torch::kDouble);
  const auto skip = loss.isfinite().logical_and_(norm.isfinite()).logical_not_().to(torch::kFloat);
  if (options_.clip > 0) scale_gradients(parameters_, (options_.clip / norm).clamp_max(1));
  optimizer_->step_unless(skip, lr);
  buffers.restore_if(skip);
  task_->after_step();  // of a step that was skipped it finds what it left after the one before
  if (average_) average_->update(skip);
  return {torch::stack({loss, norm}), units};
}

torch::Tensor Updater::backward(const StepBatch& batch, std::int64_t step, double weight) {
  const auto device = task_->device();
  const auto first = static_cast<std::uint64_t>(first_part(options_, processes_->rank()));
  // Weights are cast to bfloat16 for the first part, and not again for the others.
  const runtime::KeepCasts keep_casts;
  auto total = torch::zeros({}, torch::dtype(torch::kDouble).device(device));
  for (std::size_t part = 0; part < batch.size(); ++part) {
    torch::manual_seed(data::random_bits(
        {static_cast<std::uint64_t>(options_.seed), static_cast<std::uint64_t>(step), first + part, kDropout}));
    auto tensors = batch[part].tensors;
    for (std::size_t i = 0; i + batch[part].stay < tensors.size(); ++i) {
      tensors[i] = tensors[i].to(device, /*non_blocking=*/true);
    }
    const auto loss = task_->loss(tensors, options_.bfloat16) / weight;
    if (gradients_ && part + 1 == batch.size()) {
      regularize(processes_->size());  // its share, before all gradients are summed
      gradients_->backward(loss);
    } else {
      loss.backward();
    }
    total += loss.detach();
  }
  if (!gradients_) regularize(1);
  processes_->sum_in_place(total);
  return total;
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
