// PNG by libpng, every kind of it turned into 8-bit red, green, blue. As in jpeg.cpp, errors come by longjmp.
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <vector>

#include "data/images/source.h"

namespace contextpool::data {
namespace {

constexpr png_alloc_size_t kMostOfAChunk = 8 << 20;  // a profile or a comment; pictures come in streams
constexpr png_uint_32 kMostChunks = 1000;

struct State {
  std::jmp_buf jump;
  Reason reason;
  std::span<const std::byte> rest;
};

[[noreturn]] void leave(png_structp png, png_const_charp message) {
  auto& state = *static_cast<State*>(png_get_error_ptr(png));
  state.reason.set(message);
  std::longjmp(state.jump, 1);  // NOLINT(cert-err52-cpp): the library is C
}

void say_nothing(png_structp, png_const_charp) {}

void take_bytes(png_structp png, png_bytep out, std::size_t count) {
  auto& state = *static_cast<State*>(png_get_io_ptr(png));
  if (count > state.rest.size()) leave(png, "the file ends before the picture does");
  std::memcpy(out, state.rest.data(), count);
  state.rest = state.rest.subspan(count);
}

class Png final : public ImageDecoder::Source {
 public:
  explicit Png(std::span<const std::byte> bytes, const ImageLimits& limits) {
    state_.rest = bytes;
    guarded([&] {
      handle_.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &state_, leave, say_nothing);
      if (png() != nullptr) handle_.info = png_create_info_struct(png());
    });
    if (info() == nullptr) throw ImageError("PNG cannot be read: libpng is of another version, or there is no memory");
    read_header();
    check_size(width, height, limits);
  }

  Image read(const Box& box, int) override {
    const bool interlaced = ask_for_rgb();
    const bool whole = box.width == width && box.height == height;
    // Interlaced pictures come in seven passes over all rows.
    Image all(whole || interlaced ? width : 0, whole || interlaced ? height : 0);
    if (all.height() > 0) {
      std::vector<png_bytep> rows(static_cast<std::size_t>(height));
      for (std::int64_t y = 0; y < height; ++y) rows[static_cast<std::size_t>(y)] = all.row(y);
      guarded([&] {
        png_read_image(png(), rows.data());
        png_read_end(png(), nullptr);
      });
      return whole ? std::move(all) : crop(all, box);
    }
    Image image(box.width, box.height);
    std::vector<std::uint8_t> line(static_cast<std::size_t>(kColours * width));
    guarded([&] {
      for (std::int64_t y = 0; y < box.top + box.height; ++y) {
        png_read_row(png(), line.data(), nullptr);
        if (y >= box.top)
          std::memcpy(image.row(y - box.top), line.data() + kColours * box.left,
                      static_cast<std::size_t>(image.stride()));
      }
      if (box.top + box.height == height) png_read_end(png(), nullptr);
    });
    return image;
  }

 private:
  template <class F>
  void guarded(F f) {
    if (setjmp(state_.jump) == 0) {  // NOLINT(cert-err52-cpp)
      f();
      return;
    }
    throw ImageError("PNG is damaged or cut short: " + state_.reason.text());
  }

  void read_header() {
    guarded([&] {
      png_set_read_fn(png(), &state_, take_bytes);
      png_set_user_limits(png(), PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // ours are checked below, with a better message
      png_set_chunk_malloc_max(png(), kMostOfAChunk);
      png_set_chunk_cache_max(png(), kMostChunks);
      png_read_info(png(), info());
    });
    width = png_get_image_width(png(), info());
    height = png_get_image_height(png(), info());
    png_uint_32 size = 0;
    png_bytep exif = nullptr;
    if (png_get_eXIf_1(png(), info(), &size, &exif) != 0 && exif != nullptr)
      orientation = orientation_in_exif({reinterpret_cast<const std::byte*>(exif), size});
  }

  // True if the picture is interlaced.
  bool ask_for_rgb() {
    bool interlaced = false;
    std::size_t row = 0;
    guarded([&] {
      png_set_expand(png());  // palettes to colours, fewer than 8 bits to 8, a transparent colour to alpha
      png_set_strip_16(png());
      png_set_strip_alpha(png());
      png_set_gray_to_rgb(png());
      interlaced = png_set_interlace_handling(png()) > 1;
      png_read_update_info(png(), info());
      row = png_get_rowbytes(png(), info());
    });
    if (row != static_cast<std::size_t>(kColours * width))
      throw ImageError("PNG of a kind that libpng does not convert");
    return interlaced;
  }

  State state_{};
  // Freed by a member's destructor: it runs when the constructor throws, too.
  struct Handle {
    png_structp png = nullptr;
    png_infop info = nullptr;

    Handle() = default;
    ~Handle() { png_destroy_read_struct(&png, &info, nullptr); }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
  };
  png_structp png() const { return handle_.png; }
  png_infop info() const { return handle_.info; }

  Handle handle_;
};

}  // namespace

std::unique_ptr<ImageDecoder::Source> open_png(std::span<const std::byte> bytes, const ImageLimits& limits) {
  return std::make_unique<Png>(bytes, limits);
}

}  // namespace contextpool::data
