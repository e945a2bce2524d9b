// Checkpoints load bit-identical; the newest complete one is found and damaged ones are named; old ones go, the best
// stays.
#include "contextpool/io/checkpoint.h"

#include <cmath>

#include "checkpoint_cases.h"

namespace contextpool::io::testing {
namespace {

namespace fs = std::filesystem;
using Steps = std::vector<std::int64_t>;

class CheckpointTest : public ::testing::Test {
 protected:
  const fs::path& run() const { return folder_.path(); }

  void save(const Steps& steps, int keep_last = 10) const {
    CheckpointWriter writer(run(), {.keep_last = keep_last, .resumed_from = std::nullopt});
    for (const auto step : steps) writer.save(make_checkpoint(step));
  }

  // The newest is skipped for a reason that holds `parts`, and `step` is taken.
  void expect_falls_back(std::int64_t step, const std::vector<std::string>& parts) const {
    const auto found = newest_whole(run());
    ASSERT_TRUE(found.checkpoint);
    EXPECT_TRUE(same(*found.checkpoint, make_checkpoint(step)));
    ASSERT_EQ(found.skipped.size(), 1u);
    expect_message(found.skipped[0].why, {found.skipped[0].folder.string()});
    expect_message(found.skipped[0].why, parts);
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(CheckpointTest, ComesBackToTheBit) {
  CheckpointWriter writer(run(), {});
  for (const bool ema : {false, true}) {
    const auto want = make_checkpoint(12, ema);
    writer.save(want);
    const auto found = newest_whole(run());
    ASSERT_TRUE(found.checkpoint);
    EXPECT_TRUE(found.skipped.empty());
    EXPECT_TRUE(same(*found.checkpoint, want));
    EXPECT_EQ(found.checkpoint->folder, run() / "checkpoints/step-12");
  }
  EXPECT_EQ(names_in(run() / "checkpoints"), (std::set<std::string>{"step-12"}));
  EXPECT_EQ(names_in(run() / "checkpoints/step-12"),
            (std::set<std::string>{"MANIFEST.json", "ema.safetensors", "model.safetensors", "optimizer.safetensors",
                                   "state.json"}));
}

TEST_F(CheckpointTest, WithoutItsManifestItIsReadIfAskedFor) {
  CheckpointWriter(run(), {}).save(make_checkpoint(12, /*ema=*/true));
  fs::remove(run() / "checkpoints/step-12/MANIFEST.json");
  EXPECT_FALSE(newest_whole(run()).checkpoint);
  const auto found = newest_whole(run(), Verify::no);
  ASSERT_TRUE(found.checkpoint);
  EXPECT_TRUE(same(*found.checkpoint, make_checkpoint(12, true)));
  fs::remove(run() / "checkpoints/step-12/optimizer.safetensors");
  EXPECT_FALSE(newest_whole(run(), Verify::no).checkpoint);
}

TEST_F(CheckpointTest, AFolderThatWasRemovedIsNotMadeAgain) {
  const auto inner = run() / "inner";
  CheckpointWriter writer(inner, {});
  writer.save(make_checkpoint(1));
  fs::remove_all(inner);
  expect_message(message_of([&] { writer.save(make_checkpoint(2)); }), {"inner/checkpoints: was removed or replaced"});
  EXPECT_FALSE(fs::exists(inner));
}

TEST_F(CheckpointTest, OfARunWithoutAny) {
  EXPECT_FALSE(newest_whole(run()).checkpoint);
  EXPECT_FALSE(newest_whole(run() / "missing").checkpoint);
  EXPECT_FALSE(best_checkpoint(run()));
  fs::create_directory(run() / "checkpoints");
  const auto found = newest_whole(run());
  EXPECT_FALSE(found.checkpoint);
  EXPECT_TRUE(found.skipped.empty());
}

TEST_F(CheckpointTest, NewestIsByNumberNotByLetter) {
  save({9, 10, 100});
  EXPECT_EQ(checkpoint_steps(run()), (Steps{9, 10, 100}));
  EXPECT_EQ(newest_whole(run()).checkpoint->step, 100);
}

TEST_F(CheckpointTest, OtherThingsInTheFolderAreNoCheckpoints) {
  save({1});
  for (const auto* name : {"step-x", "step-", "step-007", "step--1", "step-2.bak", "notes", ".step-5.writing",
                           "step-99999999999999999999"})
    fs::create_directory(run() / "checkpoints" / name);
  write_text(run() / "checkpoints/step-3", "a file");
  write_text(run() / "checkpoints/step-1/notes.txt", "a file");
  const auto found = newest_whole(run());
  EXPECT_TRUE(found.skipped.empty());
  EXPECT_TRUE(same(*found.checkpoint, make_checkpoint(1)));
}

TEST_F(CheckpointTest, AFlippedBitAnywhereIsFoundOut) {
  save({1});
  CheckpointWriter(run(), {.keep_last = 2, .resumed_from = 1}).save(make_checkpoint(2, true));
  const auto newest = checkpoint_folder(run(), 2);
  for (const auto& name : names_in(newest)) {
    const auto whole = read_text(newest / name);
    const std::size_t stride = name == "MANIFEST.json" ? 1 : std::max<std::size_t>(whole.size() / 16, 1);
    for (std::size_t at = 0; at < whole.size(); at += stride) {
      for (const int bit : {0x01, 0x20, 0x80}) {
        auto damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ bit);
        write_text(newest / name, damaged);
        expect_falls_back(1, {name});
        if (HasFailure()) FAIL() << name << " byte " << at << " bit " << bit;
      }
    }
    write_text(newest / name, whole);
  }
  EXPECT_EQ(newest_whole(run()).checkpoint->step, 2);
}

TEST_F(CheckpointTest, AMissingOrCutFileIsFoundOut) {
  save({1, 2});
  const auto newest = checkpoint_folder(run(), 2);
  for (const auto& name : names_in(newest)) {
    const auto whole = read_text(newest / name);
    fs::remove(newest / name);
    expect_falls_back(1, {name, "No such file"});
    for (const auto size : {std::size_t{0}, std::size_t{1}, whole.size() - 1}) {
      write_text(newest / name, whole.substr(0, size));
      expect_falls_back(1, {name});
    }
    write_text(newest / name, whole + "\n");
    expect_falls_back(1, {name});
    write_text(newest / name, whole);
  }
}

TEST_F(CheckpointTest, AnEmptyFolderAndAnotherStepsContentAreSkipped) {
  save({1});
  fs::create_directory(checkpoint_folder(run(), 3));
  fs::copy(checkpoint_folder(run(), 1), checkpoint_folder(run(), 2));
  const auto found = newest_whole(run());
  EXPECT_EQ(found.checkpoint->step, 1);
  ASSERT_EQ(found.skipped.size(), 2u);
  expect_message(found.skipped[0].why, {"step-3/MANIFEST.json", "No such file"});
  expect_message(found.skipped[1].why, {"step-2", "MANIFEST.json is of step 1"});
}

TEST_F(CheckpointTest, WhenNoneIsWholeAllAreNamed) {
  save({1, 2});
  for (const auto step : {1, 2}) fs::remove(checkpoint_folder(run(), step) / "state.json");
  const auto found = newest_whole(run());
  EXPECT_FALSE(found.checkpoint);
  EXPECT_EQ(found.skipped.size(), 2u);
}

TEST_F(CheckpointTest, HostileManifestsAreRefused) {
  save({1, 2});
  const auto path = checkpoint_folder(run(), 2) / "MANIFEST.json";
  for (const auto& text : {std::string("null"), std::string("[]"), std::string("{}"), std::string(60000, '['),
                           std::string(1 << 20, ' '), std::string(R"({"step":2,"files":[1,2]})"),
                           std::string(R"({"step":1e999,"files":{}})"), std::string("{\"step\":\"\\u0000\"}")}) {
    write_text(path, text);
    expect_falls_back(1, {"MANIFEST.json: not a manifest"});
  }
}

TEST_F(CheckpointTest, TheLastFewAreKept) {
  save({1, 2, 3, 10, 11}, 2);
  EXPECT_EQ(checkpoint_steps(run()), (Steps{10, 11}));
  for (const auto step : {10, 11}) EXPECT_TRUE(is_whole(run(), make_checkpoint(step)));
}

TEST_F(CheckpointTest, TheBestIsKeptUntilAnotherIs) {
  CheckpointWriter writer(run(), {.keep_last = 1, .resumed_from = std::nullopt});
  writer.save(make_checkpoint(1));
  writer.mark_best({1, 2.5, "valid_loss"});
  writer.save(make_checkpoint(2));
  writer.save(make_checkpoint(3));
  EXPECT_EQ(checkpoint_steps(run()), (Steps{1, 3}));
  writer.mark_best({3, 0.1, "valid_loss"});
  const auto best = best_checkpoint(run());
  EXPECT_EQ(best->step, 3);
  EXPECT_EQ(best->value, 0.1);
  EXPECT_EQ(best->metric, "valid_loss");
  writer.save(make_checkpoint(4));
  EXPECT_EQ(checkpoint_steps(run()), (Steps{3, 4}));
  expect_message(message_of([&] { writer.mark_best({1, 2, ""}); }), {"step-1", "no such checkpoint"});
  expect_message(message_of([&] { writer.mark_best({4, std::nan(""), ""}); }), {"not finite"});
}

TEST_F(CheckpointTest, WhileTheBestIsUnknownNothingIsRemoved) {
  save({1, 2});
  write_text(run() / "checkpoints/BEST.json", "{\"step\": ");
  expect_message(message_of([&] { best_checkpoint(run()); }), {"BEST.json: not a mark"});
  CheckpointWriter writer(run(), {.keep_last = 1, .resumed_from = 2});
  writer.save(make_checkpoint(3));
  EXPECT_EQ(checkpoint_steps(run()), (Steps{1, 2, 3}));
  writer.mark_best({3, 1, "loss"});
  writer.save(make_checkpoint(4));
  EXPECT_EQ(checkpoint_steps(run()), (Steps{3, 4}));
}

TEST_F(CheckpointTest, BrokenOnesAboveTheResumedStepDoNotCount) {
  save({10, 20, 30});
  fs::remove(checkpoint_folder(run(), 30) / "state.json");
  CheckpointWriter writer(run(), {.keep_last = 2, .resumed_from = newest_whole(run()).checkpoint->step});
  EXPECT_EQ(checkpoint_steps(run()), (Steps{10, 20, 30})) << "nothing goes before something new is whole";
  writer.save(make_checkpoint(25));
  EXPECT_EQ(checkpoint_steps(run()), (Steps{20, 25}));
}

TEST_F(CheckpointTest, AfterAStartFromNothingBrokenOnesDoNotCount) {
  save({10, 20});
  for (const auto step : {10, 20}) fs::remove(checkpoint_folder(run(), step) / "MANIFEST.json");
  CheckpointWriter writer(run(), {.keep_last = 1, .resumed_from = std::nullopt});
  writer.save(make_checkpoint(5));
  EXPECT_EQ(checkpoint_steps(run()), (Steps{5}));
}

TEST_F(CheckpointTest, ABrokenOneOfTheSameStepIsReplaced) {
  save({10, 20});
  fs::remove(checkpoint_folder(run(), 20) / "state.json");
  CheckpointWriter writer(run(), {.keep_last = 2, .resumed_from = 10});
  writer.save(make_checkpoint(20, true));
  EXPECT_TRUE(is_whole(run(), make_checkpoint(20, true)));
  EXPECT_EQ(names_in(run() / "checkpoints"), (std::set<std::string>{"step-10", "step-20"}));
}

TEST_F(CheckpointTest, LeftoversOfAKilledWriterGoAndOtherFilesStay) {
  save({1});
  for (const auto* name : {".step-2.writing", ".step-0.removing"}) {
    fs::create_directory(run() / "checkpoints" / name);
    write_text(run() / "checkpoints" / name / "model.safetensors", "half");
  }
  write_text(run() / "checkpoints/.BEST.json.writing-77", "{");
  write_text(run() / "checkpoints/.notes", "mine");
  EXPECT_EQ(newest_whole(run()).checkpoint->step, 1);
  EXPECT_EQ(names_in(run() / "checkpoints").size(), 5u) << "reading changes nothing";
  const CheckpointWriter writer(run(), {.keep_last = 1, .resumed_from = 1});
  EXPECT_EQ(names_in(run() / "checkpoints"), (std::set<std::string>{".notes", "step-1"}));
}

TEST_F(CheckpointTest, OneWriterARun) {
  {
    const CheckpointWriter writer(run(), {});
    expect_message(message_of([&] { CheckpointWriter(run(), {}); }), {run().string(), "another process writes"});
  }
  const CheckpointWriter next_writer(run(), {});
}

TEST_F(CheckpointTest, BadRequestsAreRefused) {
  expect_message(message_of([&] { CheckpointWriter(run(), {.keep_last = 0, .resumed_from = {}}); }),
                 {"keep_last is 0"});
  CheckpointWriter writer(run(), {});
  auto checkpoint = make_checkpoint(1);
  checkpoint.state = "{";
  expect_message(message_of([&] { writer.save(checkpoint); }), {"state of step 1 is not JSON"});
  checkpoint.state = "{}";
  checkpoint.step = -1;
  expect_message(message_of([&] { writer.save(checkpoint); }), {"the step is -1"});
  checkpoint.step = 1;
  checkpoint.model.emplace_back("layer.bias", torch::ones({1}));
  expect_message(message_of([&] { writer.save(checkpoint); }), {"model.safetensors", "two tensors named"});
  EXPECT_TRUE(names_in(run() / "checkpoints").empty());
}

}  // namespace
}  // namespace contextpool::io::testing
