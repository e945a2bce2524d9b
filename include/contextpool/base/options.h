// Options as a list of names, values and help: what the program, a config file and a checkpoint's metadata see of the
// options struct of a model or a task. A struct joins by one function beside it,
//
//   template <typename Options, typename F>
//   void for_each_option(Options& options, F f) { f("layers", options.layers, "transformer blocks"); ... }
//
// which names each option once; the values are int64_t, double, bool or std::string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace contextpool {

using OptionValue = std::variant<bool, std::int64_t, double, std::string>;

struct Option {
  std::string name;
  OptionValue value;
  std::string help;
};

class OptionList {
 public:
  OptionList() = default;
  explicit OptionList(std::vector<Option> options) : options_(std::move(options)) {}

  auto begin() const { return options_.begin(); }
  auto end() const { return options_.end(); }
  bool has(std::string_view name) const;
  // Throw if there is no such option, or one of another type.
  const OptionValue& at(std::string_view name) const;
  void set(std::string_view name, OptionValue value);
  template <typename T>
  const T& get(std::string_view name) const {
    return std::get<T>(at(name));
  }
  void add(Option option) { options_.push_back(std::move(option)); }

 private:
  std::vector<Option> options_;
};

// The value as a config file writes it, without quotation marks.
std::string to_word(const OptionValue& value);

// All options as the text of a JSON object.
std::string to_json(const OptionList& options);
// Back: options that the object lacks stay as they are in `defaults`. Throws, with the nearest name, at one that is not
// among them, and at a value of another type. `who` opens the messages: a file's name, or the model's.
OptionList read_json(OptionList defaults, const std::string& json, const std::string& who);

template <typename Options>
OptionList list_options(const Options& options) {
  std::vector<Option> all;
  for_each_option(options, [&](const char* name, const auto& value, const char* help) {
    all.push_back({name, OptionValue(value), help});
  });
  return OptionList(std::move(all));
}

// Every option of the struct, from the list.
template <typename Options>
void assign_options(Options& options, const OptionList& list) {
  for_each_option(options, [&](const char* name, auto& value, const char*) {
    value = list.get<std::decay_t<decltype(value)>>(name);
  });
}

}  // namespace contextpool
