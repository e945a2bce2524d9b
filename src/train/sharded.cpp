#include "contextpool/train/sharded.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace contextpool::train {
namespace {

std::vector<std::int64_t> sizes_of(const std::vector<Trainable>& parameters) {
  std::vector<std::int64_t> sizes;
  for (const auto& p : parameters) sizes.push_back(p.parameter.numel());
  return sizes;
}

// What the whole optimizer would keep: tensors of the meta device have a shape and no memory.
io::NamedTensors whole_layout(const std::vector<Trainable>& parameters, const OptimizerOptions& options) {
  std::vector<Trainable> shapes;
  for (const auto& p : parameters) {
    shapes.push_back({p.name, torch::empty_like(p.parameter, torch::device(torch::kMeta)), p.decays});
  }
  return make_optimizer(shapes, options)->state();
}

std::map<std::string, torch::Tensor> by_name(const io::NamedTensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

}  // namespace

std::vector<int> share_out(const std::vector<std::int64_t>& sizes, int owners) {
  TORCH_CHECK_VALUE(static_cast<int>(sizes.size()) >= owners, "contextpool: shard-optimizer shares ", sizes.size(),
                    " parameters out over ", owners, " processes, which leaves some without; use fewer processes");
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return sizes[a] > sizes[b]; });
  std::vector<std::int64_t> load(static_cast<std::size_t>(owners), 0);
  std::vector<int> owner(sizes.size(), 0);
  for (const auto i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    owner[i] = static_cast<int>(least - load.begin());
    *least += std::max<std::int64_t>(1, sizes[i]);
  }
  return owner;
}

ShardedOptimizer::ShardedOptimizer(const std::vector<Trainable>& parameters, const OptimizerOptions& options,
                                   runtime::Processes& processes)
    : parameters_(parameters),
      owners_(share_out(sizes_of(parameters), processes.size())),
      processes_(processes),
      layout_(whole_layout(parameters, options)) {
  std::vector<Trainable> mine;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (owners_[i] == processes_.rank()) mine.push_back(parameters_[i]);
  }
  mine_ = make_optimizer(mine, options);
}

void ShardedOptimizer::step_unless(const torch::Tensor& skip, const torch::Tensor& lr) {
  const torch::NoGradGuard no_grad;
  mine_->step_unless(skip, lr);
  // One message for each owner: its parameters in a row.
  for (int owner = 0; owner < processes_.size(); ++owner) {
    std::vector<torch::Tensor> its, rows;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (owners_[i] == owner) its.push_back(parameters_[i].parameter);
    }
    for (const auto& p : its) rows.push_back(p.reshape({-1}));
    const auto all = torch::cat(rows);
    processes_.broadcast(all, owner);
    if (owner == processes_.rank()) continue;
    std::int64_t begin = 0;
    for (const auto& p : its) {
      p.copy_(all.slice(0, begin, begin + p.numel()).view(p.sizes()));
      begin += p.numel();
    }
  }
}

io::NamedTensors ShardedOptimizer::state() const {
  const auto mine = by_name(mine_->state());
  std::map<std::string, int> owner_of;
  for (std::size_t i = 0; i < parameters_.size(); ++i) owner_of[parameters_[i].name] = owners_[i];
  io::NamedTensors whole;
  for (const auto& [name, shape] : layout_) {
    const auto found = owner_of.find(name.substr(name.find('.') + 1));  // "m.<parameter>", but "t"
    const auto owner = found == owner_of.end() || name.find('.') == std::string::npos ? 0 : found->second;
    const bool is_mine = owner == processes_.rank();
    if (owner == 0) {
      if (processes_.first()) whole.emplace_back(name, mine.at(name));
      continue;
    }
    const auto sent = is_mine ? mine.at(name).contiguous()
                              : torch::empty(shape.sizes(), shape.options().device(parameters_[0].parameter.device()));
    processes_.broadcast(sent, owner);
    if (processes_.first()) whole.emplace_back(name, sent.cpu());
  }
  return whole;
}

void ShardedOptimizer::load(const io::NamedTensors& state, const std::string& file) {
  const auto there = by_name(state);
  io::NamedTensors mine;
  for (const auto& [name, tensor] : mine_->state()) {
    if (const auto found = there.find(name); found != there.end()) mine.emplace_back(*found);
  }
  io::load_into(mine_->state(), mine, file);  // which says what is missing
}

}  // namespace contextpool::train
