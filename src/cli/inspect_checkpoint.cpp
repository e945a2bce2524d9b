// contextpool inspect-checkpoint: what a safetensors file holds.
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "contextpool/io/safetensors.h"

namespace contextpool::cli {
namespace {

std::string shape_of(const io::TensorEntry& entry) {
  std::string sizes;
  for (const auto n : entry.shape) sizes += (sizes.empty() ? "" : ", ") + std::to_string(n);
  return "[" + sizes + "]";
}

// Names come from the file: as JSON they cannot drive a terminal.
std::string in_json(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

int inspect_checkpoint(const Arguments& arguments) {
  std::string file;
  CLI::App app("Lists the tensors of a safetensors file.", "contextpool inspect-checkpoint");
  app.add_option("file", file, "the file");
  if (!parse(app, arguments)) return 0;
  if (file.empty()) throw UsageError("a safetensors FILE is needed");

  const io::SafetensorsFile opened(file);
  std::uint64_t bytes = 0;
  std::int64_t elements = 0;
  for (const auto& entry : opened.entries()) {
    std::cout << std::left << std::setw(5) << io::dtype_name(entry.dtype) << " " << std::setw(20) << shape_of(entry)
              << " " << in_json(entry.name) << "\n";
    bytes += entry.end - entry.begin;
    elements += static_cast<std::int64_t>(entry.end - entry.begin) / io::dtype_size(entry.dtype);
  }
  for (const auto& [key, value] : opened.metadata()) {
    std::cout << "metadata " << in_json(key) << ": " << in_json(value) << "\n";
  }
  std::cout << opened.entries().size() << " tensors, " << elements << " elements, " << bytes << " bytes\n";
  return 0;
}

}  // namespace contextpool::cli
