// The few calls of libsentencepiece that a vocabulary needs. Errors are exceptions with one line.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextpool/data/translation/vocabulary.h"

namespace contextpool::data {

class Subwords {
 public:
  virtual ~Subwords() = default;
  virtual std::int64_t size() const = 0;
  virtual std::vector<std::int64_t> encode(std::string_view sentence) const = 0;
  virtual std::string decode(const std::vector<int>& symbols) const = 0;
  virtual std::string piece(std::int64_t symbol) const = 0;
  // Pad, end, begin and unknown, in this order; -1 where there is none.
  virtual std::vector<std::int64_t> special() const = 0;
};

std::shared_ptr<const Subwords> load_subwords(const std::string& bytes, const std::string& name);
std::string train_subwords(std::span<const std::string_view> sentences, const VocabularyOptions& options,
                           const std::string& name);

}  // namespace contextpool::data
