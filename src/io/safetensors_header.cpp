// The JSON is read as a stream of events, not into a tree: nothing is kept that the format does not allow, names that
// come twice are seen, and brackets in brackets end at the third.
#include "contextpool/io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "io/text.h"

namespace contextpool::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;  // as in the format's reference implementation
constexpr std::size_t kAlignment = 8;
constexpr auto kMetadata = "__metadata__";

struct DtypeRow {
  std::string_view name;
  std::int64_t size;
};
// By the order of Dtype.
constexpr std::array<DtypeRow, 10> kDtypes{{{"BOOL", 1},
                                            {"U8", 1},
                                            {"I8", 1},
                                            {"I16", 2},
                                            {"F16", 2},
                                            {"BF16", 2},
                                            {"I32", 4},
                                            {"F32", 4},
                                            {"F64", 8},
                                            {"I64", 8}}};

template <class... Parts>
[[noreturn]] void refuse(std::string_view who, const Parts&... why) {
  throw Error(text(who, ": not a safetensors file: ", why...));
}

Dtype dtype_of(std::string_view who, const std::string& tensor, std::string_view name) {
  std::string known;
  for (std::size_t k = 0; k < kDtypes.size(); ++k) {
    if (kDtypes[k].name == name) return static_cast<Dtype>(k);
    known += k == 0 ? "" : ", ";
    known += kDtypes[k].name;
  }
  refuse(who, "tensor ", in_quotes(tensor), " has dtype ", in_quotes(name), ", expected one of ", known);
}

// What the parser calls, one function a kind of token. `where_` is the innermost bracket.
class Reader {
 public:
  Reader(std::string_view who, SafetensorsHeader& header) : who_(who), header_(header) {}

  bool start_object(std::size_t /*size*/) {
    if (where_ == Where::kOutside) {
      where_ = Where::kTop;
    } else if (where_ == Where::kTop && key_ == kMetadata) {
      if (std::exchange(has_metadata_, true)) fail("it has ", in_quotes(kMetadata), " twice");
      where_ = Where::kMetadata;
    } else if (where_ == Where::kTop) {
      header_.tensors.emplace_back().name = key_;
      has_dtype_ = has_shape_ = has_offsets_ = false;
      where_ = Where::kTensor;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool end_object() {
    if (where_ == Where::kTensor) {
      const auto& name = header_.tensors.back().name;
      if (!has_dtype_) fail("tensor ", in_quotes(name), " has no dtype");
      if (!has_shape_) fail("tensor ", in_quotes(name), " has no shape");
      if (!has_offsets_) fail("tensor ", in_quotes(name), " has no data_offsets");
    }
    where_ = where_ == Where::kTop ? Where::kOutside : Where::kTop;
    return true;
  }

  bool key(std::string& name) {
    key_ = std::move(name);
    return true;
  }

  bool string(std::string& value) {
    if (where_ == Where::kMetadata) {
      if (!header_.metadata.emplace(key_, std::move(value)).second)
        fail("its metadata has ", in_quotes(key_), " twice");
    } else if (where_ == Where::kTensor && key_ == "dtype") {
      once(has_dtype_);
      tensor().dtype = dtype_of(who_, tensor().name, value);
    } else {
      unexpected("text");
    }
    return true;
  }

  bool start_array(std::size_t /*size*/) {
    if (where_ == Where::kTensor && key_ == "shape") {
      once(has_shape_);
      where_ = Where::kShape;
    } else if (where_ == Where::kTensor && key_ == "data_offsets") {
      once(has_offsets_);
      where_ = Where::kOffsets;
      offsets_ = 0;
    } else {
      unexpected("a list");
    }
    return true;
  }

  bool end_array() {
    if (where_ == Where::kOffsets && offsets_ != 2) offsets_are_two();
    where_ = Where::kTensor;
    return true;
  }

  bool number_unsigned(std::uint64_t value) {
    if (where_ == Where::kShape) {
      if (value > std::numeric_limits<std::int64_t>::max()) unexpected(std::to_string(value));
      tensor().shape.push_back(static_cast<std::int64_t>(value));
    } else if (where_ == Where::kOffsets) {
      if (offsets_ == 2) offsets_are_two();
      (offsets_++ == 0 ? tensor().begin : tensor().end) = value;
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool number_integer(std::int64_t value) { return unexpected(text("the number ", value)); }
  bool number_float(double /*value*/, const std::string& token) {
    return unexpected(text("the number ", in_quotes(token)));
  }
  bool boolean(bool value) { return unexpected(value ? "true" : "false"); }
  bool null() { return unexpected("null"); }
  bool binary(nlohmann::json::binary_t& /*value*/) { return unexpected("bytes"); }

  template <class Exception>
  bool parse_error(std::size_t position, const std::string& /*token*/, const Exception& /*exception*/) {
    fail("its header is not JSON in UTF-8, at byte ", kLengthBytes + position);
  }

 private:
  enum class Where { kOutside, kTop, kMetadata, kTensor, kShape, kOffsets };

  TensorEntry& tensor() { return header_.tensors.back(); }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... why) const {
    refuse(who_, why...);
  }

  [[noreturn]] void offsets_are_two() {
    fail("data_offsets of tensor ", in_quotes(tensor().name), " are not two numbers");
  }

  void once(bool& seen) {
    if (std::exchange(seen, true)) fail("tensor ", in_quotes(tensor().name), " has ", in_quotes(key_), " twice");
  }

  // Always throws; the return type serves the callers above.
  bool unexpected(const std::string& what) {
    switch (where_) {
      case Where::kOutside: fail("its header is ", what, ", expected an object");
      case Where::kTop: fail("tensor ", in_quotes(key_), " is ", what, ", expected an object");
      case Where::kMetadata: fail("its metadata has ", what, " for ", in_quotes(key_), ", expected text");
      case Where::kTensor:
        fail("tensor ", in_quotes(tensor().name), " has ", what, " for ", in_quotes(key_),
             ", expected \"dtype\": text, \"shape\": a list, \"data_offsets\": a list");
      case Where::kShape:
        fail("the shape of tensor ", in_quotes(tensor().name), " has ", what, ", expected non-negative integers");
      case Where::kOffsets:
        fail("data_offsets of tensor ", in_quotes(tensor().name), " have ", what, ", expected non-negative integers");
    }
    return false;
  }

  std::string_view who_;
  SafetensorsHeader& header_;
  Where where_ = Where::kOutside;
  std::string key_;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  int offsets_ = 0;
};

// Bytes of a tensor. Dimensions of 0 count as 1 against overflow: strides are products of the others.
std::uint64_t size_of(std::string_view who, const TensorEntry& tensor) {
  constexpr auto kMaxInt64 = std::numeric_limits<std::int64_t>::max();
  auto bytes = dtype_size(tensor.dtype);
  bool empty = false;
  for (const auto dimension : tensor.shape) {
    empty = empty || dimension == 0;
    const auto factor = std::max<std::int64_t>(dimension, 1);
    if (bytes > kMaxInt64 / factor)
      refuse(who, "the shape of tensor ", in_quotes(tensor.name), " is too large to count");
    bytes *= factor;
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

// A name that comes twice, or nothing.
const std::string* twice(const std::vector<TensorEntry>& tensors) {
  std::vector<const std::string*> names;
  names.reserve(tensors.size());
  for (const auto& tensor : tensors) names.push_back(&tensor.name);
  std::sort(names.begin(), names.end(), [](const auto* a, const auto* b) { return *a < *b; });
  const auto at = std::adjacent_find(names.begin(), names.end(), [](const auto* a, const auto* b) { return *a == *b; });
  return at == names.end() ? nullptr : *at;
}

// The tensors lie one after the other from the header to the end of the file, each with the size of its shape.
void check_places(std::string_view who, std::vector<TensorEntry>& tensors, std::uint64_t data_size) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::uint64_t at = 0;
  for (const auto& tensor : tensors) {
    const auto place = text("[", tensor.begin, ", ", tensor.end, "]");
    if (tensor.begin != at || tensor.end < tensor.begin)
      refuse(who, "data_offsets of tensor ", in_quotes(tensor.name), " are ", place, ", expected them to begin at ", at,
             ", where the one before it ends");
    const auto size = size_of(who, tensor);
    if (tensor.end - tensor.begin != size)
      refuse(who, "tensor ", in_quotes(tensor.name), " has ", tensor.end - tensor.begin,
             " bytes, but dtype and shape need ", size);
    at = tensor.end;
  }
  if (at != data_size)
    refuse(who, "its tensors have ", at, " bytes, but ", data_size, " follow the header",
           (at > data_size ? " (cut off?)" : ""));
}

std::string json_text(std::string_view who, const std::string& value) {
  try {
    return nlohmann::json(value).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(text(who, ": cannot write ", in_quotes(value), ": not UTF-8"));
  }
}

std::string json_of(std::string_view who, const TensorEntry& tensor) {
  std::string shape;
  for (const auto dimension : tensor.shape) {
    if (!shape.empty()) shape += ',';
    shape += std::to_string(dimension);
  }
  return text(json_text(who, tensor.name), R"(:{"dtype":")", dtype_name(tensor.dtype), R"(","shape":[)", shape,
              R"(],"data_offsets":[)", tensor.begin, ",", tensor.end, "]}");
}

std::string json_of(std::string_view who, const Metadata& metadata) {
  std::string pairs;
  for (const auto& [key, value] : metadata) {
    if (!pairs.empty()) pairs += ',';
    pairs += text(json_text(who, key), ":", json_text(who, value));
  }
  return text(json_text(who, kMetadata), ":{", pairs, "}");
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].name; }

std::int64_t dtype_size(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].size; }

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, std::uint64_t size, std::string_view who) {
  if (size < kLengthBytes || bytes.size() < kLengthBytes)
    refuse(who, "it has ", size, " bytes, expected at least ", kLengthBytes);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > kLongestHeader)
    refuse(who, "its header would have ", length, " bytes, expected at most ", kLongestHeader);
  if (length > size - kLengthBytes || length > bytes.size() - kLengthBytes)
    refuse(who, "its header should have ", length, " bytes, but only ", size - kLengthBytes, " follow (cut off?)");
  const std::string_view json(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  if (!json.starts_with('{')) refuse(who, "its header does not begin with {");
  // The parser takes a zero byte for the end.
  if (const auto zero = json.find('\0'); zero != std::string_view::npos)
    refuse(who, "its header has a zero byte, at byte ", kLengthBytes + zero);

  SafetensorsHeader header;
  header.data_begin = kLengthBytes + length;
  Reader reader(who, header);
  nlohmann::json::sax_parse(json, &reader);
  if (const auto* const name = twice(header.tensors)) refuse(who, "it has tensor ", in_quotes(*name), " twice");
  check_places(who, header.tensors, size - header.data_begin);
  return header;
}

std::string format_safetensors_header(std::vector<TensorEntry>& tensors, const Metadata& metadata,
                                      std::string_view who) {
  const auto fail = [&](const auto&... why) { throw Error(text(who, ": cannot write ", why...)); };
  if (const auto* const name = twice(tensors)) fail("two tensors named ", in_quotes(*name));
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  std::string json = "{";
  if (!metadata.empty()) json += json_of(who, metadata);
  std::uint64_t at = 0;
  for (auto& tensor : tensors) {
    if (tensor.name == kMetadata) fail("a tensor named ", in_quotes(kMetadata), ": the format keeps that name");
    tensor.begin = at;
    tensor.end = at += size_of(who, tensor);
    if (json.size() > 1) json += ',';
    json += json_of(who, tensor);
  }
  json += '}';
  json.resize((json.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const std::uint64_t length = json.size();
  if (length > kLongestHeader) fail("a header of ", length, " bytes: the format allows ", kLongestHeader);
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  return bytes + json;
}

}  // namespace contextpool::io
