// A build without SentencePiece: whatever needs it says so.
#include <c10/util/Exception.h>

#include "data/translation/sentencepiece.h"

namespace contextpool::data {
namespace {

[[noreturn]] void refuse(const std::string& name) {
  C10_THROW_ERROR(NotImplementedError, name +
                                           ": needs SentencePiece, which this program was built without; install its "
                                           "headers and libraries (Debian: libsentencepiece-dev) and build again");
}

}  // namespace

bool has_sentencepiece() { return false; }

std::shared_ptr<const Subwords> load_subwords(const std::string&, const std::string& name) { refuse(name); }

std::string train_subwords(std::span<const std::string_view>, const VocabularyOptions&, const std::string& name) {
  refuse(name);
}

}  // namespace contextpool::data
