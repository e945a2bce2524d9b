// What pool1d is tried on: one list of sizes, dtypes, layouts, windows, weights and masks, in which every pair of
// choices occurs together, and the numbers that belong to a case. Free of torch, so that kernels and operators share
// it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/algorithm.h"
#include "kernels/cpu/pool1d.h"

namespace contextpool::testing {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// How a row's sizes (sigma), log weights and padding are drawn; see make_problem.
enum class Sizes { mixed, proportional, log_uniform, powers_of_two, all_huge, all_tiny };
enum class Logits { equal, spread_1, spread_5, plus_minus_20, heavy_clusters, light_clusters };
enum class Mask { none, left, right, middle, alternating, random, islands, everywhere };
enum class Layout { contiguous, transposed, sliced };

inline constexpr std::array kTypes = {Type::f64, Type::f32, Type::bf16, Type::f16};
inline constexpr std::array kAlgorithms = {Algorithm::automatic, Algorithm::dense, Algorithm::window,
                                           Algorithm::pyramid};

inline const char* name(Type v) { return std::array{"f64", "f32", "bf16", "f16"}[static_cast<int>(v)]; }
inline const char* name(Algorithm v) { return std::array{"auto", "dense", "window", "pyramid"}[static_cast<int>(v)]; }
inline const char* name(Sizes v) {
  return std::array{"mixed", "proportional", "loguniform", "powers", "huge", "tiny"}[static_cast<int>(v)];
}
inline const char* name(Logits v) {
  return std::array{"equal", "spread1", "spread5", "pm20", "heavy", "light"}[static_cast<int>(v)];
}
inline const char* name(Mask v) {
  return std::array{"unmasked",        "maskleft",   "maskright", "maskmiddle",
                    "maskalternating", "maskrandom", "islands",   "maskall"}[static_cast<int>(v)];
}
inline const char* name(Layout v) { return std::array{"contiguous", "transposed", "sliced"}[static_cast<int>(v)]; }

struct Case {
  std::int64_t batch = 1;
  std::int64_t tokens = 1;
  std::int64_t targets = 1;
  std::int64_t channels = 1;
  bool causal = false;
  Type type = Type::f32;
  Algorithm algorithm = Algorithm::automatic;
  Sizes sizes = Sizes::mixed;
  Logits logits = Logits::spread_1;
  Mask mask = Mask::none;
  Layout layout = Layout::contiguous;
  bool rounds_weights = false;  // whether weights are multiplied in the storage type, as matrix units do
};

inline std::string name(const Case& c) {
  const auto number = [](const char* key, std::int64_t v) { return key + std::to_string(v) + "_"; };
  return number("b", c.batch) + number("n", c.tokens) + number("m", c.targets) + number("d", c.channels) +
         (c.causal ? "causal_" : "both_") + name(c.type) + "_" + name(c.algorithm) + "_" + name(c.sizes) + "_" +
         name(c.logits) + "_" + name(c.mask) + "_" + name(c.layout);
}
inline void PrintTo(const Case& c, std::ostream* out) { *out << name(c); }

// --- numbers as a dtype holds them -----------------------------------------------------------------------------------

inline Type weight_type(Type x) { return x == Type::f64 ? Type::f64 : Type::f32; }
inline std::size_t size_of(Type t) { return std::array<std::size_t, 4>{8, 4, 2, 2}[static_cast<int>(t)]; }
inline int mantissa_bits(Type t) { return std::array{52, 23, 7, 10}[static_cast<int>(t)]; }
inline int least_exponent(Type t) { return std::array{-1022, -126, -126, -14}[static_cast<int>(t)]; }
inline double largest(Type t) {
  return std::array{std::numeric_limits<double>::max(), double{std::numeric_limits<float>::max()},
                    3.3895313892515355e38, 65504.0}[static_cast<int>(t)];
}

// The gap between neighbouring numbers of the dtype at v.
inline double ulp(Type t, double v) {
  const int exponent = v == 0 ? least_exponent(t) : std::max(std::ilogb(v), least_exponent(t));
  return std::ldexp(1.0, exponent - mantissa_bits(t));
}

// To nearest, ties to even; what is beyond the dtype becomes infinite.
inline double round_to(Type t, double v) {
  if (t == Type::f64 || v == 0 || !std::isfinite(v)) return v;
  if (t == Type::f32) return static_cast<float>(v);
  const double gap = ulp(t, v);
  const double r = std::nearbyint(v / gap) * gap;
  return std::abs(r) > largest(t) ? std::copysign(kInf, v) : r;
}

inline void put(Type t, void* memory, std::size_t k, double v) {
  if (t == Type::f64) {
    static_cast<double*>(memory)[k] = v;
  } else if (t == Type::f32) {
    static_cast<float*>(memory)[k] = static_cast<float>(v);
  } else if (t == Type::bf16) {
    const float f = std::isnan(v) ? static_cast<float>(v) : static_cast<float>(round_to(t, v));
    static_cast<std::uint16_t*>(memory)[k] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(f) >> 16);
  } else {
    const auto h = static_cast<_Float16>(static_cast<float>(v));
    static_cast<std::uint16_t*>(memory)[k] = std::bit_cast<std::uint16_t>(h);
  }
}

inline double get(Type t, const void* memory, std::size_t k) {
  if (t == Type::f64) return static_cast<const double*>(memory)[k];
  if (t == Type::f32) return static_cast<const float*>(memory)[k];
  const auto bits = static_cast<const std::uint16_t*>(memory)[k];
  if (t == Type::bf16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}

// --- the numbers of a case -------------------------------------------------------------------------------------------

class Random {
 public:
  explicit Random(std::uint64_t seed) : bits_(seed) {}
  double uniform() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  double log_uniform(double low, double high) { return std::exp(uniform(std::log(low), std::log(high))); }
  // Close to N(0, 1), from four uniform numbers: a row of ten million features should not take seconds to make.
  double normal() {
    const std::uint64_t v = bits_();
    const auto sum = (v & 0xffff) + (v >> 16 & 0xffff) + (v >> 32 & 0xffff) + (v >> 48);
    return (static_cast<double>(sum) * 0x1p-16 - 2) * 1.7320508075688772;
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(n)); }

 private:
  std::mt19937_64 bits_;
};

// Inputs as float64 that the case's dtype holds exactly: x [B, N, D], log_weight [B, N], sigma [B, M], dy [B, M, D].
// The reference visits the targets in `visited`: all of them where that is cheap, else some; dy is 0 at the others.
struct Problem {
  Case spec;
  std::vector<double> x, log_weight, sigma, dy;
  std::vector<std::int64_t> visited;
};

inline void round_inputs(Problem& p) {
  for (double& v : p.x) v = round_to(p.spec.type, v);
  for (double& v : p.dy) v = round_to(p.spec.type, v);
  for (double& v : p.log_weight) v = round_to(weight_type(p.spec.type), v);
  for (double& v : p.sigma) v = round_to(weight_type(p.spec.type), v);
}

inline double draw_size(Sizes sizes, std::int64_t tokens, Random& random) {
  switch (sizes) {
    case Sizes::mixed: {
      const auto kind = random.below(12);
      if (kind == 0) return -1;
      if (kind == 1) return 1e-6;
      if (kind == 2) return 1e6;
      // Half of the others near the length of the row, where a window is neither empty nor everything.
      return kind < 7 ? random.log_uniform(1e-6, 1e6) : random.log_uniform(0.05, 2.0 * static_cast<double>(tokens));
    }
    case Sizes::proportional: return 0.1 * static_cast<double>(tokens) * random.uniform() + 0.3;
    case Sizes::log_uniform: return random.log_uniform(0.5, 16);
    case Sizes::powers_of_two: {  // where schemes with levels change level: at, just below and just above
      const double size = std::ldexp(1.0, static_cast<int>(random.below(14)) - 2);
      return size * std::array{1.0, 1 - 0x1p-23, 1 + 0x1p-22}[static_cast<std::size_t>(random.below(3))];
    }
    case Sizes::all_huge: return random.log_uniform(1e3, 1e6);
    case Sizes::all_tiny: return random.log_uniform(1e-6, 0.3);
  }
  return 1;
}

// All within 40 of the row's largest, as the accuracy contract has it.
inline void draw_log_weights(Logits logits, std::int64_t tokens, double* l, Random& random) {
  const auto fill = [&](double low, double high) {
    for (std::int64_t j = 0; j < tokens; ++j) l[j] = random.uniform(low, high);
  };
  // Patches of 1 to 300 tokens, a few patch lengths apart, so that a window meets one at every distance.
  const auto patches = [&](double low, double high) {
    for (std::int64_t at = random.below(40); at < tokens;) {
      const auto length = static_cast<std::int64_t>(random.log_uniform(1, 300));
      for (std::int64_t j = at; j < std::min(tokens, at + length); ++j) l[j] = random.uniform(low, high);
      at += length + static_cast<std::int64_t>(random.log_uniform(1, 1000));
    }
  };
  switch (logits) {
    case Logits::equal: std::fill_n(l, tokens, 0.25); break;
    case Logits::spread_1:
    case Logits::spread_5:
      for (std::int64_t j = 0; j < tokens; ++j) {
        l[j] = std::clamp(random.normal() * (logits == Logits::spread_1 ? 1 : 5), -20.0, 20.0);
      }
      break;
    case Logits::plus_minus_20:
      for (std::int64_t j = 0; j < tokens; ++j) l[j] = random.below(2) == 0 ? -20 : 20;
      break;
    case Logits::heavy_clusters:
      fill(-20, -19);
      patches(19, 20);
      break;
    case Logits::light_clusters:
      fill(19, 20);
      patches(-20, -19);
      break;
  }
}

inline bool masked(Mask mask, std::int64_t j, std::int64_t tokens, Random& random) {
  switch (mask) {
    case Mask::none: return false;
    case Mask::left: return j < tokens / 3;
    case Mask::right: return j >= tokens - tokens / 3;
    case Mask::middle: return j >= tokens / 4 && j < tokens - tokens / 4;
    case Mask::alternating: return j % 2 == 0;
    case Mask::random: return random.below(10) < 3;
    case Mask::islands: return random.below(60) != 0;  // the nearest source is often far out in a window
    case Mask::everywhere: return true;
  }
  return false;
}

// The targets the reference visits: all when affordable, else the first, the last, those beside powers of two and some.
inline std::vector<std::int64_t> choose_targets(const Case& c, Random& random) {
  constexpr std::int64_t kBudget = 20'000'000;  // products in the reference, for one direction
  const auto affordable =
      std::max<std::int64_t>(8, kBudget / std::max<std::int64_t>(1, c.batch * c.tokens * (c.channels + 8)));
  std::set<std::int64_t> chosen;
  if (c.targets <= affordable) {
    for (std::int64_t m = 0; m < c.targets; ++m) chosen.insert(chosen.end(), m);
  } else {
    chosen = {0, 1, c.targets / 2, c.targets - 2, c.targets - 1};
    if (affordable >= 40) {
      for (std::int64_t m = 32; m < c.targets; m *= 2) chosen.insert({m - 1, m});
    }
    while (std::ssize(chosen) < affordable) chosen.insert(random.below(c.targets));
  }
  return {chosen.begin(), chosen.end()};
}

inline Problem make_problem(const Case& c, std::uint64_t seed = 1) {
  Random random(seed * 7919 + std::hash<std::string>{}(name(c)));
  Problem p{.spec = c, .x = {}, .log_weight = {}, .sigma = {}, .dy = {}, .visited = choose_targets(c, random)};
  p.x.resize(static_cast<std::size_t>(c.batch * c.tokens * c.channels));
  p.log_weight.resize(static_cast<std::size_t>(c.batch * c.tokens));
  p.sigma.resize(static_cast<std::size_t>(c.batch * c.targets));
  p.dy.resize(static_cast<std::size_t>(c.batch * c.targets * c.channels));
  for (double& v : p.x) v = random.normal();
  for (double& v : p.sigma) v = draw_size(c.sizes, c.tokens, random);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    double* l = p.log_weight.data() + b * c.tokens;
    draw_log_weights(c.logits, c.tokens, l, random);
    for (std::int64_t j = 0; j < c.tokens; ++j) {
      if (!masked(c.mask, j, c.tokens, random)) continue;
      l[j] = -kInf;
      // What lies under padding must not matter, whatever it is.
      const double poison = std::array{kNaN, kInf, -kInf, largest(c.type)}[static_cast<std::size_t>(random.below(4))];
      std::fill_n(p.x.begin() + (b * c.tokens + j) * c.channels, c.channels, poison);
    }
    for (const auto m : p.visited) {
      double* dy = p.dy.data() + (b * c.targets + m) * c.channels;
      for (std::int64_t d = 0; d < c.channels; ++d) dy[d] = random.normal();
    }
  }
  round_inputs(p);
  return p;
}

// --- the covering list -----------------------------------------------------------------------------------------------

inline constexpr std::array<std::int64_t, 13> kTokens = {1, 2, 3, 31, 32, 33, 127, 128, 129, 577, 1000, 4096, 20000};
inline constexpr std::array<std::int64_t, 6> kChannels = {1, 3, 8, 64, 129, 512};
// Levels of: tokens, targets (1, some, all), channels, causal, type, algorithm, sizes, logits, mask, layout.
inline constexpr std::array<int, 10> kLevels = {13, 3, 6, 2, 4, 4, 6, 6, 8, 3};
using Choice = std::array<int, kLevels.size()>;

inline Case case_of(const Choice& v) {
  Case c;
  c.tokens = kTokens[static_cast<std::size_t>(v[0])];
  const auto some = c.tokens > 1000 ? 300 : (c.tokens * 2 + 2) / 3;
  c.targets = v[1] == 0 ? 1 : v[1] == 1 ? some : c.tokens;
  c.channels = kChannels[static_cast<std::size_t>(v[2])];
  c.batch = c.tokens > 1000 ? 1 : 2;
  c.causal = v[3] == 1;
  c.type = kTypes[static_cast<std::size_t>(v[4])];
  c.algorithm = kAlgorithms[static_cast<std::size_t>(v[5])];
  c.sizes = static_cast<Sizes>(v[6]);
  c.logits = static_cast<Logits>(v[7]);
  c.mask = static_cast<Mask>(v[8]);
  c.layout = static_cast<Layout>(v[9]);
  return c;
}

// Keeps a case within a second or so on two cores.
inline bool affordable(const Case& c) {
  const bool all_pairs = c.algorithm == Algorithm::dense || c.algorithm == Algorithm::window;
  const double work = static_cast<double>(c.batch * c.channels * c.tokens) * (c.targets == c.tokens ? 1 : 0.1);
  const double pairs = static_cast<double>(c.batch * c.tokens * c.targets) * static_cast<double>(c.channels + 4);
  return work <= 1.5e6 && (!all_pairs || pairs <= 2e8);
}

using Pair = std::array<int, 4>;                               // factor, level, factor, level
using Allowed = std::array<std::vector<int>, kLevels.size()>;  // the levels of each factor that take part

inline Allowed every_level() {
  Allowed allowed;
  for (std::size_t f = 0; f < allowed.size(); ++f) {
    for (int v = 0; v < kLevels[f]; ++v) allowed[f].push_back(v);
  }
  return allowed;
}

// Where the linear-time schemes are at work: long rows, (nearly) every token a target.
inline Allowed long_rows() {
  Allowed allowed = every_level();
  allowed[0] = {9, 10, 11, 12};
  allowed[1] = {1, 2};
  allowed[2] = {0, 1, 2, 3};
  allowed[5] = {0, 3};
  allowed[9] = {0};
  return allowed;
}

// What a case stands for. With everything masked the answer is 0 whatever the rest is: that shows the mask only.
inline std::set<Pair> pairs_of(const Choice& v) {
  constexpr std::size_t kMask = 8;
  const bool trivial = static_cast<Mask>(v[kMask]) == Mask::everywhere;
  std::set<Pair> pairs;
  for (std::size_t f = 0; f < v.size(); ++f) {
    for (std::size_t g = f + 1; g < v.size(); ++g) {
      if (trivial && f != kMask && g != kMask) continue;
      pairs.insert({static_cast<int>(f), v[f], static_cast<int>(g), v[g]});
    }
  }
  return pairs;
}

inline std::set<Pair> all_pairs(const Allowed& allowed) {
  std::set<Pair> pairs;
  for (std::size_t f = 0; f < allowed.size(); ++f) {
    for (std::size_t g = f + 1; g < allowed.size(); ++g) {
      for (const int a : allowed[f]) {
        for (const int b : allowed[g]) pairs.insert({static_cast<int>(f), a, static_cast<int>(g), b});
      }
    }
  }
  return pairs;
}

// A list in which any two levels of any two factors occur together, found greedily: the same for the same seed.
inline std::vector<Choice> covering_choices(const Allowed& allowed, std::uint64_t seed) {
  Random random(seed);
  std::set<Pair> open = all_pairs(allowed);
  std::vector<Choice> list;
  for (int round = 0; !open.empty() && round < 1000; ++round) {
    const Pair first = *std::next(open.begin(), random.below(std::ssize(open)));
    Choice best{};
    std::ptrdiff_t most = 0;
    for (int attempt = 0; attempt < 60; ++attempt) {
      Choice v{};
      for (std::size_t f = 0; f < v.size(); ++f) {
        v[f] = allowed[f][static_cast<std::size_t>(random.below(std::ssize(allowed[f])))];
      }
      v[static_cast<std::size_t>(first[0])] = first[1];
      v[static_cast<std::size_t>(first[2])] = first[3];
      if (!affordable(case_of(v))) continue;
      const auto pairs = pairs_of(v);
      const auto gain = std::count_if(pairs.begin(), pairs.end(), [&](const Pair& p) { return open.contains(p); });
      if (gain > most) most = gain, best = v;
    }
    if (most == 0) continue;
    for (const auto& pair : pairs_of(best)) open.erase(pair);
    list.push_back(best);
  }
  return list;
}

inline std::vector<Case> covering_cases(const Allowed& allowed, std::uint64_t seed) {
  std::vector<Case> cases;
  for (const auto& choice : covering_choices(allowed, seed)) cases.push_back(case_of(choice));
  return cases;
}

}  // namespace contextpool::testing
