#include "contextpool/models/vision_families.h"

#include "contextpool/models/resnet.h"
#include "contextpool/models/swin.h"
#include "contextpool/models/vision_transformer.h"

namespace contextpool::models {
namespace {

template <typename OptionsOf, typename ModuleOf>
struct VisionTraits {
  using Options = OptionsOf;
  using Module = ModuleOf;
  static Options of_files() { return {}; }
  static double least_parameters(const Options& options) {
    return static_cast<double>(models::cost(options).parameters);
  }
  static Cost cost(const Options& options, int64_t /*length*/) {
    const auto counted = models::cost(options);
    return {.parameters = counted.parameters,
            .flops = 2 * counted.macs,
            .pooling_flops = 2 * counted.pooling_macs,
            .per = "image of " + std::to_string(options.image_size)};
  }

 protected:
  template <typename List>
  static std::vector<Named<Options>> all_of(const List& list) {
    std::vector<Named<Options>> all;
    for (const auto& m : list) all.push_back({m.name, m.summary, m.options});
    return all;
  }
};

struct VisionTransformerTraits : VisionTraits<VisionTransformerOptions, VisionTransformer> {
  static constexpr const char* kName = "vision_transformer";
  static std::vector<Named<Options>> named() { return all_of(vision_transformers()); }
};

struct SwinTraits : VisionTraits<SwinOptions, Swin> {
  static constexpr const char* kName = "swin";
  static std::vector<Named<Options>> named() { return all_of(swins()); }
};

struct ResNetTraits : VisionTraits<ResNetOptions, ResNet> {
  static constexpr const char* kName = "resnet";
  static std::vector<Named<Options>> named() { return all_of(resnets()); }
};

template <typename Traits>
class TransformerFamily : public FamilyOf<Traits> {
 public:
  bool decays(const std::string& name, const torch::Tensor& parameter) const override {
    return !no_decay(name, parameter);
  }
};

// Of ConvNets all parameters decay, norms too, as in the recipes of He et al.; a mixer's do as in transformers.
class ResNetFamily : public FamilyOf<ResNetTraits> {
 public:
  bool decays(const std::string& name, const torch::Tensor& parameter) const override {
    return !name.starts_with("ends.") || !no_decay(name, parameter);
  }
};

}  // namespace

std::unique_ptr<Family> vision_transformer_family() {
  return std::make_unique<TransformerFamily<VisionTransformerTraits>>();
}

std::unique_ptr<Family> swin_family() { return std::make_unique<TransformerFamily<SwinTraits>>(); }

std::unique_ptr<Family> resnet_family() { return std::make_unique<ResNetFamily>(); }

}  // namespace contextpool::models
