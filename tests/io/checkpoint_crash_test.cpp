// A save that is killed or fails at any of its file operations leaves the old checkpoint or the new one, whole.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>

#include "checkpoint_cases.h"

namespace contextpool::io::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kFinished = 3;
constexpr int kKilled = 4;
constexpr int kFailed = 5;

// Runs `work` in a child process that dies, with nothing flushed or unwound, just before its k-th file operation.
// `exchange`: whether the file system can exchange two names.
int run_killed_at(int k, bool exchange, const std::function<void()>& work) {
  const auto child = ::fork();
  if (child == 0) {
    int count = 0;
    set_file_hook([&](FileOperation operation, const fs::path&) {
      if (count++ == k) ::_exit(kKilled);
      return operation == FileOperation::kExchange && !exchange ? EINVAL : 0;
    });
    try {
      work();
    } catch (const std::exception&) {
      ::_exit(kFailed);
    }
    ::_exit(kFinished);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct Scene {
  const char* name;
  std::vector<std::int64_t> before;  // steps that are there
  std::int64_t saved;                // the step then saved
  bool exchange;
};

void PrintTo(const Scene& scene, std::ostream* out) { *out << scene.name; }

class CheckpointCrash : public ::testing::TestWithParam<Scene> {
 protected:
  // The folder as it is before the save. What is there has an average, what is saved has none: they differ, even if of
  // the same step.
  void prepare(const fs::path& run) const {
    CheckpointWriter writer(run, {.keep_last = 2, .resumed_from = std::nullopt});
    for (const auto step : GetParam().before) writer.save(make_checkpoint(step, true));
  }

  CheckpointWriter::Options options() const {
    const auto& before = GetParam().before;
    return {.keep_last = 2, .resumed_from = before.empty() ? std::nullopt : std::optional(before.back())};
  }

  // Some checkpoint that was there, or the saved one, is found, and nothing is skipped.
  void expect_old_or_new(const fs::path& run, const Checkpoint& saved) const {
    const auto found = newest_whole(run);
    EXPECT_TRUE(found.skipped.empty()) << found.skipped[0].why;
    if (!found.checkpoint) {
      EXPECT_TRUE(GetParam().before.empty());
      return;
    }
    EXPECT_TRUE(same(*found.checkpoint, saved) ||
                same(*found.checkpoint, make_checkpoint(found.checkpoint->step, true)));
    if (GetParam().exchange && !GetParam().before.empty()) {
      EXPECT_GE(found.checkpoint->step, GetParam().before.back());
    }
  }

  void expect_goes_on(const fs::path& run) const {
    const auto found = newest_whole(run);
    const auto step = found.checkpoint ? std::optional(found.checkpoint->step) : std::nullopt;
    CheckpointWriter writer(run, {.keep_last = 2, .resumed_from = step});
    const auto next = make_checkpoint(100);
    writer.save(next);
    EXPECT_TRUE(same(newest_whole(run).checkpoint.value(), next));
    for (const auto& name : names_in(run / "checkpoints")) EXPECT_FALSE(name.starts_with('.')) << name;
    EXPECT_LE(checkpoint_steps(run).size(), 2u);
  }
};

TEST_P(CheckpointCrash, KilledAtAnyOperation) {
  const auto saved = make_checkpoint(GetParam().saved);
  int k = 0;
  for (int status = kKilled; status == kKilled; ++k) {
    ASSERT_LT(k, 200);
    const TemporaryFolder run;
    prepare(run.path());
    status = run_killed_at(k, GetParam().exchange, [&] { CheckpointWriter(run.path(), options()).save(saved); });
    ASSERT_TRUE(status == kKilled || status == kFinished) << status << " at " << k;
    expect_old_or_new(run.path(), saved);
    if (status == kFinished) {
      EXPECT_TRUE(same(newest_whole(run.path()).checkpoint.value(), saved));
    }
    expect_goes_on(run.path());
    if (HasFailure()) FAIL() << "killed at operation " << k;
  }
  EXPECT_GT(k, 20);
}

TEST_P(CheckpointCrash, FullDiskAtAnyOperation) {
  const auto saved = make_checkpoint(GetParam().saved);
  bool failed = true;
  for (int k = 0; failed; ++k) {
    ASSERT_LT(k, 200);
    const TemporaryFolder run;
    prepare(run.path());
    CheckpointWriter writer(run.path(), options());
    int count = 0;
    {
      const Hooked hooked([&](FileOperation operation, const fs::path&) {
        if (operation == FileOperation::kExchange && !GetParam().exchange) return EINVAL;
        const bool needs_space = operation != FileOperation::kRemove;
        return count++ >= k && needs_space ? ENOSPC : 0;
      });
      try {
        writer.save(saved);
        failed = false;
      } catch (const FileError& error) {
        EXPECT_TRUE(error.disk_full()) << error.what();
      }
    }
    expect_old_or_new(run.path(), saved);
    for (const auto step : GetParam().before)
      EXPECT_TRUE(!failed || step == saved.step || is_whole(run.path(), make_checkpoint(step, true)));
    writer.save(saved);
    EXPECT_TRUE(same(newest_whole(run.path()).checkpoint.value(), saved));
    for (const auto& name : names_in(run.path() / "checkpoints")) EXPECT_FALSE(name.starts_with('.')) << name;
    if (HasFailure()) FAIL() << "disk full from operation " << k;
  }
}

TEST_P(CheckpointCrash, AnyOneOperationFails) {
  const auto saved = make_checkpoint(GetParam().saved);
  int k = 0;
  for (bool reached = true; reached; ++k) {
    ASSERT_LT(k, 200);
    const TemporaryFolder run;
    prepare(run.path());
    CheckpointWriter writer(run.path(), options());
    {
      const FailAt fail(k, EIO);
      try {
        writer.save(saved);
      } catch (const FileError& error) {
        EXPECT_FALSE(error.disk_full());
      }
      reached = fail.count() > k;
    }
    expect_old_or_new(run.path(), saved);
    writer.save(saved);
    EXPECT_TRUE(same(newest_whole(run.path()).checkpoint.value(), saved));
    for (const auto& name : names_in(run.path() / "checkpoints")) EXPECT_FALSE(name.starts_with('.')) << name;
    if (HasFailure()) FAIL() << "operation " << k << " failed";
  }
  EXPECT_GT(k, 20);
}

INSTANTIATE_TEST_SUITE_P(, CheckpointCrash,
                         ::testing::Values(Scene{"first", {}, 1, true}, Scene{"next", {1, 2}, 3, true},
                                           Scene{"same_step", {1, 2}, 2, true},
                                           Scene{"same_step_without_exchange", {1, 2}, 2, false}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CheckpointCrashOnce, AMarkOfTheBestIsTheOldOrTheNew) {
  int k = 0;
  for (int status = kKilled; status == kKilled; ++k) {
    const TemporaryFolder run;
    {
      CheckpointWriter writer(run.path(), {});
      writer.save(make_checkpoint(1));
      writer.save(make_checkpoint(2));
      writer.mark_best({1, 5, "loss"});
    }
    status = run_killed_at(k, true, [&] {
      CheckpointWriter(run.path(), {.keep_last = 3, .resumed_from = 2}).mark_best({2, 4, "loss"});
    });
    const auto best = best_checkpoint(run.path());
    ASSERT_TRUE(best);
    EXPECT_EQ(best->value, best->step == 1 ? 5 : 4);
    if (status == kFinished) {
      EXPECT_EQ(best->step, 2);
    }
  }
  EXPECT_GT(k, 4);
}

TEST(CheckpointCrashOnce, EverythingIsSyncedBeforeItHasItsNameAndBeforeAnythingGoes) {
  // A kill does not show this, a loss of power would.
  const TemporaryFolder run;
  CheckpointWriter writer(run.path(), {.keep_last = 1, .resumed_from = std::nullopt});
  writer.save(make_checkpoint(1));
  std::set<fs::path> unsynced;
  std::set<fs::path> synced;
  bool named = false;
  const Hooked hooked([&](FileOperation operation, const fs::path& path) {
    if (operation == FileOperation::kWrite || operation == FileOperation::kCreate) unsynced.insert(path);
    if (operation == FileOperation::kSync) {
      unsynced.erase(path);
      synced.insert(path);
    }
    if (operation == FileOperation::kRename && path.filename() == "step-2") {
      EXPECT_TRUE(unsynced.empty()) << *unsynced.begin();
      EXPECT_TRUE(synced.contains(run.path() / "checkpoints/.step-2.writing"));
      synced.clear();
      named = true;
    }
    if (operation == FileOperation::kRemove) {
      EXPECT_TRUE(named && synced.contains(run.path() / "checkpoints")) << path;
    }
    return 0;
  });
  writer.save(make_checkpoint(2));
  EXPECT_TRUE(named);
  EXPECT_EQ(checkpoint_steps(run.path()), (std::vector<std::int64_t>{2}));
}

TEST(CheckpointCrashOnce, TheKernelsOwnRefusalIsReportedAndSurvived) {
  // A limit on the size of files stands for a full disk: the write of the large tensor stops in its middle.
  const TemporaryFolder run;
  const auto old = make_checkpoint(1);
  CheckpointWriter(run.path(), {}).save(old);
  auto large = make_checkpoint(2);
  large.model.emplace_back("large", torch::ones({1 << 20}));
  const auto child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      CheckpointWriter(run.path(), {.keep_last = 1, .resumed_from = 1}).save(large);
    } catch (const FileError& error) {
      ::_exit(error.disk_full() ? kFailed : kFinished);
    }
    ::_exit(kFinished);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kFailed);
  EXPECT_EQ(names_in(run.path() / "checkpoints"), (std::set<std::string>{"step-1"}));
  EXPECT_TRUE(is_whole(run.path(), old));
}

}  // namespace
}  // namespace contextpool::io::testing
