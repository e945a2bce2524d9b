// Tensors come back as they were written; views are safe to keep and to write to; another model's tensors are refused.
#include "contextpool/io/safetensors.h"

#include <torch/torch.h>

#include <cerrno>
#include <cstring>

#include "io_cases.h"

namespace contextpool::io::testing {
namespace {

const std::vector<torch::ScalarType> kAllTypes{torch::kDouble, torch::kFloat, torch::kHalf,  torch::kBFloat16,
                                               torch::kInt64,  torch::kInt32, torch::kInt16, torch::kInt8,
                                               torch::kUInt8,  torch::kBool};

bool same(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && torch::equal(a, b);
}

torch::Tensor find(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors)
    if (key == name) return tensor;
  throw Error("no " + name);
}

TEST(Safetensors, ComeBackInEveryDtypeAndShape) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a.safetensors";
  torch::manual_seed(1);
  NamedTensors tensors;
  for (const auto type : kAllTypes)
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{}, {0}, {3}, {2, 0, 5}, {3, 5, 7}})
      tensors.emplace_back(c10::str(type, shape), (torch::randn(shape) * 3).to(type));
  write_safetensors(path, tensors, {{"k", "v"}});
  const auto back = read_safetensors(path);
  ASSERT_EQ(back.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(same(find(back, name), tensor)) << name;
  EXPECT_EQ(SafetensorsFile(path).metadata(), (Metadata{{"k", "v"}}));
}

TEST(Safetensors, AreWrittenContiguousWhateverTheirStridesAndWhateverTheOrder) {
  const TemporaryFolder folder;
  const auto a = torch::randn({4, 6}).t();
  const auto b = torch::randn({8})[3];
  const auto c = torch::randn({2, 1}).expand({2, 5}).requires_grad_();
  const auto d = torch::randn({10}).slice(0, 1, 9, 3);
  write_safetensors(folder.path() / "1", {{"a", a}, {"b", b}, {"c", c}, {"d", d}});
  write_safetensors(folder.path() / "2", {{"d", d.clone()}, {"c", c.contiguous()}, {"b", b}, {"a", a.contiguous()}});
  EXPECT_EQ(read_text(folder.path() / "1"), read_text(folder.path() / "2"));
  const auto back = read_safetensors(folder.path() / "1");
  EXPECT_TRUE(same(find(back, "a"), a) && same(find(back, "b"), b) && same(find(back, "c"), c) &&
              same(find(back, "d"), d));
}

TEST(Safetensors, ViewsOutliveTheReaderAndTheFileAndAreTheCallersOwn) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a.safetensors";
  const auto want = torch::arange(10000, torch::kFloat);
  write_safetensors(path, {{"w", want}});
  const auto text = read_text(path);
  auto first = read_safetensors(path).front().second;
  const auto second = SafetensorsFile(path).tensor("w");
  first.add_(1);
  EXPECT_TRUE(torch::equal(first, want + 1));
  EXPECT_TRUE(torch::equal(second, want));
  EXPECT_EQ(read_text(path), text);
  std::filesystem::remove(path);
  EXPECT_TRUE(torch::equal(second, want));
}

TEST(Safetensors, ThatAreNotAlignedAreRead) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a.safetensors";
  for (std::size_t spaces = 0; spaces < 8; ++spaces) {
    const std::string json = R"({"w":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})" + std::string(spaces, ' ');
    const std::uint64_t length = json.size();
    const std::array<double, 2> values{1.5, -2.5};
    std::string bytes(8 + length + 16, ' ');
    std::memcpy(bytes.data(), &length, 8);
    std::memcpy(bytes.data() + 8, json.data(), length);
    std::memcpy(bytes.data() + 8 + length, values.data(), 16);
    write_text(path, bytes);
    EXPECT_TRUE(torch::equal(SafetensorsFile(path).tensor("w"), torch::tensor({1.5, -2.5}, torch::kDouble)));
  }
}

TEST(Safetensors, OfBooleansThatAreNoneAreRefused) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a.safetensors";
  write_safetensors(path, {{"mask", torch::ones({3}, torch::kBool)}});
  auto bytes = read_text(path);
  bytes.back() = '\2';
  write_text(path, bytes);
  expect_message(message_of([&] { read_safetensors(path); }), {path.string(), "\"mask\"", "BOOL"});
}

TEST(Safetensors, ErrorsNameTheFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a.safetensors";
  expect_message(message_of([&] { read_safetensors(path); }), {path.string(), "No such file"});
  write_text(path, "");
  expect_message(message_of([&] { read_safetensors(path); }), {path.string(), "0 bytes"});
  write_safetensors(path, {{"w", torch::ones({100})}});
  const auto whole = read_text(path);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_text(path, whole.substr(0, size));
    expect_message(message_of([&] { read_safetensors(path); }), {path.string(), "not a safetensors file"});
  }
  write_text(path, whole);
  expect_message(message_of([&] { SafetensorsFile(path).tensor("v"); }), {path.string(), "no tensor \"v\""});
}

TEST(Safetensors, ThatCannotBeWrittenLeaveTheOldFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a.safetensors";
  write_safetensors(path, {{"w", torch::ones({3})}});
  const auto before = read_text(path);
  const auto refused = [&](const torch::Tensor& bad) {
    return message_of([&] { write_safetensors(path, {{"good", torch::ones(3)}, {"bad", bad}}); });
  };
  expect_message(refused(torch::ones({1}, torch::kComplexFloat)),
                 {path.string() + ": cannot write", "\"bad\"", "Complex"});
  expect_message(refused({}), {"\"bad\"", "undefined"});
  expect_message(refused(torch::ones({2, 2}).to_sparse()), {"\"bad\"", "no plain memory"});
  expect_message(refused(torch::ones({1}, torch::kMeta)), {"\"bad\"", "no plain memory"});
  {
    const FailAt fail(2, ENOSPC);
    EXPECT_THROW(write_safetensors(path, {{"w", torch::zeros({3})}}), FileError);
  }
  EXPECT_EQ(read_text(path), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(LoadInto, CopiesIntoParametersAndBuffersOfAModule) {
  torch::manual_seed(1);
  torch::nn::Sequential from(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  torch::nn::Sequential to(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  from->forward(torch::randn({5, 3}));
  ASSERT_EQ(named_tensors(*from).size(), 7u);
  const TemporaryFolder folder;
  write_safetensors(folder.path() / "m", named_tensors(*from));
  load_into(named_tensors(*to), read_safetensors(folder.path() / "m"), "m");
  const auto want = named_tensors(*from);
  for (const auto& [name, tensor] : named_tensors(*to)) EXPECT_TRUE(same(tensor, find(want, name))) << name;
  EXPECT_TRUE(to->parameters()[0].requires_grad());
}

TEST(LoadInto, ConvertsBetweenFloatingDtypes) {
  auto target = torch::zeros({2}, torch::kBFloat16);
  load_into({{"w", target}}, {{"w", torch::tensor({1.5, -2.0}, torch::kDouble)}}, "m");
  EXPECT_TRUE(torch::equal(target.to(torch::kDouble), torch::tensor({1.5, -2.0}, torch::kDouble)));
}

TEST(LoadInto, RefusesAnotherModelByNamesAndChangesNothing) {
  const auto zeros = [](std::vector<std::int64_t> shape, torch::ScalarType type = torch::kFloat) {
    return torch::zeros(shape, type);
  };
  const NamedTensors targets{
      {"a", zeros({2})}, {"b", zeros({2, 3})}, {"c", zeros({1})}, {"n", zeros({1}, torch::kInt64)}};
  const NamedTensors tensors{
      {"a", torch::ones({2})}, {"b", torch::ones({3, 2})}, {"d", torch::ones({1})}, {"n", torch::ones({1})}};
  expect_message(message_of([&] { load_into(targets, tensors, "run/model.safetensors"); }),
                 {"run/model.safetensors: not a checkpoint of this model; missing \"c\"; unexpected \"d\"; different ",
                  "\"b\" [3, 2] instead of [2, 3]", "\"n\" Float instead of Long"});
  for (const auto& [name, target] : targets) EXPECT_EQ(target.sum().item<double>(), 0) << name;
}

TEST(LoadInto, NamesTheFirstFewOfMany) {
  NamedTensors targets;
  for (int k = 0; k < 100; ++k) targets.emplace_back("layer." + std::to_string(k), torch::zeros({1}));
  const auto message = message_of([&] { load_into(targets, {}, "m"); });
  expect_message(message, {"missing \"layer.0\", ", "\"layer.4\" and 95 more"});
}

}  // namespace
}  // namespace contextpool::io::testing
