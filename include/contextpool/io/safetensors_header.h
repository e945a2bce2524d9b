// The header of a safetensors file, apart from tensors and torch:
//
//   8 bytes   n, little-endian
//   n bytes   a JSON object: name -> {"dtype", "shape", "data_offsets": [begin, end)},
//             and "__metadata__": {string: string}
//   the rest  the tensors' bytes, one after the other, no gap, nothing after the last
//
// Parsing believes nothing: what it returns describes tensors that lie within the file, in order, with sizes that fit
// their dtypes and shapes and can be counted in 63 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextpool/io/error.h"

namespace contextpool::io {

// In the order of the format's reference implementation, whose files hold tensors of later dtypes first.
enum class Dtype { kBool, kU8, kI8, kI16, kF16, kBF16, kI32, kF32, kF64, kI64 };
std::string_view dtype_name(Dtype dtype);  // "BOOL", "F32", ...
std::int64_t dtype_size(Dtype dtype);      // bytes of an element

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // its bytes, counted from the first after the header
  std::uint64_t end = 0;

  bool operator==(const TensorEntry&) const = default;
};

using Metadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their bytes
  Metadata metadata;
  std::uint64_t data_begin = 0;  // where in the file the tensors' bytes begin
};

// `bytes` is the file or at least its header; `size` the whole file's. Throws Error "<who>: not a safetensors file:
// ...".
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, std::uint64_t size, std::string_view who);

// Sorts the tensors as the format's reference implementation does (dtype downwards, then name), gives them their places
// and returns the file's bytes up to the first tensor's. begin and end of the entries are set here.
std::string format_safetensors_header(std::vector<TensorEntry>& tensors, const Metadata& metadata,
                                      std::string_view who);

}  // namespace contextpool::io
