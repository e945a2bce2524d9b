// contextpool inspect: an HTML page that shows what a trained model's ContextPool looks at.
#include <filesystem>
#include <iostream>
#include <optional>

#include "cli/cli.h"
#include "cli/console.h"
#include "cli/data_of_run.h"
#include "contextpool/eval/looking.h"
#include "contextpool/io/files.h"
#include "contextpool/runtime/device.h"

namespace contextpool::cli {
namespace {

namespace fs = std::filesystem;

struct InspectFlags : ModelFlags {
  std::string image, text, out = "inspect.html", data;
  std::int64_t images = 256;
  bool force = false;
};

void add_flags(CLI::App& app, InspectFlags& f) {
  f.add_to(app);
  app.add_option("--image", f.image, "picture to look at (JPEG or PNG), for a classifier of pictures");
  app.add_option("--text", f.text, "line to look at, for a language model or a translator");
  app.add_option("--out", f.out, "page to write");
  app.add_option("--data", f.data,
                 "validation pictures whose sizes are counted; else those that the run was trained on");
  app.add_option("--images", f.images, "how many of them; 0: only the picture itself");
  app.add_flag("--force", f.force, "replace a page that exists")->default_str("false");
}

void check(const CLI::App& app, const InspectFlags& f) {
  if ((app.count("--image") > 0) == (app.count("--text") > 0))
    throw UsageError("one of --image FILE and --text LINE is needed: what to look at");
  if (f.images < 0) throw UsageError("--images is " + std::to_string(f.images) + ", expected 0 (none) or more");
  if (f.out.empty()) throw UsageError("--out is empty, expected the name of a page to write");
  if (fs::exists(f.out) && !f.force) throw UsageError(f.out + ": exists; --force replaces it, --out names another");
  if (app.count("--image") > 0 && !fs::exists(f.image)) throw UsageError(f.image + ": there is no such picture");
}

}  // namespace

int inspect(const Arguments& arguments) {
  InspectFlags f;
  CLI::App app(
      "Writes an HTML page that shows what a model's ContextPool looks at: the window of each patch or token, "
      "layer by layer, and the sizes of windows.",
      "contextpool inspect");
  add_flags(app, f);
  if (!parse(app, arguments)) return 0;
  check(app, f);
  tasks::LookRequest request;
  request.device = as_command([&] { return runtime::device_named(f.device); });
  request.file = f.file();
  const auto& kind = tasks::task_of(models::describe_model(request.file).family);
  const std::string given = app.count("--image") > 0 ? "image" : "text";
  if (kind.looks_at().empty()) kind.look(request);  // says so
  if (kind.looks_at() != given) {
    throw UsageError(request.file.string() + ": a model that is looked at with --" + kind.looks_at() + ", not --" +
                     given);
  }
  request.image = f.image;
  request.text = f.text;
  request.most = f.images;
  request.note = [](const std::string& line) { std::cerr << "contextpool: " << line << "\n"; };
  request.options = with_data_of_run(kind.eval_options(), kind, f.data.empty() ? f.run : "", {});
  request.data_may_be_gone = f.data.empty();
  if (!f.data.empty() && request.options.has("data")) request.options.set("data", f.data);
  std::string page;
  {
    std::optional<Progress> progress;
    request.progress = [&](std::int64_t done, std::int64_t all) {
      if (!progress) progress.emplace("looked at", "pictures");
      (*progress)(done, all);
    };
    page = eval::looking_page(kind.look(request));
  }
  io::replace_file(f.out, page);
  std::cout << f.out << ": " << page.size() / 1024 << " KiB; open it in a browser\n";
  return 0;
}

}  // namespace contextpool::cli
