// log.jsonl of a run: one JSON object a step. Opening it for a run that goes on from step n keeps the lines of steps up
// to n and drops what comes after, torn lines included, so that the log reads as if the run had never stopped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "contextpool/io/files.h"

namespace contextpool::train {

class Log {
 public:
  Log(const std::filesystem::path& path, std::int64_t keep_to);

  // Throws FileError if the disk is full; the line is kept and written with the next.
  void write(const nlohmann::ordered_json& line);
  void sync();

 private:
  io::OutputFile file_;
  std::string pending_;
};

}  // namespace contextpool::train
