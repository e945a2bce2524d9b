// All families, and their named models by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "contextpool/models/family.h"

namespace contextpool::models {

// The built-in families, in the order of lists, then those that were registered.
std::vector<const Family*> families();
// Adds a family; for programs that bring their own. Not while another thread asks for families.
void register_family(std::unique_ptr<Family> family);

// Throw, with the nearest name, if there is none.
const Family& find_family(std::string_view name);
struct FoundModel {
  const Family& family;
  const NamedModel& model;
};
FoundModel find_model(std::string_view name);

}  // namespace contextpool::models
