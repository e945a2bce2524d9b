#include "contextpool/io/safetensors.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "io/text.h"

namespace contextpool::io {
namespace {

// By the order of Dtype.
constexpr std::array<torch::ScalarType, 10> kTypes{torch::kBool,   torch::kUInt8,    torch::kInt8,  torch::kInt16,
                                                   torch::kHalf,   torch::kBFloat16, torch::kInt32, torch::kFloat,
                                                   torch::kDouble, torch::kInt64};

torch::ScalarType torch_type(Dtype dtype) { return kTypes[static_cast<std::size_t>(dtype)]; }

std::optional<Dtype> dtype_of(torch::ScalarType type) {
  const auto* const at = std::find(kTypes.begin(), kTypes.end(), type);
  if (at == kTypes.end()) return std::nullopt;
  return static_cast<Dtype>(at - kTypes.begin());
}

// A short list for a message: the first few, and how many more.
class List {
 public:
  void add(const std::string& item) {
    if (++count_ > kShown) return;
    if (!text_.empty()) text_ += ", ";
    text_ += item;
  }
  // "; <title> a, b and 3 more", or nothing if there is nothing.
  std::string after(std::string_view title) const {
    if (count_ == 0) return {};
    const auto more = count_ > kShown ? text(" and ", count_ - kShown, " more") : "";
    return text("; ", title, " ", text_, more);
  }

 private:
  static constexpr int kShown = 5;
  int count_ = 0;
  std::string text_;
};

bool convertible(const torch::Tensor& from, const torch::Tensor& to) {
  return from.scalar_type() == to.scalar_type() || (from.is_floating_point() && to.is_floating_point());
}

TensorEntry entry_of(const std::string& name, const torch::Tensor& tensor, const std::string& who) {
  const auto fail = [&](const auto&... why) {
    throw Error(text(who, ": cannot write tensor ", in_quotes(name), ": ", why...));
  };
  if (!tensor.defined()) fail("it is undefined");
  if (tensor.layout() != torch::kStrided || tensor.is_quantized() || tensor.is_meta()) fail("it has no plain memory");
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype) fail("its dtype ", tensor.scalar_type(), " is not supported");
  return {.name = name, .dtype = *dtype, .shape = tensor.sizes().vec()};
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : SafetensorsFile(MappedFile::open(path)) {}

SafetensorsFile::SafetensorsFile(std::shared_ptr<const MappedFile> file)
    : file_(std::move(file)),
      header_(parse_safetensors_header(file_->bytes(), file_->bytes().size(), file_->path().string())) {}

torch::Tensor SafetensorsFile::tensor(const TensorEntry& entry) const {
  const auto type = torch_type(entry.dtype);
  if (entry.begin == entry.end) return torch::empty(entry.shape, type);
  const auto bytes = file_->bytes().subspan(header_.data_begin + entry.begin, entry.end - entry.begin);
  if (entry.dtype == Dtype::kBool &&
      std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; }))
    throw Error(text(file_->path().string(), ": tensor ", in_quotes(entry.name),
                     " is of dtype BOOL but has bytes other than 0 and 1"));
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % static_cast<std::size_t>(dtype_size(entry.dtype)) != 0) {
    auto copy = torch::empty(entry.shape, type);
    std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(copy.data_ptr()));
    return copy;
  }
  return torch::from_blob(
      bytes.data(), entry.shape, [file = file_](void*) {}, type);
}

torch::Tensor SafetensorsFile::tensor(std::string_view name) const {
  for (const auto& entry : entries())
    if (entry.name == name) return tensor(entry);
  throw Error(text(file_->path().string(), ": has no tensor ", in_quotes(name)));
}

NamedTensors SafetensorsFile::tensors() const {
  NamedTensors all;
  all.reserve(entries().size());
  for (const auto& entry : entries()) all.emplace_back(entry.name, tensor(entry));
  return all;
}

NamedTensors read_safetensors(const std::filesystem::path& path) { return SafetensorsFile(path).tensors(); }

void write_safetensors(OutputFile& file, const NamedTensors& tensors, const Metadata& metadata) {
  const auto who = file.path().string();
  std::map<std::string_view, const torch::Tensor*> by_name;
  std::vector<TensorEntry> entries;
  entries.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    entries.push_back(entry_of(name, tensor, who));
    by_name.emplace(name, &tensor);
  }
  file.write(format_safetensors_header(entries, metadata, who));
  for (const auto& entry : entries) {
    // One tensor at a time is brought to the CPU and made contiguous.
    const auto plain = by_name.at(entry.name)->detach().to(torch::kCPU).resolve_conj().resolve_neg().contiguous();
    file.write(std::span(static_cast<const std::byte*>(plain.const_data_ptr()), entry.end - entry.begin));
  }
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors, const Metadata& metadata) {
  replace_file(path, [&](OutputFile& file) { write_safetensors(file, tensors, metadata); });
}

NamedTensors named_tensors(const torch::nn::Module& module) {
  NamedTensors all;
  for (const auto& item : module.named_parameters()) all.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) all.emplace_back(item.key(), item.value());
  return all;
}

void load_into(const NamedTensors& targets, const NamedTensors& tensors, std::string_view who) {
  const std::map<std::string_view, torch::Tensor> given(tensors.begin(), tensors.end());
  std::set<std::string_view> wanted;
  List missing;
  List unexpected;
  List different;
  for (const auto& [name, target] : targets) {
    wanted.insert(name);
    const auto at = given.find(name);
    if (at == given.end()) {
      missing.add(in_quotes(name));
    } else if (at->second.sizes() != target.sizes()) {
      different.add(text(in_quotes(name), " ", at->second.sizes(), " instead of ", target.sizes()));
    } else if (!convertible(at->second, target)) {
      different.add(text(in_quotes(name), " ", at->second.scalar_type(), " instead of ", target.scalar_type()));
    }
  }
  for (const auto& [name, tensor] : tensors)
    if (!wanted.contains(name)) unexpected.add(in_quotes(name));
  const auto findings = missing.after("missing") + unexpected.after("unexpected") + different.after("different");
  if (!findings.empty()) throw Error(text(who, ": not a checkpoint of this model", findings));

  const torch::NoGradGuard no_grad;
  for (const auto& [name, target] : targets) target.copy_(given.at(name));
}

}  // namespace contextpool::io
