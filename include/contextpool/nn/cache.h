// What causal modules remember of the tokens seen so far, for step: tensors [batch, tokens, ...] by name, all of the
// same tokens. Without gradients, room is doubled when it is full, so that appending a token costs the same on average
// however many there are. Where gradients are recorded, every step makes new tensors, since the old ones are part of
// the graph. Copies are independent: they share memory until one of them appends.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace contextpool::nn {

class TokenCache {
 public:
  // Tokens seen so far.
  int64_t length() const { return length_; }
  // The batch's size; nothing before the first step.
  std::optional<int64_t> rows() const;

  // Forgets all but the first `length` tokens, for speculative decoding.
  void crop(int64_t length);
  // Row b becomes what row rows[b] was (int64 [B']), or the rows that are true stay (bool [B]).
  void select(const torch::Tensor& rows);
  // select under the name that beam search knows.
  void reorder(const torch::Tensor& rows) { select(rows); }
  // Each row becomes `times` equal ones that lie together, as torch::repeat_interleave orders them.
  void repeat(int64_t times);

  // For the modules. append puts fresh [B, T, ...] behind the first length() tokens of a store and returns all
  // length() + T; append_mask does so with the mask of real tokens [B, T] (undefined: all are) and returns an undefined
  // tensor where none was ever masked; advance makes the appended tokens count.
  torch::Tensor append(const std::string& name, const torch::Tensor& fresh);
  torch::Tensor append_mask(const torch::Tensor& mask, const torch::Tensor& fresh);
  void advance(int64_t tokens) { length_ += tokens; }
  // The first length() tokens of a store, which must exist.
  torch::Tensor read(const std::string& name) const;
  // Throws unless a step of these rows follows those before it.
  void check_rows(const char* who, const torch::Tensor& fresh) const;

 private:
  std::map<std::string, torch::Tensor> stores_;  // each [batch, room, ...]
  int64_t length_ = 0;
};

// What a mixer of causal rows (nn/mixer.h) remembers; one kind of cache for all of them.
class MixerCache : public TokenCache {};

}  // namespace contextpool::nn
