#include "contextpool/models/foreign.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

#include "contextpool/nn/mixer.h"

namespace contextpool::models {
namespace {

using torch::Tensor;
using Tensors = std::map<std::string, Tensor>;

// A rule of a rename table: a name that begins with `from` begins with `to` instead. '#' stands for a number, which is
// kept, with `add` added to it.
struct Rule {
  std::string_view from, to;
  int64_t add = 0;
};

// The names that one library gives.
struct Table {
  const char* source;
  std::string_view mark;    // how a name begins that only such files have; of the last table: empty
  std::vector<Rule> rules;  // the first that fits is applied,
  std::vector<Rule> parts;  // then the first of these that is found inside the name
};

bool digit(char c) { return c >= '0' && c <= '9'; }

// `name` with the rule applied, or nothing where it does not fit.
std::optional<std::string> applied(const Rule& rule, std::string_view name) {
  std::size_t at = 0;
  std::string number;
  for (const char c : rule.from) {
    if (c == '#') {
      const auto begin = at;
      while (at < name.size() && digit(name[at])) ++at;
      if (at == begin || at - begin > 4) return std::nullopt;
      number = std::to_string(std::stoll(std::string(name.substr(begin, at - begin))) + rule.add);
    } else if (at < name.size() && name[at] == c) {
      ++at;
    } else {
      return std::nullopt;
    }
  }
  std::string renamed;
  for (const char c : rule.to) c == '#' ? void(renamed += number) : renamed.push_back(c);
  return renamed.append(name.substr(at));
}

const std::vector<Table>& vision_transformer_tables() {
  static const std::vector<Table> tables{{"torchvision",
                                          "encoder.layers.encoder_layer_0.",
                                          {{"class_token", "cls_token"},
                                           {"conv_proj.", "patch_embed.proj."},
                                           {"encoder.pos_embedding", "pos_embed"},
                                           {"encoder.layers.encoder_layer_#.", "blocks.#."},
                                           {"encoder.ln.", "norm."},
                                           {"heads.head.", "head."}},
                                          {{".ln_1.", ".norm1."},
                                           {".ln_2.", ".norm2."},
                                           {".self_attention.in_proj_", ".attn.qkv."},
                                           {".self_attention.out_proj.", ".attn.proj."},
                                           {".mlp.0.", ".mlp.fc1."},
                                           {".mlp.3.", ".mlp.fc2."},
                                           {".mlp.linear_1.", ".mlp.fc1."},
                                           {".mlp.linear_2.", ".mlp.fc2."}}},
                                         {"timm", "", {}, {}}};
  return tables;
}

const std::vector<Table>& swin_tables() {
  static const std::vector<Table> tables{
      {"torchvision",
       "features.0.0.",
       {{"features.0.0.", "patch_embed.proj."},
        {"features.0.2.", "patch_embed.norm."},
        {"features.1.", "layers.0.blocks."},
        {"features.2.", "layers.0.downsample."},
        {"features.3.", "layers.1.blocks."},
        {"features.4.", "layers.1.downsample."},
        {"features.5.", "layers.2.blocks."},
        {"features.6.", "layers.2.downsample."},
        {"features.7.", "layers.3.blocks."}},
       {{".mlp.0.", ".mlp.fc1."}, {".mlp.3.", ".mlp.fc2."}}},
      {"Microsoft", "layers.0.downsample.", {}, {}},
      {"timm", "", {{"layers.#.downsample.", "layers.#.downsample.", -1}, {"head.fc.", "head."}}, {}}};
  return tables;
}

const std::vector<Table>& resnet_tables() {
  static const std::vector<Table> tables{{"a ResNet for CIFAR", "linear.", {{"linear.", "fc."}}, {}},
                                         {"timm or torchvision", "", {}, {}}};
  return tables;
}

// What files hold beside weights: it follows from the sizes.
bool ignored(const std::string& name) {
  return name.ends_with("attn_mask") || name.ends_with("relative_position_index");
}

std::string renamed(const Table& table, const std::string& name) {
  auto result = name;
  for (const auto& rule : table.rules) {
    if (auto other = applied(rule, result)) {
      result = std::move(*other);
      break;
    }
  }
  for (const auto& part : table.parts) {
    const auto at = result.find(part.from);
    if (at != std::string::npos) return result.replace(at, part.from.size(), part.to);
  }
  return result;
}

// DataParallel writes "module." before every name.
std::string_view without_wrapper(const std::string& name) {
  constexpr std::string_view wrapper = "module.";
  return std::string_view(name).substr(name.starts_with(wrapper) ? wrapper.size() : 0);
}

Tensors rename(const std::vector<Table>& tables, const ForeignTensors& given, ForeignReport& report) {
  const auto& table = *std::find_if(tables.begin(), tables.end(), [&](const Table& candidate) {
    return candidate.mark.empty() || std::any_of(given.begin(), given.end(), [&](const auto& item) {
             return without_wrapper(item.first).starts_with(candidate.mark);
           });
  });
  report.source = table.source;
  Tensors tensors;
  for (const auto& [name, tensor] : given) {
    if (!ignored(name)) tensors[renamed(table, std::string(without_wrapper(name)))] = tensor;
  }
  return tensors;
}

// The side of a square of so many numbers, or 0.
int64_t side_of(int64_t numbers) {
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(std::max<int64_t>(numbers, 0)))));
  return side * side == numbers ? side : 0;
}

// pos_embed [1, prefix + old * old, D] for another grid. Unchanged where it is no such table.
Tensor resized_positions(const Tensor& table, const Tensor& wanted, int64_t prefix) {
  if (table.dim() != 3 || table.size(0) != 1 || table.size(2) != wanted.size(2)) return table;
  const auto old_side = side_of(table.size(1) - prefix), side = side_of(wanted.size(1) - prefix);
  if (old_side == 0 || side == 0) return table;
  const auto grid = table.slice(1, prefix).to(torch::kFloat32).transpose(1, 2).reshape({1, -1, old_side, old_side});
  const auto resized = at::_upsample_bicubic2d_aa(grid, {side, side}, /*align_corners=*/false);
  return torch::cat({table.slice(1, 0, prefix), resized.flatten(2).transpose(1, 2).to(table.scalar_type())}, 1);
}

// relative_position_bias_table [old * old, heads] for another window.
Tensor resized_relative(const Tensor& table, const Tensor& wanted) {
  if (table.dim() != 2 || table.size(1) != wanted.size(1)) return table;
  const auto old_side = side_of(table.size(0)), side = side_of(wanted.size(0));
  if (old_side == 0 || side == 0) return table;
  const auto grid = table.to(torch::kFloat32).t().reshape({1, -1, old_side, old_side});
  const auto resized = at::upsample_bicubic2d(grid, {side, side}, /*align_corners=*/false);
  return resized.reshape({table.size(1), -1}).t().to(table.scalar_type());
}

struct Head {
  std::vector<std::string> names;  // "head", "head_dist"
  bool owns(const std::string& name) const {
    return std::any_of(names.begin(), names.end(), [&](const auto& head) { return name.starts_with(head + "."); });
  }
  std::string weight() const { return names.front() + ".weight"; }
};

bool of_mixer(const std::string& name) {
  const auto& kinds = nn::mixer_kinds();
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const auto& kind) { return name.find("." + kind + ".") != std::string::npos; });
}

std::string list(const char* what, const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 4;
  if (names.empty()) return "";
  std::ostringstream text;
  text << "; " << what << " ";
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) text << (i > 0 ? ", " : "") << names[i];
  if (names.size() > kShown) text << " and " << names.size() - kShown << " more";
  return text.str();
}

std::string shape(const Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

struct Kind {
  const char* name;  // for messages
  Head head;
  std::function<Tensor(const std::string& name, const Tensor& given, const Tensor& wanted)> resize;
};

// Copies by name, after all is found to fit.
void load(torch::nn::Module& model, Tensors tensors, const Kind& family, const ForeignOptions& options,
          ForeignReport& report) {
  std::vector<std::pair<Tensor, Tensor>> copies;
  std::vector<std::string> missing, shapes, unexpected, not_finite;
  auto named = model.named_parameters();
  const auto buffers = model.named_buffers();
  for (const auto& buffer : buffers) named.insert(buffer.key(), buffer.value());
  const auto head = tensors.find(family.head.weight());
  report.classes = head == tensors.end() || head->second.dim() == 0 ? 0 : head->second.size(0);
  const auto classes = named[family.head.weight()].size(0);
  const bool other_head = options.drop_head || (options.replace_head && report.classes != classes);
  if (other_head) std::erase_if(tensors, [&](const auto& item) { return family.head.owns(item.first); });
  for (const auto& item : named) {
    const auto& [name, wanted] = item.pair();
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      const bool may =
          of_mixer(name) || (other_head && family.head.owns(name)) || name.ends_with("num_batches_tracked");
      (may ? report.kept : missing).push_back(name);
      continue;
    }
    auto given = found->second;
    tensors.erase(found);
    if (given.sizes() != wanted.sizes()) {
      const auto resized = family.resize(name, given, wanted);
      if (!resized.is_same(given)) report.resized.push_back(name);
      given = resized;
    }
    const bool misfit = family.head.owns(name) && given.dim() > 0 && given.size(0) != wanted.size(0);
    TORCH_CHECK_VALUE(!misfit, options.who, ": its ", name, " is for ", given.size(0), " classes, but the model has ",
                      wanted.size(0), "; build the model with as many classes, or drop the file's head");
    if (given.sizes() != wanted.sizes()) shapes.push_back(name + " is " + shape(given) + ", not " + shape(wanted));
    if (!given.isfinite().all().item<bool>()) not_finite.push_back(name);
    copies.emplace_back(wanted, given);
  }
  for (const auto& item : tensors) unexpected.push_back(item.first);
  const auto wrong = list("missing", missing) + list("unexpected", unexpected) + list("of another shape:", shapes);
  TORCH_CHECK_VALUE(wrong.empty(), options.who, ": not the weights of this ", family.name, " (names of ", report.source,
                    "): ", wrong.substr(std::min<std::size_t>(2, wrong.size())));
  const auto spoiled = list("NaN or infinity in", not_finite);
  TORCH_CHECK_VALUE(spoiled.empty(), options.who, ": there is ",
                    spoiled.substr(std::min<std::size_t>(2, spoiled.size())), "; no picture would be classified");
  const torch::NoGradGuard no_grad;
  for (auto& [target, given] : copies) target.copy_(given);
}

ForeignReport load_vision_transformer(VisionTransformerImpl& model, const ForeignTensors& tensors,
                                      const ForeignOptions& options) {
  ForeignReport report;
  const auto prefix = model.prefix_tokens();
  const Kind family{"vision transformer", {{"head", "head_dist"}}, [&](const auto& name, const auto& a, const auto& b) {
                      return name == "pos_embed" ? resized_positions(a, b, prefix) : a;
                    }};
  load(model, rename(vision_transformer_tables(), tensors, report), family, options, report);
  return report;
}

ForeignReport load_swin(SwinImpl& model, const ForeignTensors& tensors, const ForeignOptions& options) {
  ForeignReport report;
  const Kind family{"Swin", {{"head"}}, [](const auto& name, const auto& a, const auto& b) {
                      return name.ends_with("relative_position_bias_table") ? resized_relative(a, b) : a;
                    }};
  load(model, rename(swin_tables(), tensors, report), family, options, report);
  return report;
}

ForeignReport load_resnet(ResNetImpl& model, const ForeignTensors& tensors, const ForeignOptions& options) {
  ForeignReport report;
  const Kind family{"ResNet", {{"fc"}}, [](const auto&, const auto& a, const auto&) { return a; }};
  load(model, rename(resnet_tables(), tensors, report), family, options, report);
  return report;
}

}  // namespace

ForeignReport load_foreign(torch::nn::Module& model, const ForeignTensors& tensors, const ForeignOptions& options) {
  if (auto* vit = dynamic_cast<VisionTransformerImpl*>(&model)) return load_vision_transformer(*vit, tensors, options);
  if (auto* swin = dynamic_cast<SwinImpl*>(&model)) return load_swin(*swin, tensors, options);
  if (auto* resnet = dynamic_cast<ResNetImpl*>(&model)) return load_resnet(*resnet, tensors, options);
  TORCH_CHECK_VALUE(false, options.who, ": the weights of others are for vision models, but this is a ", model.name());
}

ForeignReport load_foreign(VisionTransformer& model, const ForeignTensors& tensors, const ForeignOptions& options) {
  return load_vision_transformer(*model, tensors, options);
}

ForeignReport load_foreign(Swin& model, const ForeignTensors& tensors, const ForeignOptions& options) {
  return load_swin(*model, tensors, options);
}

ForeignReport load_foreign(ResNet& model, const ForeignTensors& tensors, const ForeignOptions& options) {
  return load_resnet(*model, tensors, options);
}

}  // namespace contextpool::models
