// Tensors by name in safetensors files, as safetensors.torch.save_file writes and load_file reads them. Errors are
// io::Error (see error.h), one line that names the file.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextpool/io/files.h"
#include "contextpool/io/safetensors_header.h"

namespace contextpool::io {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

// A file that was found valid, open for reading.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  explicit SafetensorsFile(std::shared_ptr<const MappedFile> file);

  const std::vector<TensorEntry>& entries() const { return header_.tensors; }  // in the order of the file
  const Metadata& metadata() const { return header_.metadata; }

  // CPU tensors. They share the mapped file's memory and keep it; writing to one changes neither the file nor another
  // reader's copy. (Where a file does not align a tensor to its dtype, it is copied.)
  torch::Tensor tensor(const TensorEntry& entry) const;
  torch::Tensor tensor(std::string_view name) const;  // Error if there is none
  NamedTensors tensors() const;

 private:
  std::shared_ptr<const MappedFile> file_;
  SafetensorsHeader header_;
};

NamedTensors read_safetensors(const std::filesystem::path& path);

// Tensors of any device and layout of strides; equal input gives equal bytes, whatever the order of `tensors`. Written
// beside `path`, synced, then renamed.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors, const Metadata& metadata = {});
// The same into a file that the caller opened and will sync.
void write_safetensors(OutputFile& file, const NamedTensors& tensors, const Metadata& metadata = {});

// Parameters, then buffers, under the names that Python's state_dict gives them.
NamedTensors named_tensors(const torch::nn::Module& module);

// Copies tensors into the targets of the same names, converting between floating dtypes and moving to the targets'
// devices. Unless names and shapes are the same on both sides nothing is changed and Error is thrown, which lists what
// is missing, unexpected or of another shape: "<who>: not a checkpoint of this model: ...".
void load_into(const NamedTensors& targets, const NamedTensors& tensors, std::string_view who);

}  // namespace contextpool::io
