#include "contextpool/models/registry.h"

#include <c10/util/Exception.h>

#include <utility>

#include "base/words.h"
#include "contextpool/models/language_models.h"
#include "contextpool/models/translator_family.h"
#include "contextpool/models/vision_families.h"

namespace contextpool::models {
namespace {

// A new family of this library: its line here.
std::vector<std::unique_ptr<Family>> built_in() {
  std::vector<std::unique_ptr<Family>> all;
  all.push_back(language_model_family());
  all.push_back(vision_transformer_family());
  all.push_back(swin_family());
  all.push_back(resnet_family());
  all.push_back(translator_family());
  return all;
}

std::vector<std::unique_ptr<Family>>& registered() {
  static auto all = built_in();
  return all;
}

}  // namespace

std::vector<const Family*> families() {
  std::vector<const Family*> all;
  for (const auto& family : registered()) all.push_back(family.get());
  return all;
}

void register_family(std::unique_ptr<Family> family) {
  for (const auto* other : families()) {
    TORCH_CHECK_VALUE(other->name() != family->name(), "contextpool: there is a family \"", family->name(),
                      "\" already");
  }
  registered().push_back(std::move(family));
}

const Family& find_family(std::string_view name) {
  std::vector<std::string> names;
  for (const auto* family : families()) {
    if (family->name() == name) return *family;
    names.push_back(family->name());
  }
  TORCH_CHECK_VALUE(false, "unknown family of models \"", name, "\"", did_you_mean(name, names));
}

FoundModel find_model(std::string_view name) {
  std::vector<std::string> names;
  for (const auto* family : families()) {
    for (const auto& model : family->models()) {
      if (model.name == name) return {*family, model};
      names.push_back(model.name);
    }
  }
  TORCH_CHECK_VALUE(false, "unknown model \"", name, "\"", did_you_mean(name, names),
                    " (`contextpool models` lists them)");
}

}  // namespace contextpool::models
