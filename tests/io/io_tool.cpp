// The io layer on the command line, for tests/python/test_io.py:
//   copy IN OUT            reads a safetensors file and writes it again, metadata and all
//   check FILE...          a line for each: "ok", or why it is refused
//   checkpoint RUN         saves a checkpoint of step 7
//   events FOLDER A B [R]  loss = 1 / step for the steps A ... B-1, resumed from step R
#include <torch/torch.h>

#include <iostream>
#include <string>
#include <vector>

#include "contextpool/io/checkpoint.h"
#include "contextpool/io/events.h"

namespace contextpool::io {
namespace {

void copy(const std::string& from, const std::string& to) {
  const SafetensorsFile file(from);
  write_safetensors(to, file.tensors(), file.metadata());
}

void check(const std::string& path) {
  try {
    read_safetensors(path);
    std::cout << "ok\n";
  } catch (const Error& error) {
    std::cout << error.what() << "\n";
  }
}

void checkpoint(const std::string& run) {
  Checkpoint checkpoint;
  checkpoint.step = 7;
  checkpoint.model = {{"a.weight", torch::arange(12, torch::kFloat).reshape({3, 4}).t()}};
  checkpoint.optimizer = {{"a.weight.step", torch::tensor(7, torch::kInt64)}};
  checkpoint.state = R"({"seed": 1})";
  checkpoint.metadata = {{"model", "tiny"}};
  CheckpointWriter(run, {}).save(checkpoint);
}

void events(const std::vector<std::string>& args) {
  EventWriter writer(args[1], args.size() > 4 ? std::optional(std::stoll(args[4])) : std::nullopt);
  for (auto step = std::stoll(args[2]); step < std::stoll(args[3]); ++step) {
    const auto loss = 1 / static_cast<double>(step);
    writer.scalar("loss", loss, step);
    writer.scalars({{"rate/a", -loss}, {"rate/b", 1e30}}, step);
  }
  writer.text("config", "model = \"tiny\" µ", 3'000'000'000);
  writer.sync();
}

int run(const std::vector<std::string>& args) {
  if (args.size() == 3 && args[0] == "copy") {
    copy(args[1], args[2]);
  } else if (args.size() >= 2 && args[0] == "check") {
    for (std::size_t k = 1; k < args.size(); ++k) check(args[k]);
  } else if (args.size() == 2 && args[0] == "checkpoint") {
    checkpoint(args[1]);
  } else if (args.size() >= 4 && args[0] == "events") {
    events(args);
  } else {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace contextpool::io

int main(int count, char** words) {
  try {
    return contextpool::io::run({words + 1, words + count});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
