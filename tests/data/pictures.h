// Pictures for tests: a pattern that tells places apart, and files of it by libjpeg and libpng.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
// jpeglib.h needs <cstdio> before it.
#include <jpeglib.h>
#include <png.h>

#include <vector>

#include "contextpool/data/images/image.h"

namespace contextpool::testing {

inline data::Image pattern(std::int64_t width, std::int64_t height, int phase = 0) {
  data::Image image(width, height);
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x) {
      image.row(y)[3 * x] = static_cast<std::uint8_t>(x * 255 / width);
      image.row(y)[3 * x + 1] = static_cast<std::uint8_t>(y * 255 / height);
      image.row(y)[3 * x + 2] = static_cast<std::uint8_t>((x / 7 + y / 5 + phase) % 2 * 200);
    }
  return image;
}

inline std::string jpeg_of(const data::Image& image) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &out, &size);
  jpeg.image_width = static_cast<JDIMENSION>(image.width());
  jpeg.image_height = static_cast<JDIMENSION>(image.height());
  jpeg.input_components = 3;
  jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 95, TRUE);
  jpeg_start_compress(&jpeg, TRUE);
  for (std::int64_t y = 0; y < image.height(); ++y) {
    auto* row = const_cast<std::uint8_t*>(image.row(y));
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::string bytes(reinterpret_cast<char*>(out), size);
  jpeg_destroy_compress(&jpeg);
  std::free(out);
  return bytes;
}

inline std::string png_of(const data::Image& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width());
  png.height = static_cast<png_uint_32>(image.height());
  png.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  png_image_write_to_memory(&png, nullptr, &size, 0, image.bytes().data(), 0, nullptr);
  std::string bytes(size, '\0');
  png_image_write_to_memory(&png, bytes.data(), &size, 0, image.bytes().data(), 0, nullptr);
  bytes.resize(size);
  return bytes;
}

}  // namespace contextpool::testing
