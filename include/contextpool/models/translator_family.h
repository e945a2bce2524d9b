// The family of translators: models/translators.h through the interface of models/family.h.
#pragma once

#include <memory>

#include "contextpool/models/family.h"

namespace contextpool::models {

constexpr const char* kTranslatorFamily = "translator";

std::unique_ptr<Family> translator_family();

}  // namespace contextpool::models
