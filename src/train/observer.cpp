#include "contextpool/train/observer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

namespace contextpool::train {
namespace {

struct Part {
  int rank;  // 0 matters most
  std::string text;
};

// With `digits` after the point.
std::string fixed(double x, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, x);
  return text.data();
}

std::string short_number(double x) {
  constexpr double kMega = 1e6, kKilo = 1e3;
  if (x >= kMega) return fixed(x / kMega, 2) + "M";
  if (x >= kKilo) return fixed(x / kKilo, 1) + "k";
  return fixed(x, 0);
}

// The parts that fit into the width, in order; those of the highest rank go first.
std::string fitted(std::vector<Part> parts, std::size_t width) {
  const auto joined = [&] {
    std::string line;
    for (const auto& part : parts) line += (line.empty() ? "" : "  ") + part.text;
    return line;
  };
  while (parts.size() > 1 && joined().size() > width) {
    parts.erase(
        std::max_element(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.rank < b.rank; }));
  }
  return joined().substr(0, width);
}

}  // namespace

std::string clock_time(double seconds) {
  constexpr std::int64_t kMinute = 60, kHour = 3600;
  const std::int64_t s = std::llround(seconds);
  const auto two = [](std::int64_t n) { return (n < 10 ? ":0" : ":") + std::to_string(n); };
  if (s < kHour) return std::to_string(s / kMinute) + two(s % kMinute);
  return std::to_string(s / kHour) + two(s % kHour / kMinute) + two(s % kMinute);
}

std::string windows_line(const std::vector<nn::WindowStatistics>& windows) {
  std::string line;
  for (const auto& w : windows) {
    line += (line.empty() ? "windows by layer, sigma +- spread (tokens): " : ", ") + fixed(w.sigma, 1) + " +- " +
            fixed(w.sigma_spread, 1) + " (" + fixed(w.tokens, 1) + ")";
  }
  return line;
}

std::string progress_line(const StepReport& report, std::size_t width) {
  constexpr double kMega = 1e6;
  const auto figure_text = [](const tasks::Figure& figure) { return fixed(figure.second, 3) + " " + figure.first; };
  std::vector<Part> parts = {{0, "step " + std::to_string(report.step) + "/" + std::to_string(report.steps)}};
  if (report.skipped) {
    parts.push_back({2, "skipped: loss or gradient not finite"});
  } else {
    parts.push_back({4, "loss " + fixed(report.loss, 4)});
    for (const auto& figure : report.figures) parts.push_back({2, figure_text(figure)});
  }
  if (report.dev) parts.push_back({1, "dev " + figure_text(report.dev->figures.at(report.dev->headline))});
  parts.push_back({5, short_number(report.units_per_second) + " " + report.unit + "/s"});
  parts.push_back({6, fixed(static_cast<double>(report.memory) / kMega, 0) + " MB"});
  parts.push_back({3, "ETA " + clock_time(report.seconds_left)});
  return fitted(std::move(parts), width);
}

}  // namespace contextpool::train
