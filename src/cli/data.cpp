// contextpool data tokenize: makes SentencePiece vocabularies from parallel text, and applies them.
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "base/words.h"
#include "cli/cli.h"
#include "cli/line_stream.h"
#include "contextpool/data/translation/vocabulary.h"
#include "contextpool/io/files.h"

namespace contextpool::cli {
namespace {

struct TokenizeFlags {
  std::string data, target, out, vocabulary, source_vocabulary, pieces;
  contextpool::data::VocabularyOptions options;
  std::int64_t max_characters = 5000;
  bool joint = true, decode = false, numbers = false;
};

using contextpool::data::Vocabulary;

std::string pieces_of(const Vocabulary& vocabulary, std::string_view sentence, bool numbers) {
  std::string text;
  for (const auto symbol : vocabulary.encode(sentence)) {
    text += (text.empty() ? "" : " ") + (numbers ? std::to_string(symbol) : vocabulary.piece(symbol));
  }
  return text;
}

// A line of standard input that cannot be decoded; those before it are written first.
class BadLine : public contextpool::io::Error {
 public:
  BadLine(std::int64_t line, const std::string& what)
      : Error("standard input: line " + std::to_string(line) + ": " + what) {}
};

// Numbers back to text.
std::string decoded(const Vocabulary& vocabulary, const std::string& line, std::int64_t number) {
  std::vector<std::int64_t> symbols;
  for (const auto& word : CLI::detail::split(line, ' ')) {
    if (word.empty()) continue;
    std::int64_t symbol = 0;
    if (!CLI::detail::lexical_cast(word, symbol) || symbol < 0 || symbol >= vocabulary.size()) {
      throw BadLine(number,
                    "\"" + word + "\" is not the number of a piece, 0 to " + std::to_string(vocabulary.size() - 1));
    }
    symbols.push_back(symbol);
  }
  return vocabulary.decode(symbols);
}

int filter(const TokenizeFlags& f) {
  constexpr std::size_t kLines = 1024;
  const auto vocabulary = Vocabulary::load(f.vocabulary);
  ignore_broken_pipes();
  LineReader input(STDIN_FILENO);
  std::int64_t number = 0;
  while (true) {
    const auto lines = input.next(kLines);
    if (lines.empty()) return 0;
    std::string text;
    try {
      for (const auto& line : lines) {
        ++number;
        text += (f.decode ? decoded(vocabulary, line, number) : pieces_of(vocabulary, line, f.numbers)) + "\n";
      }
    } catch (const BadLine&) {
      write_out(STDOUT_FILENO, text);
      throw;
    }
    if (!write_out(STDOUT_FILENO, text)) return 0;
  }
}

contextpool::data::VocabularyPair vocabularies(const TokenizeFlags& f, const contextpool::data::ParallelText& text) {
  if (f.vocabulary.empty()) return train_vocabularies(text, f.options, f.joint);
  const auto target = Vocabulary::load(f.vocabulary);
  return {f.source_vocabulary.empty() ? target : Vocabulary::load(f.source_vocabulary), target};
}

int make(const TokenizeFlags& f) {
  using contextpool::data::ParallelText;
  const contextpool::data::ParallelOptions options{.max_characters = f.max_characters};
  const auto text =
      f.target.empty() ? ParallelText::from_tsv(f.data, options) : ParallelText::from_files(f.data, f.target, options);
  std::cout << text.name() << ": " << text.report().text() << "\n";
  const auto [source, target] = vocabularies(f, text);
  contextpool::io::make_folder(f.out);
  if (source.bytes() == target.bytes()) {
    target.save(f.out + "/vocabulary.model");
  } else {
    source.save(f.out + "/source.model");
    target.save(f.out + "/target.model");
  }
  std::string sources, targets;
  std::int64_t pieces = 0, unknown = 0;
  for (std::int64_t i = 0; i < text.size(); ++i) {
    const auto pair = text.pair(i);
    for (const auto& [vocabulary, sentence] : {std::pair{&source, pair.source}, std::pair{&target, pair.target}}) {
      for (const auto symbol : vocabulary->encode(sentence)) {
        ++pieces;
        unknown += symbol == contextpool::data::kUnknown ? 1 : 0;
      }
    }
    sources += pieces_of(source, pair.source, f.numbers) + "\n";
    targets += pieces_of(target, pair.target, f.numbers) + "\n";
  }
  contextpool::io::replace_file(f.out + "/source.txt", sources);
  contextpool::io::replace_file(f.out + "/target.txt", targets);
  std::cout << "vocabulary of " << target.size() << " pieces"
            << (source.bytes() == target.bytes() ? "" : " (source: " + std::to_string(source.size()) + ")") << "; "
            << pieces << " pieces of text, " << unknown << " unknown; written to " << f.out << "\n";
  return 0;
}

int tokenize(const Arguments& arguments) {
  TokenizeFlags f;
  CLI::App app(
      "Makes a SentencePiece vocabulary from pairs of sentences and writes their pieces; or, without --data, applies "
      "one "
      "to standard input.",
      "contextpool data tokenize");
  app.option_defaults()->always_capture_default()->take_last();
  app.add_option("--data", f.data, "source sentences, one a line; or a file of two columns, separated by a tab");
  app.add_option("--target", f.target, "their translations, line by line");
  app.add_option("--out", f.out, "folder to write");
  app.add_option("--vocabulary", f.vocabulary, "SentencePiece model to apply; without it one is trained");
  app.add_option("--source-vocabulary", f.source_vocabulary, "that of the source, where it has its own");
  app.add_option("--size", f.options.size, "pieces of the trained vocabulary");
  app.add_option("--kind", f.options.type, "bpe or unigram");
  app.add_option("--coverage", f.options.coverage, "share of the text's characters that get a piece of their own");
  app.add_flag("--byte-fallback", f.options.byte_fallback, "spell other characters in bytes");
  app.add_flag("--joint", f.joint, "one vocabulary for both languages; --joint=false: one for each")
      ->default_str("true");
  app.add_option("--max-characters", f.max_characters, "of a sentence; pairs with a longer one are dropped; 0: any");
  app.add_flag("--numbers", f.numbers, "write the numbers of pieces instead of the pieces");
  app.add_flag("--decode", f.decode, "with standard input: numbers of pieces back to text");
  if (!parse(app, arguments)) return 0;
  if (f.max_characters < 0)
    throw UsageError("--max-characters is " + std::to_string(f.max_characters) + ", expected 0 (any) or more");
  if (f.data.empty()) {
    if (f.vocabulary.empty())
      throw UsageError(
          "--data FILE is needed to make a vocabulary, or --vocabulary FILE to apply one to standard input");
    return filter(f);
  }
  if (f.out.empty()) throw UsageError("--out DIR is needed: the folder to write");
  if (f.decode) throw UsageError("--decode is for standard input; leave --data out");
  if (f.vocabulary.empty() && !f.source_vocabulary.empty())
    throw UsageError("--source-vocabulary is that of the source alone; name the target's with --vocabulary");
  if (std::filesystem::exists(f.out) && !std::filesystem::is_directory(f.out))
    throw UsageError(f.out + ": is not a folder; --out names the folder to write");
  if (f.vocabulary.empty()) as_command([&] { validate(f.options); });
  return make(f);
}

}  // namespace

int data(const Arguments& arguments) {
  const auto word = arguments.empty() ? "" : arguments[0];
  if (word == "tokenize") return tokenize({arguments.begin() + 1, arguments.end()});
  if (word == "--help" || word == "-h") {
    std::cout << "contextpool data tokenize [options]\n\n  tokenize    make or apply a SentencePiece vocabulary\n";
    return 0;
  }
  if (word.empty()) throw UsageError("data needs a subcommand: tokenize");
  throw UsageError("unknown subcommand of data \"" + word + "\"" + did_you_mean(word, {"tokenize"}));
}

}  // namespace contextpool::cli
