#include "contextpool/io/events.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "contextpool/io/crc32c.h"
#include "io/text.h"

namespace contextpool::io {
namespace {

// The fields and values of TensorFlow's messages that are used here, by their numbers in the .proto files.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace session_log {
constexpr int kStatus = 1, kStart = 1;
}
namespace summary {
constexpr int kValue = 1;
}
namespace value {
constexpr int kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
}
namespace metadata {
constexpr int kPluginData = 1, kPluginName = 1;
}
namespace tensor {
constexpr int kDtype = 1, kShape = 2, kStringVal = 8, kDtString = 7;
constexpr int kShapeDim = 2, kDimSize = 1;
}  // namespace tensor

// A protobuf message being written: fields of the kinds that are needed.
class Message {
 public:
  Message& integer(int field, std::int64_t value) {
    key(field, Wire::kVarint);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& real(int field, double value) {
    key(field, Wire::kFixed64);
    return raw(value);
  }
  Message& real32(int field, float value) {
    key(field, Wire::kFixed32);
    return raw(value);
  }
  Message& bytes(int field, std::string_view value) {
    key(field, Wire::kBytes);
    varint(value.size());
    text_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.text_); }
  const std::string& text() const { return text_; }

 private:
  enum class Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  void key(int field, Wire wire) { varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire)); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  template <class T>
  Message& raw(T value) {
    static_assert(std::endian::native == std::endian::little);
    std::array<char, sizeof value> bytes{};
    std::memcpy(bytes.data(), &value, sizeof value);
    text_.append(bytes.data(), bytes.size());
    return *this;
  }

  std::string text_;
};

Message event_now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return Message().real(event::kWallTime, std::chrono::duration<double>(since).count());
}

Message event_at(std::int64_t step) { return event_now().integer(event::kStep, step); }

Message scalar_value(std::string_view tag, double number) {
  return Message().bytes(value::kTag, tag).real32(value::kSimpleValue, static_cast<float>(number));
}

// Rotated and shifted, so that a checksum of data that holds checksums is no special case.
std::uint32_t masked_crc(std::string_view bytes) {
  constexpr std::uint32_t kShift = 0xA282EAD8;
  return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + kShift;
}

template <class T>
void append_raw(std::string& out, T value) {
  std::array<char, sizeof value> bytes{};
  std::memcpy(bytes.data(), &value, sizeof value);
  out.append(bytes.data(), bytes.size());
}

OutputFile new_file(const std::filesystem::path& folder) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const auto stem = io::text("events.out.tfevents.", seconds, ".", host.data(), ".", ::getpid(), ".");
  for (int n = 0;; ++n) {
    try {
      return {folder / io::text(stem, n), OutputFile::Mode::kNew};
    } catch (const FileError& error) {
      if (error.code() != EEXIST) throw;
    }
  }
}

}  // namespace

EventWriter::EventWriter(const std::filesystem::path& folder, std::optional<std::int64_t> resumed_from)
    : file_(new_file(folder)) {
  record(event_now().bytes(event::kFileVersion, "brain.Event:2").text());
  if (!resumed_from) return;
  const auto start = Message().integer(session_log::kStatus, session_log::kStart);
  record(event_at(*resumed_from + 1).message(event::kSessionLog, start).text());
}

void EventWriter::scalar(std::string_view tag, double number, std::int64_t step) {
  const auto all = Message().message(summary::kValue, scalar_value(tag, number));
  record(event_at(step).message(event::kSummary, all).text());
}

void EventWriter::scalars(const std::vector<std::pair<std::string, double>>& values, std::int64_t step) {
  Message all;
  for (const auto& [tag, number] : values) all.message(summary::kValue, scalar_value(tag, number));
  record(event_at(step).message(event::kSummary, all).text());
}

void EventWriter::text(std::string_view tag, std::string_view markdown, std::int64_t step) {
  const auto shape = Message().message(tensor::kShapeDim, Message().integer(tensor::kDimSize, 1));
  const auto content = Message()
                           .integer(tensor::kDtype, tensor::kDtString)
                           .message(tensor::kShape, shape)
                           .bytes(tensor::kStringVal, markdown);
  const auto plugin = Message().message(metadata::kPluginData, Message().bytes(metadata::kPluginName, "text"));
  const auto item =
      Message().bytes(value::kTag, tag).message(value::kTensor, content).message(value::kMetadata, plugin);
  record(event_at(step).message(event::kSummary, Message().message(summary::kValue, item)).text());
}

void EventWriter::sync() {
  flush();
  file_.sync();
}

void EventWriter::record(std::string_view event) {
  std::string bytes;
  append_raw(bytes, static_cast<std::uint64_t>(event.size()));
  append_raw(bytes, masked_crc(bytes));
  bytes += event;
  append_raw(bytes, masked_crc(event));
  pending_ += bytes;
  flush();
}

void EventWriter::flush() {
  if (pending_.empty()) return;
  file_.write(pending_);
  pending_.clear();
}

}  // namespace contextpool::io
