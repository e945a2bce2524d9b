#include "contextpool/base/options.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/words.h"

namespace contextpool {
namespace {

using Json = nlohmann::json;

Json json_of(const OptionValue& value) {
  return std::visit([](const auto& v) { return Json(v); }, value);
}

void read(const std::string& who, const std::string& name, const Json& json, bool& value) {
  TORCH_CHECK_VALUE(json.is_boolean(), who, ": ", name, " must be true or false, but is ", json.dump());
  value = json.get<bool>();
}

void read(const std::string& who, const std::string& name, const Json& json, std::int64_t& value) {
  const bool fits = json.is_number_integer() &&
                    !(json.is_number_unsigned() && json.get<uint64_t>() > std::numeric_limits<int64_t>::max());
  TORCH_CHECK_VALUE(fits, who, ": ", name, " must be an integer, but is ", json.dump());
  value = json.get<std::int64_t>();
}

void read(const std::string& who, const std::string& name, const Json& json, double& value) {
  TORCH_CHECK_VALUE(json.is_number(), who, ": ", name, " must be a number, but is ", json.dump());
  value = json.get<double>();
}

void read(const std::string& who, const std::string& name, const Json& json, std::string& value) {
  TORCH_CHECK_VALUE(json.is_string(), who, ": ", name, " must be a word, but is ", json.dump());
  value = json.get<std::string>();
}

template <typename Options>
auto* find(Options& options, std::string_view name) {
  const auto found = std::find_if(options.begin(), options.end(), [&](const auto& o) { return o.name == name; });
  return found == options.end() ? nullptr : &*found;
}

}  // namespace

bool OptionList::has(std::string_view name) const { return find(options_, name) != nullptr; }

const OptionValue& OptionList::at(std::string_view name) const {
  const auto* option = find(options_, name);
  TORCH_CHECK(option != nullptr, "contextpool: there is no option \"", name, "\"");
  return option->value;
}

void OptionList::set(std::string_view name, OptionValue value) {
  auto* option = find(options_, name);
  TORCH_CHECK(option != nullptr && option->value.index() == value.index(), "contextpool: there is no option \"", name,
              "\" of that type");
  option->value = std::move(value);
}

std::string to_word(const OptionValue& value) {
  const auto json = json_of(value);
  return json.is_string() ? json.get<std::string>() : json.dump();
}

std::string to_json(const OptionList& options) {
  Json json = Json::object();
  for (const auto& option : options) json[option.name] = json_of(option.value);
  return json.dump();
}

OptionList read_json(OptionList defaults, const std::string& text, const std::string& who) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK_VALUE(json.is_object(), who, ": the model's options are not a JSON object");
  std::vector<std::string> known;
  for (const auto& option : defaults) known.push_back(option.name);
  for (const auto& [name, value] : json.items()) {
    TORCH_CHECK_VALUE(defaults.has(name), who, ": unknown option \"", name, "\"", did_you_mean(name, known));
    auto read_value = defaults.at(name);
    std::visit([&, &key = name, &from = value](auto& v) { read(who, key, from, v); }, read_value);
    defaults.set(name, std::move(read_value));
  }
  return defaults;
}

}  // namespace contextpool
