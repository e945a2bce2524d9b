// Translations of a batch of sentences, by beam search (models/beam_search.h) over a translator, on its device.
#pragma once

#include <cstdint>
#include <vector>

#include "contextpool/models/beam_search.h"
#include "contextpool/models/translator.h"

namespace contextpool::models {

// sources: the symbols of each sentence, as the model was trained on them. Of each sentence the n_best translations,
// best first. Sentences are one batch: similar lengths waste the least. What a sentence becomes does not depend on the
// others, but for rounding. In eval mode, whatever mode the model is in.
std::vector<std::vector<Hypothesis>> translate(Translator& model, const std::vector<std::vector<int64_t>>& sources,
                                               const BeamSearchOptions& options = {});

}  // namespace contextpool::models
