// Pictures on the command line, for tests/python/test_images.py. Every line of standard input is a task, answered by a
// line: "ok" and what there is to say, or "error" and the message. Files of pictures without compression are PPM.
//   decode FILE OUT [LEFT TOP WIDTH HEIGHT]     info FILE MAX_PIXELS
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "contextpool/data/images/decode.h"
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

const std::map<std::string, std::string (*)(const Words&)> kTasks = {{"decode", decode_file}, {"info", info}};

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
