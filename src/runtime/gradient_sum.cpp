// The first backward is summed as a whole and shows which parameters have gradients. From then on c10d's Reducer sums
// buckets as they are ready, during the backward pass. Only where some parameter had no gradient does it walk the
// graph of every loss for unused ones, which costs time and keeps buckets in the order of construction.
#include "runtime/gradient_sum.h"

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace contextpool::runtime {
namespace {

using c10d::Reducer;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// The Reducer's own way is a mean; losses here are divided by the weight of all processes already.
class SumHook : public c10d::CppCommHookInterface<Group> {
 public:
  using CppCommHookInterface::CppCommHookInterface;
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    std::vector<torch::Tensor> tensors = {bucket.getBufferRef()};
    return state_->allreduce(tensors)->getFuture();
  }
};

// The constructor of torch 2.13 wants more than that of 2.11: what both may leave out, spelled out where it must be.
template <typename R, typename... Arguments>
std::unique_ptr<R> make_reducer(Arguments... arguments) {
  if constexpr (std::is_constructible_v<R, Arguments..., bool, bool, std::vector<std::int64_t>>) {
    return std::make_unique<R>(arguments..., /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
                               /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  } else {
    return std::make_unique<R>(arguments...);
  }
}

class ReducedGradients : public GradientSum {
 public:
  ReducedGradients(Group group, std::vector<torch::Tensor> parameters)
      : group_(std::move(group)), parameters_(std::move(parameters)) {}

  void backward(const torch::Tensor& loss) override {
    if (!reducer_) {
      loss.backward();
      make(/*some_are_unused=*/sum_whole());
      return;
    }
    reducer_->rebuild_buckets();  // once, to the order in which gradients came
    reducer_->prepare_for_backward(some_are_unused_ ? std::vector<torch::Tensor>{loss} : std::vector<torch::Tensor>{});
    loss.backward();
  }

 private:
  // Whether a parameter has a gradient nowhere, or only in some processes.
  bool sum_whole() {
    const torch::NoGradGuard no_grad;
    auto used = torch::zeros({static_cast<std::int64_t>(parameters_.size())}, torch::kInt);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].grad().defined()) used[static_cast<std::int64_t>(i)] = 1;
    }
    all_reduce(used);
    std::unordered_map<torch::ScalarType, std::vector<torch::Tensor>> by_type;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (used[static_cast<std::int64_t>(i)].item<int>() == 0) continue;
      auto& gradient = parameters_[i].mutable_grad();
      if (!gradient.defined()) gradient = torch::zeros_like(parameters_[i]);
      by_type[gradient.scalar_type()].push_back(gradient);
    }
    for (auto& [type, gradients] : by_type) {
      std::vector<torch::Tensor> rows;
      for (const auto& g : gradients) rows.push_back(g.reshape({-1}));
      auto all = torch::cat(rows);
      all_reduce(all);
      std::int64_t begin = 0;
      for (const auto& g : gradients) {
        g.copy_(all.slice(0, begin, begin + g.numel()).view(g.sizes()));
        begin += g.numel();
      }
    }
    return used.ne(group_->getSize()).any().item<bool>();
  }

  void all_reduce(const torch::Tensor& tensor) {
    std::vector<torch::Tensor> tensors = {tensor};
    group_->allreduce(tensors)->wait();
  }

  void make(bool some_are_unused) {
    some_are_unused_ = some_are_unused;
    constexpr std::size_t kFirst = c10d::kDefaultFirstBucketBytes, kBucket = c10d::kDefaultBucketBytesCap;
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters_, {kFirst, kBucket}));
    std::reverse(buckets.begin(), buckets.end());  // about the order in which gradients come
    reducer_ =
        make_reducer<Reducer>(parameters_, std::move(buckets), group_, std::vector<bool>(parameters_.size(), false),
                              static_cast<std::int64_t>(kBucket), some_are_unused, /*gradient_as_bucket_view=*/true,
                              std::unordered_map<std::size_t, std::string>{}, static_cast<std::int64_t>(kFirst));
    reducer_->register_comm_hook(std::make_unique<SumHook>(group_));
  }

  Group group_;
  std::vector<torch::Tensor> parameters_;
  bool some_are_unused_ = false;
  std::unique_ptr<Reducer> reducer_;
};

}  // namespace

std::unique_ptr<GradientSum> make_gradient_sum(const Group& group, const std::vector<torch::Tensor>& parameters) {
  return std::make_unique<ReducedGradients>(group, parameters);
}

}  // namespace contextpool::runtime
