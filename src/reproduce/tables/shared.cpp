#include "reproduce/tables/tables.h"

namespace contextpool::reproduce {
namespace {

Role any_text() {
  return {.name = "text",
          .what = "any text file: 90 % of it to train on, 5 % for development, 5 % to score",
          .files = {"text.txt", "text", "enwiki2015_text_part1.txt"}};
}

// Presets that take minutes on a core, scored as `make demo` does it.
Recipe text_on_a_cpu(const std::string& preset) {
  const std::string windows = "--window 128 --step 64 --batch 16 --tokens 50000 --json";
  return {.train = "--preset " + preset + " --keep 1 --data {text}",
          .scores = {{.name = "test bpc", .command = "eval --run {run} " + windows, .pointer = "/bpc"},
                     {.name = "dev bpc", .command = "eval --run {run} --split dev " + windows, .pointer = "/bpc"}},
          .data = {any_text()},
          .described = "preset " + preset,
          .stands_for = "enwik8 and text8"};
}

}  // namespace

Recipe text_smoke() {
  return {.train = "--preset tiny --steps 20 --checkpoint-every 20 --eval-tokens 500 --data {text}",
          .scores = {{.name = "test bpc", .command = "eval --run {run} --tokens 500 --json", .pointer = "/bpc"}},
          .data = {any_text()},
          .described = "20 steps of the preset tiny, which is enough to see that everything works and for nothing else",
          .stands_for = "enwik8 and text8",
          .seeds = {1, 2}};
}

Recipe text_small() {
  return {.train = "--preset spec-lm --checkpoint-every 1500 --keep 1 --data {text}",
          .scores = {{.name = "test bpc", .command = "eval --run {run} --tokens 2000000 --json", .pointer = "/bpc"}},
          .data = {any_text()},
          .described = "preset spec-lm, 1500 steps",
          .stands_for = "enwik8 and text8"};
}

Recipe text_demo() { return text_on_a_cpu("demo"); }
Recipe text_quick() { return text_on_a_cpu("quick"); }

Score top1() {
  return {.name = "top-1 %",
          .command = "eval --run {run} --json",
          .pointer = "/top1",
          .factor = 100,
          .digits = 2,
          .lower_is_better = false};
}

Role cifar10() {
  return {.name = "cifar10",
          .what = "the folder of CIFAR-10's official binary files",
          .files = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin",
                    "test_batch.bin"},
          .folder = true,
          .bytes = 184'380'000};
}

}  // namespace contextpool::reproduce
