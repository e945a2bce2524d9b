// log.jsonl of a run: one JSON object a step. Opening it for a run that resumes from step n keeps the lines of steps up
// to n and drops later ones, a torn last line included, so that the log reads as if the run had never stopped. Nothing
// else is dropped: where lines before step n are damaged, the file as it was stays as log.jsonl.damaged-<k>.
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

  // What is wrong with the log that was there, in a line; empty if nothing.
  const std::string& note() const { return note_; }

  // Throws FileError if the disk is full; the line is kept and written with the next, or by sync().
  void write(const nlohmann::ordered_json& line);
  void sync();

 private:
  void flush();

  std::string note_;
  io::OutputFile file_;
  std::string pending_;
};

}  // namespace contextpool::train
