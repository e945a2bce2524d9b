#include "contextpool/nn/cache.h"

#include <algorithm>

namespace contextpool::nn {
namespace {

using torch::Tensor;

constexpr int64_t kFirstRoom = 64;  // tokens a store has room for at first
constexpr auto kReal = "real";      // the store of the mask; it exists once a mask was given

// Whether nothing else holds the memory: no copy of the cache, and no graph.
bool is_ours(const Tensor& store) { return store.use_count() == 1 && store.storage().use_count() == 1; }

}  // namespace

std::optional<int64_t> TokenCache::rows() const {
  if (stores_.empty()) return std::nullopt;
  return stores_.begin()->second.size(0);
}

Tensor TokenCache::append(const std::string& name, const Tensor& fresh) {
  auto& store = stores_[name];
  if (torch::GradMode::is_enabled()) {
    store = store.defined() ? torch::cat({store.slice(1, 0, length_), fresh}, 1) : fresh.clone();
    return store;
  }
  const auto needed = length_ + fresh.size(1);
  if (!store.defined() || store.size(1) < needed || !is_ours(store)) {
    auto sizes = fresh.sizes().vec();
    sizes[1] = store.defined() ? 2 * needed : std::max(kFirstRoom, needed);
    auto larger = torch::empty(sizes, fresh.options());
    if (length_ > 0) larger.slice(1, 0, length_).copy_(store.slice(1, 0, length_));
    store = larger;
  }
  store.slice(1, length_, needed).copy_(fresh);
  return store.slice(1, 0, needed);
}

Tensor TokenCache::read(const std::string& name) const {
  const auto found = stores_.find(name);
  TORCH_CHECK(found != stores_.end(), "TokenCache: there is no store \"", name, "\"");
  return found->second.slice(1, 0, length_);
}

Tensor TokenCache::append_mask(const Tensor& mask, const Tensor& fresh) {
  const bool masked = stores_.contains(kReal);
  if (!mask.defined() && !masked) return {};
  const auto all_real = [&](int64_t tokens) {
    return torch::ones({fresh.size(0), tokens}, fresh.options().dtype(torch::kBool));
  };
  if (!masked && length_ > 0) stores_[kReal] = all_real(length_);
  return append(kReal, mask.defined() ? mask : all_real(fresh.size(1)));
}

void TokenCache::check_rows(const char* who, const Tensor& fresh) const {
  const auto have = rows();
  TORCH_CHECK_VALUE(!have || *have == fresh.size(0), who, ": the cache has ", have.value_or(0),
                    " rows, but the new tokens have ", fresh.size(0),
                    "; select or repeat the cache's rows, or begin a new one");
}

void TokenCache::crop(int64_t length) {
  TORCH_CHECK_VALUE(length >= 0 && length <= length_, "TokenCache: crop keeps the first tokens, from 0 to all ",
                    length_, ", but was asked for ", length);
  length_ = length;
}

void TokenCache::select(const Tensor& rows) {
  const auto chosen = rows.scalar_type() == torch::kBool ? rows.nonzero().squeeze(1) : rows;
  for (auto& [name, store] : stores_) store = store.index_select(0, chosen);
}

void TokenCache::repeat(int64_t times) {
  TORCH_CHECK_VALUE(times >= 1, "TokenCache: repeat needs 1 or more times, but was asked for ", times);
  for (auto& [name, store] : stores_) store = store.repeat_interleave(times, 0);
}

}  // namespace contextpool::nn
