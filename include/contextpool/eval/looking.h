// Looking at windows: what each ContextPool of a model predicted for one picture or one line of text, as one HTML page
// that needs no network and no other file. The page shows the window of the patch or token under the mouse, layer by
// layer and group by group: its sigma, and the weights
//
//   p_ij = exp(l_j - d_ij^2 / (2 sigma_i^2)) / sum_k exp(l_k - d_ik^2 / (2 sigma_i^2))
//
// which it computes itself from l and sigma; the map of sizes of every layer; and how sizes are distributed.
#pragma once

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "contextpool/nn/window_statistics.h"

namespace contextpool::eval {

// How many windows have which size. The bins grow with the largest size seen, by merging in pairs.
class SizeHistogram {
 public:
  static constexpr std::int64_t kBins = 64;
  void add(const torch::Tensor& sizes);  // of any shape; all that is not finite is left out
  double top() const { return top_; }    // the upper end of the last bin; the lower end of the first is 0
  const std::array<std::int64_t, kBins>& counts() const { return counts_; }

 private:
  double top_ = 0;
  std::array<std::int64_t, kBins> counts_{};
};

struct LookedAtLayer {
  torch::Tensor log_weight;  // [groups, tokens] or [groups, height, width]
  torch::Tensor sigma;       // of the targets, the same; a map may have fewer targets than pixels (a stride)
  nn::WindowStatistics statistics;
  SizeHistogram sizes;  // of this input, or of many
};

struct Looking {
  std::string model;  // what was asked, and what: for the head of the page
  std::string input;
  bool causal = false;
  bool row = false;  // windows of a map that lie along its rows, one after the other, and not in the plane
  std::vector<LookedAtLayer> layers;
  std::string sizes_of;  // whose sizes the histograms have: "256 pictures of the dev split"
  // Of a picture: uint8 [side, side, 3], for the eye and as the network sees it.
  torch::Tensor picture, seen;
  std::vector<std::pair<std::string, double>> answers;  // the likeliest classes
  // Of a text: what stands for each token.
  std::vector<std::string> tokens;
};

// One layer, of row 0 of a forward pass; its histogram has this row's sizes.
LookedAtLayer look_at(const nn::ContextPoolOptions& options, const nn::Windows& windows, std::int64_t dims);

// The page. Whatever comes from users is data in it, never markup.
std::string looking_page(const Looking& looking);

}  // namespace contextpool::eval
