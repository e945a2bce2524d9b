// A family of models: everything that the rest of the project asks of a kind of model without knowing it. The trainer,
// the checkpoint reader, the registry and the program see models through this alone; options travel as an OptionList.
//
// A new family is a file with an options struct and a module, and a traits struct for FamilyOf (docs/extending.md):
//
//   struct ToyTraits {
//     using Options = ToyOptions;                       // with for_each_option
//     using Module = Toy;                               // a TORCH_MODULE that is built from Options
//     static constexpr const char* kName = "toy";
//     static std::vector<Named<ToyOptions>> named();    // the named models
//     static Options of_files();                        // what a file has where it does not say
//     static double least_parameters(const Options&);   // from below, without building anything
//     static Cost cost(const Options&, int64_t length); // length 0: the model's own
//   };
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "contextpool/base/options.h"

namespace contextpool::models {

// What a forward pass costs: floating-point operations of one `per` (a token, an image, ...), a multiply-add being two.
// Counted: every weight matrix and convolution, attention's scores and sums. Not counted: norms, activations, softmax,
// rotations, biases, look-ups.
struct Cost {
  int64_t parameters = 0;
  double flops = 0;           // without the pooling sum
  double pooling_flops = 0;   // the pooling sum as its formula reads, over all tokens whatever their share of it
  std::string per = "token";  // of a row of 2048, of an image of 224 x 224: as the family says
};

template <typename Options>
struct Named {
  std::string name;
  std::string summary;  // one line for a list
  Options options;
};
using NamedModel = Named<OptionList>;

class Family {
 public:
  virtual ~Family() = default;
  virtual std::string name() const = 0;  // what a checkpoint's metadata says: "language_model"
  virtual const std::vector<NamedModel>& models() const = 0;
  virtual OptionList defaults() const = 0;
  // Options of a checkpoint's metadata. `who` opens the messages.
  virtual OptionList read(const std::string& json, const std::string& who) const = 0;
  // With the initial weights, drawn from torch's generator.
  virtual std::shared_ptr<torch::nn::Module> build(const OptionList& options) const = 0;
  virtual double least_parameters(const OptionList& options) const = 0;
  virtual Cost cost(const OptionList& options, int64_t length) const = 0;
  // Whether weight decay is for this parameter: matrices and convolutions, not biases and norms.
  virtual bool decays(const std::string& /*name*/, const torch::Tensor& parameter) const {
    return parameter.dim() >= 2;
  }
  // The flag of an option, without dashes before it.
  virtual std::string flag(const std::string& option) const {
    auto flag = option;
    std::replace(flag.begin(), flag.end(), '_', '-');
    return flag;
  }
};

template <typename Traits>
class FamilyOf : public Family {
 public:
  using Options = typename Traits::Options;

  FamilyOf() {
    for (const auto& m : Traits::named()) models_.push_back({m.name, m.summary, list_options(m.options)});
  }
  std::string name() const override { return Traits::kName; }
  const std::vector<NamedModel>& models() const override { return models_; }
  OptionList defaults() const override { return list_options(Options{}); }
  OptionList read(const std::string& json, const std::string& who) const override {
    return read_json(list_options(Traits::of_files()), json, who);
  }
  std::shared_ptr<torch::nn::Module> build(const OptionList& options) const override {
    return typename Traits::Module(typed(options)).ptr();
  }
  double least_parameters(const OptionList& options) const override { return Traits::least_parameters(typed(options)); }
  Cost cost(const OptionList& options, int64_t length) const override { return Traits::cost(typed(options), length); }

  static Options typed(const OptionList& list) {
    Options options;
    assign_options(options, list);
    return options;
  }

 private:
  std::vector<NamedModel> models_;
};

}  // namespace contextpool::models
