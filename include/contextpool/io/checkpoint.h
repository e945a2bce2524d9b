// Checkpoints of a run: <run>/checkpoints/step-N/ with
//   model.safetensors, optimizer.safetensors   tensors by name; ema.safetensors too where there is an average
//   state.json                                 whatever else training needs to resume
//   MANIFEST.json                              the size and the CRC-32C of each of these
// A folder of that name was complete and synced before it got the name. Reading trusts the manifest only: a checkpoint
// is complete if every file has the size and the checksum written there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "contextpool/io/safetensors.h"

namespace contextpool::io {

struct Checkpoint {
  std::int64_t step = 0;
  NamedTensors model;
  NamedTensors optimizer;
  NamedTensors ema;              // may be empty; then there is no such file
  std::string state;             // JSON text
  Metadata metadata;             // of model.safetensors and ema.safetensors, e.g. the model's name
  std::filesystem::path folder;  // where it was read from; not used when saving
};

// Reading. Nothing is changed on the disk: safe beside a process that trains in the same run folder.

std::filesystem::path checkpoint_folder(const std::filesystem::path& run, std::int64_t step);
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& run);  // ascending; complete or not

// Verifies a checkpoint's folder and reads it; tensors are views of the mapped files. Error if it is not complete.
// With Verify::no the manifest is ignored, for a checkpoint that lost it. Then Error only if a file cannot be read.
enum class Verify : std::uint8_t { no, yes };
Checkpoint load_checkpoint(const std::filesystem::path& folder, Verify verify = Verify::yes);

struct NewestWhole {
  struct Skipped {
    std::filesystem::path folder;
    std::string why;  // one line, naming the file
  };
  std::optional<Checkpoint> checkpoint;  // empty where none passes verification
  std::vector<Skipped> skipped;          // newer ones that do not pass, newest first
};
NewestWhole newest_whole(const std::filesystem::path& run, Verify verify = Verify::yes);

struct Best {
  std::int64_t step = 0;
  double value = 0;
  std::string metric;  // what the value is, e.g. "valid_loss"
};
std::optional<Best> best_checkpoint(const std::filesystem::path& run);  // Error if the mark cannot be read

// Writing. A run has one writer: a second one, in this process or another, is refused while the first exists.
class CheckpointWriter {
 public:
  struct Options {
    int keep_last = 3;  // at least 1
    // The step that training resumes from; none for a new run. Checkpoints above it, which were skipped as damaged,
    // no longer count and are removed by the next save.
    std::optional<std::int64_t> resumed_from;
  };
  // Creates the folder if it is missing and removes the leftovers of a killed writer.
  CheckpointWriter(const std::filesystem::path& run, Options options);

  // Returns when the checkpoint is on the disk under its name; a checkpoint of the same step is replaced. Then removes
  // all but the last keep_last and the best; what cannot be removed now is tried again by the next save. Throws
  // FileError (disk_full() among others): no incomplete checkpoint is left, the older ones are unchanged, and the call
  // may be repeated. Throws Error if the folder was removed or replaced: there is nothing left to add to.
  void save(const Checkpoint& checkpoint);

  // Marks an existing checkpoint as the best so far. It stays until another is marked.
  void mark_best(const Best& best);

 private:
  void write_files(const Checkpoint& checkpoint, const std::filesystem::path& folder) const;
  void move_into_place(const std::filesystem::path& folder, std::int64_t step) const;
  void remove_old(std::int64_t saved);
  void remove_leftovers() const;
  void check_folder() const;

  std::filesystem::path run_;
  std::filesystem::path folder_;  // <run>/checkpoints, there from the first
  int keep_last_;
  FolderLock lock_;
  std::set<std::int64_t> abandoned_;
};

}  // namespace contextpool::io
