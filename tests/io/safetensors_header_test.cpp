// The header's parser takes what the format allows and refuses the rest, saying what it found. (tests/python/test_io.py
// compares it with the reference implementation; tests/fuzz looks for cases that are not listed here.)
#include "contextpool/io/safetensors_header.h"

#include <cstring>
#include <sstream>

#include "io_cases.h"

namespace contextpool::io::testing {
namespace {

std::string file_of(const std::string& json, std::size_t data) {
  const std::uint64_t length = json.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + json + std::string(data, 'x');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), file.size(), "a.st");
}

void expect_refused(const std::string& file, const std::vector<std::string>& parts) {
  const auto message = message_of([&] { parse(file); });
  expect_message(message, {"a.st: not a safetensors file: "});
  expect_message(message, parts);
}

// A file of one tensor "w" with this description, and `data` bytes.
std::string one(const std::string& shape, const std::string& offsets, std::size_t data,
                const std::string& dtype = "F32") {
  std::ostringstream json;
  json << R"({"w":{"dtype":")" << dtype << R"(","shape":)" << shape << R"(,"data_offsets":)" << offsets << "}}";
  return file_of(json.str(), data);
}

TEST(SafetensorsHeader, ReadsTensorsInTheOrderOfTheirBytes) {
  const auto header = parse(file_of(
      R"({"b":{"dtype":"I64","shape":[],"data_offsets":[4,12]},"__metadata__":{"k":"v","é":"\u00e9"},)"
      R"("a":{"data_offsets":[0,4],"shape":[2,1],"dtype":"BF16"},"e":{"dtype":"U8","shape":[0,7],"data_offsets":[12,12]}}  )",
      12));
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0], (TensorEntry{"a", Dtype::kBF16, {2, 1}, 0, 4}));
  EXPECT_EQ(header.tensors[1], (TensorEntry{"b", Dtype::kI64, {}, 4, 12}));
  EXPECT_EQ(header.tensors[2], (TensorEntry{"e", Dtype::kU8, {0, 7}, 12, 12}));
  EXPECT_EQ(header.metadata, (Metadata{{"k", "v"}, {"é", "é"}}));
}

TEST(SafetensorsHeader, OfNoTensors) {
  EXPECT_TRUE(parse(file_of("{}", 0)).tensors.empty());
  expect_refused(file_of("{}", 1), {"tensors have 0 bytes, but 1 follow"});
}

TEST(SafetensorsHeader, ThatDoesNotFitTheFile) {
  expect_refused("", {"0 bytes, expected at least 8"});
  expect_refused("1234567", {"7 bytes"});
  expect_refused(std::string(8, '\0'), {"does not begin with {"});
  expect_refused(file_of("{}", 0).substr(0, 9), {"should have 2 bytes, but only 1 follow", "cut off"});
  expect_refused(std::string(8, '\xff') + "{}", {"18446744073709551615", "at most 100000000"});
  auto large = file_of("{}", 0);
  const std::uint64_t length = 100'000'001;
  std::memcpy(large.data(), &length, 8);
  expect_refused(large, {"100000001"});
}

TEST(SafetensorsHeader, ThatIsNoJsonObject) {
  for (const auto* json :
       {"{", "{\"a\"", "{\"a\":}", "{}{}", "{} x", "{,}", "{'a':1}", "{\"a\\x\":1}", "{//\n}", "{\"\xff\":{}}",
        "{\"\\ud800\":{}}", "{\"a\n\":{}}", "{\"a\":{\"shape\":[01]}}", "{\"a\":{\"shape\":[1,]}}"})
    expect_refused(file_of(json, 0), {"not JSON in UTF-8, at byte "});
  for (const auto* json : {"[]", "\"\"", "1", " {}", "\xef\xbb\xbf{}"})
    expect_refused(file_of(json, 0), {"does not begin with {"});
  expect_refused(file_of(std::string("{}\0", 3), 0), {"zero byte, at byte 10"});
  expect_refused(file_of(std::string("{").append(1000, ' '), 0), {"not JSON"});
}

TEST(SafetensorsHeader, OfAnotherStructure) {
  for (const auto* value : {"1", "\"F32\"", "[]", "null", "true", "1.5", "-1"})
    expect_refused(file_of("{\"w\":" + std::string(value) + "}", 0), {"tensor \"w\" is ", "expected an object"});
  expect_refused(file_of("{\"__metadata__\":[]}", 0), {"__metadata__", "a list"});
  expect_refused(file_of("{\"__metadata__\":{\"a\":1}}", 0), {"metadata has a number for \"a\", expected text"});
  expect_refused(file_of("{\"__metadata__\":{\"a\":{}}}", 0), {"metadata has an object for \"a\""});
  expect_refused(file_of("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0), {"\"a\" twice"});
  expect_refused(file_of("{\"__metadata__\":{},\"__metadata__\":{}}", 0), {"__metadata__", "twice"});
  expect_refused(file_of("{\"w\":{}}", 0), {"\"w\" has no dtype"});
  expect_refused(file_of(R"({"w":{"dtype":"U8","data_offsets":[0,1]}})", 1), {"\"w\" has no shape"});
  expect_refused(file_of(R"({"w":{"dtype":"U8","shape":[1]}})", 1), {"\"w\" has no data_offsets"});
  expect_refused(file_of(R"({"w":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
                 {"dtype", "twice"});
  expect_refused(file_of(R"({"w":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1),
                 {"shape", "twice"});
  expect_refused(file_of(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":{}}})", 1), {"more"});
  expect_refused(file_of(R"({"w":{"dtype":5,"shape":[1],"data_offsets":[0,1]}})", 1), {"a number for \"dtype\""});
}

TEST(SafetensorsHeader, OfAnUnknownDtype) {
  for (const auto* name : {"F8_E4M3", "C64", "U16", "U32", "U64", "f32", "", "F32 "})
    expect_refused(one("[1]", "[0,4]", 4, name), {"\"w\" has dtype", name, "expected one of BOOL, U8", "I64"});
}

TEST(SafetensorsHeader, WithANameTwice) {
  const std::string w = R"("w":{"dtype":"U8","shape":[1],"data_offsets":)";
  expect_refused(file_of("{" + w + "[0,1]}," + w + "[1,2]}}", 2), {"tensor \"w\" twice"});
  expect_refused(file_of("{" + w + "[0,1]}," + w + "[0,1]}}", 1), {"tensor \"w\" twice"});
}

TEST(SafetensorsHeader, WithDimensionsThatAreNoCounts) {
  for (const auto* shape : {"[-1]", "[1.0]", "[1e0]", "[\"1\"]", "[null]", "[true]", "[[1]]", "[{}]", "[-0]",
                            "[9223372036854775808]", "[18446744073709551615]", "[18446744073709551616]"})
    expect_refused(one(shape, "[0,4]", 4), {"shape of tensor \"w\" has ", "non-negative integers"});
  expect_refused(one("1", "[0,4]", 4), {"a number for \"shape\""});
}

TEST(SafetensorsHeader, WithShapesTooLargeToCount) {
  for (const auto* shape : {"[4611686018427387904]", "[2305843009213693952]", "[4294967296,4294967296]",
                            "[0,4611686018427387904,4]", "[4611686018427387904,4,0]", "[3037000500,3037000500]"})
    expect_refused(one(shape, "[0,0]", 0), {"tensor \"w\" is too large to count"});
}

TEST(SafetensorsHeader, WithOffsetsThatDoNotFit) {
  expect_refused(one("[1]", "[0,5]", 5), {"\"w\" has 5 bytes, but dtype and shape need 4"});
  expect_refused(one("[2]", "[0,4]", 4), {"need 8"});
  expect_refused(one("[1]", "[1,5]", 5), {"[1, 5]", "begin at 0"});
  expect_refused(one("[1]", "[4,0]", 4), {"[4, 0]"});
  expect_refused(one("[1]", "[0,4]", 3), {"have 4 bytes, but 3 follow", "cut off"});
  expect_refused(one("[1]", "[0,4]", 5), {"have 4 bytes, but 5 follow"});
  expect_refused(one("[1]", "[0,18446744073709551615]", 4), {"18446744073709551615"});
  for (const auto* offsets : {"[]", "[0]", "[0,4,4]"}) expect_refused(one("[1]", offsets, 4), {"not two numbers"});
  for (const auto* offsets : {"[-1,3]", "[0,4.0]", "[0,18446744073709551616]"})
    expect_refused(one("[1]", offsets, 4), {"data_offsets of tensor \"w\" have"});
  const auto two = [](const char* second) {
    return file_of(
        R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":)" +
            std::string(second) + "}}",
        4);
  };
  EXPECT_EQ(parse(two("[2,4]")).tensors.size(), 2u);
  expect_refused(two("[1,3]"), {"\"b\"", "begin at 2"});
  expect_refused(two("[0,2]"), {"\"b\"", "begin at 2"});
  expect_refused(two("[3,5]"), {"\"b\"", "begin at 2"});
}

TEST(SafetensorsHeader, OfBracketsInBrackets) {
  const std::string deep(1'000'000, '[');
  expect_refused(file_of("{\"w\":" + deep + "}", 0), {"tensor \"w\" is a list"});
  expect_refused(file_of("{\"w\":{\"shape\":" + deep + "}}", 0), {"shape of tensor \"w\" has a list"});
  std::string objects;
  for (int k = 0; k < 100'000; ++k) objects += "{\"w\":";
  expect_refused(file_of(objects, 0), {"an object"});
}

TEST(SafetensorsHeader, NamesHostileTensorsOnOneShortLine) {
  std::string json = "{\"\\n\\u001b[2J";
  json.append(100'000, 'n').append("\":1}");
  const auto message = message_of([&] { parse(file_of(json, 0)); });
  expect_message(message, {R"(tensor "\x0a\x1b[2Jnnn)", "..."});
  EXPECT_LT(message.size(), 300u);
}

TEST(SafetensorsHeader, IsReadAsWritten) {
  std::vector<TensorEntry> tensors{{"b", Dtype::kF32, {3}},
                                   {"a", Dtype::kF32, {1, 2}},
                                   {"\n\"é", Dtype::kBool, {}},
                                   {"z", Dtype::kI64, {0}},
                                   {"h", Dtype::kF16, {5}}};
  const Metadata metadata{{"format", "pt"}, {"", "\x01"}};
  auto file = format_safetensors_header(tensors, metadata, "a.st");
  EXPECT_EQ(file.size() % 8, 0u);
  EXPECT_EQ(tensors.front().name, "z");
  EXPECT_EQ(tensors[1].name, "a");
  EXPECT_EQ(tensors.back().name, "\n\"é");
  file += std::string(tensors.back().end, 'x');
  const auto header = parse(file);
  EXPECT_EQ(header.tensors, tensors);
  EXPECT_EQ(header.metadata, metadata);
}

TEST(SafetensorsHeader, WriterRefusesWhatNobodyCouldRead) {
  const auto refused = [](std::vector<TensorEntry> tensors, const Metadata& metadata = {}) {
    return message_of([&] { format_safetensors_header(tensors, metadata, "a.st"); });
  };
  expect_message(refused({{"a", Dtype::kU8, {1}}, {"a", Dtype::kI8, {1}}}), {"a.st", "two tensors named \"a\""});
  expect_message(refused({{"__metadata__", Dtype::kU8, {1}}}), {"a.st", "__metadata__"});
  expect_message(refused({{"\xff", Dtype::kU8, {1}}}), {"a.st", "not UTF-8"});
  expect_message(refused({}, {{"k", "\xff"}}), {"a.st", "not UTF-8"});
  std::string long_name;
  long_name.resize(100'000'000, 'n');
  expect_message(refused({{long_name, Dtype::kU8, {1}}}), {"a.st", "the format allows 100000000"});
}

}  // namespace
}  // namespace contextpool::io::testing
