// Multi-head attention from one row of tokens to another: out(softmax(q k^T / sqrt(head features)) v) with q = q(x) and
// k, v = kv(memory). The kind of attention is full, local (local_attention.h) or area (area_attention.h). Positions do
// not turn its queries and keys: the two rows have positions of their own.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>

#include "contextpool/nn/linear.h"
#include "contextpool/nn/local_attention.h"
#include "contextpool/nn/padding.h"

namespace contextpool::nn {

struct CrossAttentionOptions {
  int64_t features = 512;
  int64_t heads = 8;
  double dropout = 0;         // of the attention weights
  std::string kind = "full";  // full, local or area
  int64_t area_width = 5;     // tokens of the widest area
};

// Keys and values of the memory, computed once for all the tokens that will ask. Several rows of tokens can share one
// row of it (repeat), as the hypotheses of a beam do: it is kept once.
class CrossMemory {
 public:
  // Rows of tokens that this memory is for: its own rows times how many share each.
  std::optional<int64_t> rows() const;
  // Each row of tokens becomes `times` equal ones that lie together.
  void repeat(int64_t times);
  // Row b of the tokens becomes what row rows[b] was (int64 [B'] or bool [B]); rows that shared no longer do.
  void select(const torch::Tensor& rows);
  // Of the memory's own rows those named (int64) or true (bool) stay, each with all the rows of tokens that share it.
  void select_shared(const torch::Tensor& rows);

 private:
  friend class CrossAttentionImpl;
  torch::Tensor keys_, values_;  // [batch, tokens, heads, n]; of areas [batch, tokens, width, heads, n]
  torch::Tensor real_;           // [batch, tokens]; undefined where no token is padding
  int64_t shared_ = 1;
};

class CrossAttentionImpl : public torch::nn::Module {
 public:
  explicit CrossAttentionImpl(CrossAttentionOptions options);

  // memory [batch, tokens, features]; what padded tokens of it hold reaches nothing. A row without any real token gives
  // the same output whatever it holds.
  CrossMemory remember(const torch::Tensor& memory, const Padding& padding = {});

  // x [rows, tokens, features], a row for each of the memory's.
  torch::Tensor forward(const torch::Tensor& x, const CrossMemory& memory);

  const CrossAttentionOptions& options() const { return options_; }

 private:
  CrossAttentionOptions options_;
  Linear q_{nullptr}, kv_{nullptr}, out_{nullptr};
  LocalWindows local_{nullptr};  // of kind local
};
TORCH_MODULE(CrossAttention);

}  // namespace contextpool::nn
