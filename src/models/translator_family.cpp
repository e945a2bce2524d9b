#include "contextpool/models/translator_family.h"

#include "contextpool/models/translators.h"

namespace contextpool::models {
namespace {

constexpr int64_t kUsualLength = 32;  // symbols of a sentence, where costs are asked for without one

struct TranslatorTraits {
  using Options = TranslatorOptions;
  using Module = Translator;
  static constexpr const char* kName = kTranslatorFamily;
  static std::vector<Named<Options>> named() {
    std::vector<Named<Options>> all;
    for (const auto& model : translators()) all.push_back({model.name, model.summary, model.options});
    return all;
  }
  static Options of_files() { return {}; }
  static double least_parameters(const Options& options) { return models::least_parameters(options); }
  static Cost cost(const Options& options, int64_t length) {
    const auto row = length > 0 ? length : kUsualLength;
    const auto counted = models::cost(options, row, row);
    return {counted.parameters, counted.flops, counted.pooling_flops,
            "pair of " + std::to_string(row) + " + " + std::to_string(row) + " tokens"};
  }
};

// --context is the model's `length`; a stage's is --length.
class TranslatorFamily : public FamilyOf<TranslatorTraits> {
 public:
  std::string flag(const std::string& option) const override {
    return option == "length" ? "context" : Family::flag(option);
  }
};

}  // namespace

std::unique_ptr<Family> translator_family() { return std::make_unique<TranslatorFamily>(); }

}  // namespace contextpool::models
