#include "cli/option_flags.h"

#include <algorithm>
#include <utility>

namespace contextpool::cli {

OptionFlags::OptionFlags(CLI::App& app, const OptionList& options, const std::string& group, Defaults defaults,
                         std::function<std::string(const std::string&)> flag)
    : flag_(std::move(flag)) {
  app.option_defaults()->always_capture_default(defaults == Defaults::shown);
  for (const auto& option : options) {
    values_.push_back(option);
    auto& stored = values_.back();
    const auto name = "--" + flag_(option.name);
    CLI::Option* handle = nullptr;
    if (auto* value = std::get_if<bool>(&stored.value)) {
      handle = app.add_flag(name, *value, option.help);
      if (defaults == Defaults::shown) handle->default_str(*value ? "true" : "false");
    } else {
      std::visit([&](auto& v) { handle = app.add_option(name, v, option.help); }, stored.value);
    }
    handles_[option.name] = handle->group(group);
  }
}

std::vector<std::string> OptionFlags::all_given() const {
  std::vector<std::string> names;
  for (const auto& [name, handle] : handles_) {
    if (handle->count() > 0) names.push_back(name);
  }
  return names;
}

OptionList OptionFlags::over(OptionList base) const {
  for (const auto& option : values_) {
    if (given(option.name)) base.set(option.name, option.value);
  }
  return base;
}

std::string OptionFlags::dashed(const std::string& option) {
  auto flag = option;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

}  // namespace contextpool::cli
