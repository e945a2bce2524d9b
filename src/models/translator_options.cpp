// What the options of a translator say of each of its blocks.
#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "base/words.h"
#include "contextpool/models/translator.h"

namespace contextpool::models {
namespace {

constexpr const char* kWho = "translator";
// Far beyond any use, so that the sizes in a damaged file are refused before memory is asked for.
constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr std::string_view kAllPlaces = "ABOXCDE";

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ',') {
      words.emplace_back();
    } else if (c != ' ') {
      words.back() += c;
    }
  }
  return words;
}

// The word for a layer of a list from the bottom, whose last holds for all layers above.
std::string word_of(const char* option, const std::string& text, int64_t layer) {
  const auto words = words_of(text);
  for (const auto& word : words) check_word(kWho, option, word, {"full", "local", "area"});
  return words[std::min<std::size_t>(layer, words.size() - 1)];
}

bool mixes_in(const TranslatorOptions& options, const std::string& where) {
  const auto words = words_of(options.mixer_in);
  for (const auto& word : words) {
    if (options.mixer_in.empty()) return false;
    check_word(kWho, "mixer_in", word, {"encoder", "decoder", "cross"});
  }
  return std::find(words.begin(), words.end(), where) != words.end();
}

// The kind of mixer in each place, before mixer_in is looked at.
std::map<char, std::string> places_of(const TranslatorOptions& o) {
  check_word(kWho, "mixer", o.mixer, nn::mixer_kinds());
  check_word(kWho, "placement", o.placement, {"after_attention", "after_block", "before_attention"});
  if (!o.mix.places.empty()) return nn::parse_places(kWho, o.mix.places, kAllPlaces);
  if (o.mixer == "none") return {};
  const char place = o.placement == "before_attention" ? 'A' : o.placement == "after_attention" ? 'O' : 'E';
  return {{place, o.mixer}, {'X', o.mixer}};
}

// Those of a block's own places, as nn::MixOptions::places has them.
std::string written(const std::map<char, std::string>& places) {
  std::string text;
  for (const auto& [place, kind] : places) {
    if (place == 'X') continue;
    text += (text.empty() ? "" : ",") + std::string(1, place) + "=" + kind;
  }
  return text;
}

nn::TransformerBlockOptions block_options(const TranslatorOptions& o, bool causal, int64_t layer) {
  nn::TransformerBlockOptions block{.features = o.features,
                                    .heads = o.heads,
                                    .feedforward = o.feedforward,
                                    .dropout = o.dropout,
                                    .causal = causal,
                                    .reach = {.area_width = o.area_width},
                                    .taps = o.taps,
                                    .mix = o.mix,
                                    .pool = o.pool,
                                    .attention_dropout = o.attention_dropout,
                                    .activation_dropout = o.activation_dropout,
                                    .activation = o.activation};
  block.mix.places = mixes_in(o, causal ? "decoder" : "encoder") ? written(places_of(o)) : "";
  block.pool.layer = layer;
  return block;
}

}  // namespace

int64_t decoder_layers(const TranslatorOptions& options) {
  return options.decoder_layers > 0 ? options.decoder_layers : options.layers;
}

nn::TransformerBlockOptions encoder_block_options(const TranslatorOptions& options, int64_t layer) {
  auto block = block_options(options, /*causal=*/false, layer);
  block.reach.kind = word_of("encoder_attention", options.encoder_attention, layer);
  block.pool.reference_length = options.pool_source_length;
  if (options.pool.reference_length > 0) block.pool.usual_length = options.pool.reference_length;
  block.mix.taps -= block.mix.taps % 2 == 0 ? 1 : 0;  // what looks both ways has a middle
  return block;
}

nn::DecoderBlockOptions decoder_block_options(const TranslatorOptions& options, int64_t layer) {
  nn::DecoderBlockOptions decoder{.block = block_options(options, /*causal=*/true, options.layers + layer)};
  decoder.block.reach.kind = word_of("decoder_attention", options.decoder_attention, layer);
  decoder.cross_attention = word_of("cross_attention", options.cross_attention, layer);
  decoder.cross_layer = options.layers + decoder_layers(options) + layer;
  const auto places = places_of(options);
  if (const auto found = places.find('X'); found != places.end() && mixes_in(options, "cross")) {
    decoder.cross_mixer = found->second;
  }
  return decoder;
}

void validate(const TranslatorOptions& options) {
  const std::set<std::string_view> may_be_0{"source_vocabulary",  "decoder_layers", "begin",    "end",
                                            "pool_source_length", "mixer_heads",    "pool_taps"};
  for_each_option(options, [&](const char* name, const auto& value, const char*) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, int64_t>) {
      const int64_t least = may_be_0.contains(name) ? 0 : 1;
      const bool own = std::string_view(name).starts_with("pool_");  // ContextPool says what these may be
      TORCH_CHECK_VALUE((own || value >= least) && value <= kMaxSize, kWho, ": ", name, " must be from ", least, " to ",
                        kMaxSize, ", but is ", value);
    }
  });
  for (const auto& [name, symbol] : {std::pair{"begin", options.begin}, {"end", options.end}}) {
    TORCH_CHECK_VALUE(symbol < options.vocabulary, kWho, ": ", name, " must be one of the ", options.vocabulary,
                      " symbols, but is ", symbol);
  }
  TORCH_CHECK_VALUE(options.dropout >= 0 && options.dropout < 1, kWho, ": dropout must be in [0, 1), but is ",
                    options.dropout);
  // All words of lists, whichever layers there are.
  encoder_block_options(options, 0);
  decoder_block_options(options, 0);
}

}  // namespace contextpool::models
