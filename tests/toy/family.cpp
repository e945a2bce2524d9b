#include <concepts>
#include <type_traits>

#include "toy/model.h"
#include "toy/toy.h"

namespace contextpool::toy {
namespace {

struct PerceptronTraits {
  using Options = PerceptronOptions;
  using Module = Perceptron;
  static constexpr const char* kName = "toy_perceptron";
  static std::vector<models::Named<Options>> named() {
    return {{"toy-small", "16 hidden units", {.hidden = 16}}, {"toy-large", "64 hidden units", {.hidden = 64}}};
  }
  static Options of_files() { return {}; }
  static double least_parameters(const Options& o) { return static_cast<double>(o.hidden) * (2 + 2); }
  static models::Cost cost(const Options& o, int64_t /*length*/) {
    return {.parameters = o.hidden * 5 + 2, .flops = 8.0 * static_cast<double>(o.hidden), .per = "point"};
  }
};

}  // namespace

std::unique_ptr<models::Family> family() { return std::make_unique<models::FamilyOf<PerceptronTraits>>(); }

}  // namespace contextpool::toy
