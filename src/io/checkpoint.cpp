// A save, in the order that matters:
//   files into the hidden folder .step-N.writing, each synced; the manifest last; the folder synced;
//   the folder renamed to step-N; checkpoints/ synced; only then older checkpoints removed, each renamed to
//   .step-M.removing first, so that nothing half removed bears a checkpoint's name.
#include "contextpool/io/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ranges>
#include <system_error>

#include "io/manifest.h"
#include "io/text.h"

namespace contextpool::io {
namespace {

namespace fs = std::filesystem;

constexpr auto kFolder = "checkpoints";
constexpr std::string_view kStep = "step-";
constexpr auto kModel = "model.safetensors";
constexpr auto kOptimizer = "optimizer.safetensors";
constexpr auto kEma = "ema.safetensors";
constexpr auto kState = "state.json";
constexpr auto kWriting = ".writing";
constexpr auto kRemoving = ".removing";

std::string step_name(std::int64_t step) { return text(kStep, step); }

fs::path hidden(const fs::path& folder, std::int64_t step, const char* purpose) {
  return folder / text(".", step_name(step), purpose);
}

// The step of a folder named step-N as save() names it.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  const auto digits = name.substr(kStep.size());
  std::int64_t step = -1;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (result.ec != std::errc() || step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, code)) found.push_back(entry.path());
  if (code && code != std::errc::no_such_file_or_directory) throw FileError(folder, "read folder", code.value());
  return found;
}

fs::path created(fs::path folder) {
  make_folder(folder);
  return folder;
}

Manifest checked_manifest(const fs::path& folder) {
  auto manifest = read_manifest(folder);
  for (const auto& [name, file] : manifest.files)
    if (name != kModel && name != kOptimizer && name != kEma && name != kState)
      throw Error(
          text(folder.string(), ": MANIFEST.json lists ", in_quotes(name), ", which is not part of a checkpoint"));
  return manifest;
}

// What the names of a checkpoint's folder and files say.
Manifest manifest_of_names(const fs::path& folder) {
  Manifest manifest;
  manifest.step = step_of(folder.filename().string()).value_or(0);
  if (fs::exists(folder / kEma)) manifest.files[kEma] = {};
  return manifest;
}

void check_saveable(const Checkpoint& checkpoint) {
  if (checkpoint.step < 0) throw Error(text("checkpoint: the step is ", checkpoint.step, ", expected 0 or more"));
  if (!is_json(checkpoint.state)) throw Error(text("checkpoint: the state of step ", checkpoint.step, " is not JSON"));
}

}  // namespace

fs::path checkpoint_folder(const fs::path& run, std::int64_t step) { return run / kFolder / step_name(step); }

std::vector<std::int64_t> checkpoint_steps(const fs::path& run) {
  std::vector<std::int64_t> steps;
  for (const auto& path : entries_of(run / kFolder)) {
    std::error_code code;
    const auto step = step_of(path.filename().string());
    if (step && fs::is_directory(path, code)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Checkpoint load_checkpoint(const fs::path& folder, Verify verify) {
  const auto manifest = verify == Verify::yes ? checked_manifest(folder) : manifest_of_names(folder);
  const auto open = [&](const char* name) {
    return verify == Verify::yes ? open_listed(folder, manifest, name) : MappedFile::open(folder / name);
  };
  Checkpoint checkpoint;
  checkpoint.step = manifest.step;
  checkpoint.folder = folder;
  const SafetensorsFile model(open(kModel));
  checkpoint.model = model.tensors();
  checkpoint.metadata = model.metadata();
  checkpoint.optimizer = SafetensorsFile(open(kOptimizer)).tensors();
  if (manifest.files.contains(kEma)) checkpoint.ema = SafetensorsFile(open(kEma)).tensors();
  checkpoint.state = open(kState)->text();
  return checkpoint;
}

NewestWhole newest_whole(const fs::path& run, Verify verify) {
  NewestWhole found;
  const auto steps = checkpoint_steps(run);
  for (const auto step : std::views::reverse(steps)) {
    const auto folder = checkpoint_folder(run, step);
    try {
      auto checkpoint = load_checkpoint(folder, verify);
      if (checkpoint.step != step) throw Error(text(folder.string(), ": MANIFEST.json is of step ", checkpoint.step));
      found.checkpoint = std::move(checkpoint);
      break;
    } catch (const Error& error) {
      found.skipped.push_back({folder, error.what()});
    }
  }
  return found;
}

std::optional<Best> best_checkpoint(const fs::path& run) { return read_best(run / kFolder); }

CheckpointWriter::CheckpointWriter(const fs::path& run, Options options)
    : run_(run),
      folder_(created(run / kFolder)),
      keep_last_(options.keep_last),
      lock_(folder_, "another process writes checkpoints here") {
  if (keep_last_ < 1) throw Error(text("checkpoint: keep_last is ", keep_last_, ", expected 1 or more"));
  for (const auto step : checkpoint_steps(run_))
    if (!options.resumed_from || step > *options.resumed_from) abandoned_.insert(step);
  remove_leftovers();
}

void CheckpointWriter::save(const Checkpoint& checkpoint) {
  check_saveable(checkpoint);
  check_folder();
  const auto temporary = hidden(folder_, checkpoint.step, kWriting);
  try {
    remove_tree(temporary);
    make_folder(temporary);
    write_files(checkpoint, temporary);
    move_into_place(temporary, checkpoint.step);
  } catch (...) {
    try {
      remove_tree(temporary);
    } catch (const Error&) {  // the first failure is the one to report; leftovers go with the next save
    }
    throw;
  }
  abandoned_.erase(checkpoint.step);
  try {
    remove_old(checkpoint.step);
  } catch (const Error&) {  // the checkpoint is saved all the same
  }
}

void CheckpointWriter::write_files(const Checkpoint& checkpoint, const fs::path& folder) const {
  Manifest manifest;
  manifest.step = checkpoint.step;
  const auto put = [&](const char* name, const auto& fill) {
    OutputFile file(folder / name, OutputFile::Mode::kCreate);
    fill(file);
    file.sync();
    file.close();
    manifest.files[name] = {file.written(), file.checksum()};
  };
  put(kModel, [&](OutputFile& file) { write_safetensors(file, checkpoint.model, checkpoint.metadata); });
  put(kOptimizer, [&](OutputFile& file) { write_safetensors(file, checkpoint.optimizer); });
  if (!checkpoint.ema.empty())
    put(kEma, [&](OutputFile& file) { write_safetensors(file, checkpoint.ema, checkpoint.metadata); });
  put(kState, [&](OutputFile& file) { file.write(checkpoint.state); });
  write_manifest(folder, manifest);
}

void CheckpointWriter::move_into_place(const fs::path& folder, std::int64_t step) const {
  const auto place = checkpoint_folder(run_, step);
  if (!fs::exists(place)) {
    rename_path(folder, place);
  } else if (!exchange_paths(folder, place)) {
    // Not in one step on this file system: killed between the two, the older checkpoints are what is left.
    const auto aside = hidden(folder_, step, kRemoving);
    remove_tree(aside);
    rename_path(place, aside);
    try {
      rename_path(folder, place);
    } catch (...) {
      rename_path(aside, place);
      throw;
    }
  }
  sync_folder(folder_);
}

void CheckpointWriter::remove_old(std::int64_t saved) {
  remove_leftovers();
  const auto steps = checkpoint_steps(run_);
  const auto best = best_checkpoint(run_);
  int kept = 0;
  for (const auto step : std::views::reverse(steps)) {
    const bool counts = !abandoned_.contains(step) && kept < keep_last_;
    if (counts) ++kept;
    if (counts || step == saved || (best && step == best->step)) continue;
    const auto aside = hidden(folder_, step, kRemoving);
    rename_path(checkpoint_folder(run_, step), aside);
    remove_tree(aside);
  }
}

void CheckpointWriter::remove_leftovers() const {
  for (const auto& path : entries_of(folder_)) {
    const auto name = path.filename().string();
    const bool ours = name.starts_with('.') &&
                      (name.find(kWriting) != std::string::npos || name.find(kRemoving) != std::string::npos);
    if (ours) remove_tree(path);
  }
}

void CheckpointWriter::check_folder() const {
  if (!lock_.is_of(folder_)) throw Error(folder_.string() + ": was removed or replaced while this process used it");
}

void CheckpointWriter::mark_best(const Best& best) {
  check_folder();
  if (!fs::is_directory(checkpoint_folder(run_, best.step)))
    throw Error(checkpoint_folder(run_, best.step).string() + ": there is no such checkpoint to mark as the best");
  if (!std::isfinite(best.value)) throw Error("checkpoint: the best value is not finite");
  write_best(folder_, best);
}

}  // namespace contextpool::io
