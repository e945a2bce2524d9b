// An OptionList as flags of a subcommand, one each, with the list's names, defaults and help.
#pragma once

#include <CLI/CLI.hpp>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "contextpool/base/options.h"

namespace contextpool::cli {

class OptionFlags {
 public:
  // `flag` names the flag of an option, without dashes before it. Defaults are shown and written into configs unless
  // they are another's to say (the named model's).
  enum class Defaults { shown, hidden };
  OptionFlags(CLI::App& app, const OptionList& options, const std::string& group, Defaults defaults,
              std::function<std::string(const std::string&)> flag = dashed);
  OptionFlags(const OptionFlags&) = delete;
  OptionFlags& operator=(const OptionFlags&) = delete;

  bool given(const std::string& option) const { return handles_.at(option)->count() > 0; }
  std::vector<std::string> all_given() const;
  // `base` with the values of the flags that were given.
  OptionList over(OptionList base) const;
  std::string flag(const std::string& option) const { return flag_(option); }
  const std::map<std::string, CLI::Option*>& handles() const { return handles_; }

  static std::string dashed(const std::string& option);

 private:
  std::deque<Option> values_;  // CLI11 keeps references to them
  std::map<std::string, CLI::Option*> handles_;
  std::function<std::string(const std::string&)> flag_;
};

}  // namespace contextpool::cli
