// TensorBoard event files. A file is a row of records (length, its masked CRC, bytes, their masked CRC); the bytes are
// an Event message of TensorFlow's event.proto, encoded here by hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextpool/io/files.h"

namespace contextpool::io {

class EventWriter {
 public:
  // A new file events.out.tfevents.<seconds>.<host>.<process>.<n> in the folder: every start of a run has its own.
  // `resumed_from`: TensorBoard shall forget what earlier files of the folder say of later steps.
  explicit EventWriter(const std::filesystem::path& folder, std::optional<std::int64_t> resumed_from = std::nullopt);

  // One record each, visible to readers when the call returns. After a FileError (a full disk) the record is kept and
  // written with the next, or by sync().
  void scalar(std::string_view tag, double value, std::int64_t step);  // stored as float32
  void scalars(const std::vector<std::pair<std::string, double>>& values, std::int64_t step);
  void text(std::string_view tag, std::string_view markdown, std::int64_t step);
  void sync();

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void record(std::string_view event);
  void flush();

  OutputFile file_;
  std::string pending_;
};

}  // namespace contextpool::io
