// The reader of parallel text on any bytes, as one file of two columns, and as two files, divided at the first 0x01: it
// gives pairs that keep its promises or throws io::Error.
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>

#include "contextpool/data/translation/parallel_text.h"
#include "contextpool/data/translation/utf8.h"
#include "contextpool/io/error.h"

namespace {

using namespace contextpool;

// Not assert: it must hold in every kind of build.
void require(bool good) {
  if (!good) std::abort();
}

constexpr std::int64_t kMostCharacters = 50;

void check_side(std::string_view side) {
  require(data::is_valid_utf8(side) && !side.empty() && side.find('\n') == std::string_view::npos);
  const auto codes = data::decode_utf8(side);
  require(codes.size() <= kMostCharacters && codes.size() == data::count_code_points(side));
  require(data::encode_utf8(codes) == side);
}

void check(const data::ParallelText& text) {
  const auto& report = text.report();
  require(text.size() > 0 && report.kept == text.size());
  require(report.lines == report.kept + report.empty.count + report.invalid.count + report.too_long.count);
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < text.size(); ++i) {
    check_side(text.pair(i).source);
    check_side(text.pair(i).target);
    require(text.line(i) > before && text.line(i) <= report.lines);
    before = text.line(i);
  }
}

void attempt(const std::function<data::ParallelText()>& read) {
  try {
    check(read());
  } catch (const io::Error& error) {
    const std::string_view message = error.what();
    require(message.find('\n') == std::string_view::npos && message.size() < 1000);
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const data::ParallelOptions options{kMostCharacters};
  attempt([&] { return data::ParallelText::from_columns(data::Lines::from_bytes(bytes, "tsv"), options); });
  const auto middle = bytes.find('\x01');
  if (middle != std::string::npos) {
    attempt([&] {
      return data::ParallelText::from_lines(data::Lines::from_bytes(bytes.substr(0, middle), "source"),
                                            data::Lines::from_bytes(bytes.substr(middle + 1), "target"), options);
    });
  }
  // What is no UTF-8 becomes UTF-8, and stays it.
  const auto decoded = data::decode_utf8(bytes);
  require(data::decode_utf8(data::encode_utf8(decoded)) == decoded);
  return 0;
}
