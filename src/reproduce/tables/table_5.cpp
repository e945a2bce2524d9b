// The language models of Table 5. At scale paper with its recipe on enwik8 and text8, each ContextPool model beside the
// same model without, so that the difference is of one recipe; the paper quotes the plain figures from others.
#include "reproduce/tables/tables.h"

namespace contextpool::reproduce {
namespace {

constexpr const char* kPaperSizes = " --pool-size-range 0";

std::vector<Row> smoke_rows() {
  return {{"plain-2", "plain, 2 layers", "--model tiny"},
          {"plain-3", "plain, 3 layers", "--model tiny --layers 3"},
          {"depthwise-2", "control, 2 layers", "--model dw-tiny"},
          {"cp-2", "ContextPool, 2 layers", std::string("--model cp-tiny") + kPaperSizes},
          {"cp-1", "ContextPool, 1 layer", std::string("--model cp-tiny --layers 1") + kPaperSizes},
          {"longformer-2", "Longformer, 2 layers", "--model longformer-tiny"},
          {"cp-longformer-2", "CP-Longformer, 2 layers", std::string("--model cp-longformer-tiny") + kPaperSizes,
           "longformer-2"},
          {"span-2", "adaptive span, 2 layers", "--model adaptive-span-tiny"},
          {"cp-span-2", "CP-adaptive span, 2 layers", std::string("--model cp-adaptive-span-tiny") + kPaperSizes,
           "span-2"}};
}

std::vector<Row> small_rows() {
  const std::string six = " --layers 6";
  return {
      {"plain-6", "plain, 6 layers", "--model transformer-6"},
      {"plain-8", "plain, 8 layers", "--model transformer-8"},
      {"depthwise-6", "control, 6 layers", "--model dw-transformer-6"},
      {"cp-6", "ContextPool, 6 layers", std::string("--model cp-transformer-6") + kPaperSizes},
      {"cp-4", "ContextPool, 4 layers", std::string("--model cp-transformer-4") + kPaperSizes},
      {"longformer-6", "Longformer, 6 layers", "--model longformer-12" + six},
      {"cp-longformer-6", "CP-Longformer, 6 layers", "--model cp-longformer-12" + six + kPaperSizes, "longformer-6"},
      {"span-6", "adaptive span, 6 layers", "--model adaptive-span-12" + six},
      {"cp-span-6", "CP-adaptive span, 6 layers", "--model cp-adaptive-span-12" + six + kPaperSizes, "span-6"}};
}

std::vector<Claim> claims(const std::string& n, const std::string& more, const std::string& fewer) {
  return {{"ContextPool is better than the plain model", "cp-" + n, "plain-" + n},
          {"ContextPool is better than a plain model of more layers", "cp-" + n, "plain-" + more},
          {"ContextPool with fewer layers is better than the plain model", "cp-" + fewer, "plain-" + n},
          {"ContextPool is better than the control", "cp-" + n, "depthwise-" + n},
          {"CP-Longformer is better than Longformer", "cp-longformer-" + n, "longformer-" + n},
          {"CP-adaptive span is better than adaptive span", "cp-span-" + n, "span-" + n}};
}

struct Figures {
  double dev, test;
};
std::map<std::string, double> of(Figures f) { return {{"test bpc", f.test}, {"dev bpc", f.dev}}; }

// One dataset's rows. The plain model's figure is that of T12, of which the paper has no dev figure.
std::vector<Row> paper_rows(const std::string& data, double t12, Figures span, Figures longformer, Figures cp12,
                            Figures cp14, Figures cp11, Figures cp_span, Figures cp_longformer) {
  const auto on = [&](const std::string& name) { return data + "-" + name; };
  const auto preset = [&](const std::string& name) {
    return "--preset " + data + "-" + name + " --data {" + data + "}";
  };
  const auto label = [&](const std::string& name) { return data + ": " + name; };
  return {{on("plain-12"),
           label("plain, 12 layers (paper: T12)"),
           preset("cp-transformer-12") + " --model transformer-12",
           on("plain-12"),
           {{"test bpc", t12}}},
          {on("cp-12"), label("CP-Transformer (12)"), preset("cp-transformer-12"), on("plain-12"), of(cp12)},
          {on("cp-14"), label("CP-Transformer (14)"), preset("cp-transformer-14"), on("plain-12"), of(cp14)},
          {on("cp-11"), label("CP-Transformer (11)"), preset("cp-transformer-11"), on("plain-12"), of(cp11)},
          {on("span-12"), label("adaptive span"), preset("cp-adaptive-span") + " --model adaptive-span-12",
           on("plain-12"), of(span)},
          {on("cp-span-12"), label("CP-adaptive span"), preset("cp-adaptive-span"), on("span-12"), of(cp_span)},
          {on("longformer-12"), label("Longformer"), preset("cp-longformer") + " --model longformer-12", on("plain-12"),
           of(longformer)},
          {on("cp-longformer-12"), label("CP-Longformer"), preset("cp-longformer"), on("longformer-12"),
           of(cp_longformer)}};
}

std::vector<Claim> paper_claims(const std::string& data) {
  const auto on = [&](const std::string& name) { return data + "-" + name; };
  return {{data + ": CP-Transformer (12) is better than the plain model of 12 layers", on("cp-12"), on("plain-12")},
          {data + ": CP-Transformer (11) is better than the plain model of 12 layers", on("cp-11"), on("plain-12")},
          {data + ": CP-Transformer (14) is better than CP-Transformer (12)", on("cp-14"), on("cp-12")},
          {data + ": CP-Transformer (12) is better than Longformer", on("cp-12"), on("longformer-12")},
          {data + ": CP-Longformer is better than Longformer", on("cp-longformer-12"), on("longformer-12")},
          {data + ": CP-adaptive span is better than adaptive span", on("cp-span-12"), on("span-12")}};
}

Plan paper_plan() {
  constexpr std::int64_t kBytes = 100'000'000;
  Plan plan;
  plan.scale = "paper";
  plan.recipe = {
      .scores = {{.name = "test bpc", .command = "eval --run {run} --protocol paper --json", .pointer = "/bpc"},
                 {.name = "dev bpc",
                  .command = "eval --run {run} --protocol paper --split dev --json",
                  .pointer = "/bpc"}},
      .data = {{.name = "enwik8",
                .what = "the 100,000,000 bytes of that name",
                .files = {"enwik8"},
                .bytes = kBytes,
                .opening = "<mediawiki "},
               {.name = "text8",
                .what = "the 100,000,000 bytes of that name",
                .files = {"text8"},
                .bytes = kBytes,
                .opening = " anarchism originated as a term of abuse"}},
      .described = "the paper's recipe, 530,000 steps"};
  const auto enwik8 = paper_rows("enwik8", 1.11, {1.04, 1.02}, {1.02, 1.00}, {1.02, 0.99}, {1.01, 0.97}, {1.03, 1.01},
                                 {1.03, 1.01}, {1.02, 0.99});
  const auto text8 = paper_rows("text8", 1.18, {1.05, 1.11}, {1.04, 1.10}, {1.04, 1.09}, {1.02, 1.07}, {1.05, 1.11},
                                {1.05, 1.10}, {1.03, 1.09});
  for (const auto* rows : {&enwik8, &text8}) plan.rows.insert(plan.rows.end(), rows->begin(), rows->end());
  for (const auto* data : {"enwik8", "text8"}) {
    for (const auto& claim : paper_claims(data)) plan.claims.push_back(claim);
  }
  return plan;
}

}  // namespace

Table table_5() {
  return {"table-5",
          "Table 5 (language models)",
          {{"smoke", text_smoke(), smoke_rows(), claims("2", "3", "1")},
           {"small", text_small(), small_rows(), claims("6", "8", "4")},
           paper_plan()}};
}

}  // namespace contextpool::reproduce
