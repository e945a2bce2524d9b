// Pictures on the command line, for tests/python/test_images.py. Every line of standard input is a task, answered by a
// line: "ok" and what there is to say, or "error" and the message. Files of pictures without compression are PPM.
//   decode FILE OUT [LEFT TOP WIDTH HEIGHT]     info FILE MAX_PIXELS
//   resize PPM OUT FILTER WIDTH HEIGHT [LEFT TOP RIGHT BOTTOM]     centre PPM OUT FILTER SIZE RATIO
//   apply PPM OUT FILTER KIND ARGUMENT     cifar FOLDER
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "contextpool/data/images/choices.h"
#include "contextpool/data/images/cifar.h"
#include "contextpool/data/images/decode.h"
#include "contextpool/data/images/operations.h"
#include "contextpool/data/images/resize.h"
#include "contextpool/io/files.h"

namespace contextpool::data {
namespace {

using Words = std::vector<std::string>;

std::int64_t number(const std::string& word) { return std::stoll(word); }

Box box_from(const Words& words, std::size_t at) {
  return {number(words[at]), number(words[at + 1]), number(words[at + 2]), number(words[at + 3])};
}

void write_ppm(const std::string& path, const Image& image) {
  std::ofstream file(path, std::ios::binary);
  file << "P6\n" << image.width() << " " << image.height() << "\n255\n";
  file.write(reinterpret_cast<const char*>(image.bytes().data()), static_cast<std::streamsize>(image.bytes().size()));
}

Image read_ppm(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string kind;
  std::int64_t width = 0, height = 0, most = 0;
  file >> kind >> width >> height >> most;
  file.get();
  Image image(width, height);
  file.read(reinterpret_cast<char*>(image.bytes().data()), static_cast<std::streamsize>(image.bytes().size()));
  return image;
}

std::string resize_file(const Words& words) {
  const auto image = read_ppm(words[1]);
  const auto real = [&](std::size_t k) { return std::stod(words[k]); };
  const auto filter = filter_named(words[3]);
  const auto width = number(words[4]), height = number(words[5]);
  write_ppm(words[2], words.size() > 6 ? resize(image, width, height, filter, {real(6), real(7), real(8), real(9)})
                                       : resize(image, width, height, filter));
  return "";
}

std::string centre(const Words& words) {
  const auto image = read_ppm(words[1]);
  const auto size = number(words[4]);
  const auto box = central_box(image.width(), image.height(), size, std::stod(words[5]));
  write_ppm(words[2], resize(image, size, size, filter_named(words[3]), box));
  return "";
}

std::string apply_to_file(const Words& words) {
  auto image = read_ppm(words[1]);
  OperationOptions options;
  options.filter = filter_named(words[3]);
  apply(image, Operation{operation_named(words[4]), std::stod(words[5])}, options);
  write_ppm(words[2], image);
  return "";
}

std::string decode_file(const Words& words) {
  const auto bytes = io::read_file(words[1]);
  ImageDecoder decoder(std::as_bytes(std::span(bytes)));
  write_ppm(words[2], words.size() > 3 ? decoder.decode(box_from(words, 3)) : decoder.decode());
  return "";
}

std::string info(const Words& words) {
  const auto bytes = io::read_file(words[1]);
  ImageLimits limits;
  limits.max_pixels = number(words[2]);
  const auto info = ImageDecoder(std::as_bytes(std::span(bytes)), limits).info();
  std::ostringstream out;
  out << info.width << " " << info.height << " " << info.orientation;
  return out.str();
}

// Of train and of test: the number of records, the sum of labels and the sum of pixels.
std::string cifar(const Words& words) {
  const auto all = read_cifar(words[1]);
  std::ostringstream out;
  for (const auto* part : {&all.train, &all.test}) {
    std::int64_t labels = 0, pixels = 0;
    for (const auto label : part->labels) labels += label;
    for (const auto pixel : part->pixels) pixels += pixel;
    out << part->size() << " " << labels << " " << pixels << " ";
  }
  for (const auto& name : all.class_names) out << name << " ";
  return out.str();
}

const std::map<std::string, std::string (*)(const Words&)> kTasks = {{"decode", decode_file},  {"info", info},
                                                                     {"resize", resize_file},  {"centre", centre},
                                                                     {"apply", apply_to_file}, {"cifar", cifar}};

std::string answer(const std::string& line) {
  std::istringstream in(line);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  try {
    return "ok " + kTasks.at(words.at(0))(words);
  } catch (const std::exception& error) {
    return std::string("error ") + error.what();
  }
}

}  // namespace
}  // namespace contextpool::data

int main() {
  for (std::string line; std::getline(std::cin, line);) std::cout << contextpool::data::answer(line) << "\n";
}
