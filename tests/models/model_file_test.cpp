// Models in files: what was written is read back with the same predictions; a file of something else is refused by
// name.
#include "contextpool/models/model_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "../data/files.h"
#include "../device.h"
#include "contextpool/models/language_models.h"
#include "contextpool/models/registry.h"

namespace contextpool::testing {
namespace {

models::LanguageModelOptions tiny_options() {
  auto options = models::find_language_model("cp-tiny").options;
  options.pool.ratio = 0.2;
  return options;
}

io::Metadata metadata_of(const models::LanguageModelOptions& options) {
  return models::model_metadata(models::find_family("language_model"), list_options(options));
}

TEST(ModelFile, WithoutAFamilyIsALanguageModelAndOfAnUnknownOneIsRefused) {
  const Folder folder;
  const models::LanguageModel model(tiny_options());
  auto metadata = metadata_of(tiny_options());
  metadata.erase("contextpool.family");  // as version 0.1.0 wrote them
  io::write_safetensors(folder.path("old"), io::named_tensors(*model), metadata);
  EXPECT_EQ(models::load_language_model(folder.path("old"), torch::kCPU)->options().pool.ratio, 0.2);
  metadata["contextpool.family"] = "languagemodel";
  io::write_safetensors(folder.path("other"), io::named_tensors(*model), metadata);
  const auto message = message_of([&] { models::load_model(folder.path("other"), torch::kCPU); });
  EXPECT_NE(message.find("unknown family of models \"languagemodel\"; did you mean \"language_model\""),
            std::string::npos)
      << message;
}

TEST(ModelFile, RoundTripsToTheBit) {
  const Folder folder;
  const models::LanguageModel model(tiny_options());
  io::write_safetensors(folder.path("m"), io::named_tensors(*model), metadata_of(tiny_options()));
  auto reloaded = models::load_language_model(folder.path("m"), device());
  EXPECT_EQ(reloaded->options().pool.ratio, 0.2);
  EXPECT_FALSE(reloaded->is_training());
  const auto tokens = there(torch::randint(256, {2, 20}, torch::kLong));
  const torch::NoGradGuard no_grad;
  auto original = model;
  original->eval();
  original->to(device());
  EXPECT_TRUE(reloaded->forward(tokens).equal(original->forward(tokens)));
}

TEST(ModelFile, OfSomethingElseIsRefusedByName) {
  const Folder folder;
  const models::LanguageModel model(tiny_options());
  const auto tensors = io::named_tensors(*model);
  const auto refuses = [&](const std::string& words, const std::string& file) {
    const auto message = message_of([&] { models::load_language_model(folder.path(file), torch::kCPU); });
    EXPECT_NE(message.find(folder.path(file)), std::string::npos) << message;
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  const std::string key = "contextpool.model";
  io::write_safetensors(folder.path("silent"), tensors, {{"format", "pt"}});
  refuses("not a model of contextpool", "silent");
  io::write_safetensors(folder.path("garbage"), tensors, {{key, "{\"layers\": 2"}});
  refuses("not a JSON object", "garbage");
  io::write_safetensors(folder.path("unknown"), tensors, {{key, R"({"leyers": 2})"}});
  refuses("layers", "unknown");
  io::write_safetensors(folder.path("wrong"), tensors, {{key, R"({"layers": "two"})"}});
  refuses("layers", "wrong");
  auto other = tiny_options();
  other.layers = 1;
  io::write_safetensors(folder.path("other"), tensors, metadata_of(other));
  refuses("not a checkpoint of this model", "other");
  other.layers = -1;
  io::write_safetensors(folder.path("negative"), tensors, metadata_of(other));
  refuses("layers", "negative");
  folder.write("truncated", "\x10");
  refuses("safetensors", "truncated");
  refuses("No such file", "missing");
}

TEST(ModelFile, AModelThatNoMemoryCouldHoldIsRefusedBeforeItIsBuilt) {
  const Folder folder;
  const models::LanguageModel model(tiny_options());
  const auto refuses = [&](const std::string& name, auto change) {
    auto options = tiny_options();
    change(options);
    io::write_safetensors(folder.path(name), io::named_tensors(*model), metadata_of(options));
    const auto message = message_of([&] { models::load_language_model(folder.path(name), torch::kCPU); });
    EXPECT_NE(message.find(folder.path(name) + ": not a checkpoint of this model"), std::string::npos) << message;
  };
  constexpr std::int64_t kHuge = 1 << 23;
  refuses("layers", [](auto& o) { o.layers = kHuge; });
  refuses("features", [](auto& o) { o.features = kHuge; });
  refuses("feedforward", [](auto& o) { o.feedforward = kHuge; });
  refuses("vocabulary", [](auto& o) { o.vocabulary = kHuge; });
  refuses("pool_hidden", [](auto& o) { o.pool.hidden = kHuge; });
  refuses("pool_kernel", [](auto& o) { o.pool.kernel = kHuge + 1; });
  refuses("length", [](auto& o) { o.positions = "learned", o.length = kHuge; });
  refuses("taps", [](auto& o) { o.mixer = "depthwise", o.taps = kHuge; });
  refuses("pool_taps", [](auto& o) { o.mix = {.places = "A=context_pool", .pool_taps = kHuge}; });
  refuses("mixer_taps", [](auto& o) { o.mix = {.places = "C=canon", .taps = kHuge}; });
  refuses("mixer_rank", [](auto& o) { o.mix = {.places = "B=dynamic", .rank = kHuge}; });
  refuses("gate", [](auto& o) { o.mix = {.places = "AC=depthwise", .residual = "gated", .rank = kHuge}; });
}

TEST(ModelFile, ARunWithoutCheckpointsIsAnError) {
  const Folder folder;
  EXPECT_NE(message_of([&] { models::model_of_run(folder.path("none"), "newest"); }).find("is not a run folder"),
            std::string::npos);
  EXPECT_NE(message_of([&] { models::model_of_run(folder.path(), "newest"); }).find("no whole checkpoint"),
            std::string::npos);
  EXPECT_ANY_THROW(models::model_of_run(folder.path(), "best"));
  EXPECT_NE(message_of([&] { models::model_of_run(folder.path(), "latest"); }).find("expected one of newest, best"),
            std::string::npos);
}

}  // namespace
}  // namespace contextpool::testing
