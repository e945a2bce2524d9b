// JPEG by libjpeg-turbo. Its errors come by longjmp, which runs no destructors: what is called under `guarded` has none
// to run. Warnings about damaged data are errors too, as the library would continue and paint the rest grey.
#include <cstdio>
#include <cstring>
#include <vector>
// jpeglib.h needs <cstdio> before it.
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <csetjmp>

#include "data/images/source.h"
#include "io/text.h"

namespace contextpool::data {
namespace {

constexpr int kMarker = JPEG_APP0 + 1;  // of EXIF
constexpr unsigned kMarkerSize = 0xffff;
constexpr int kMostScans = 100;       // ten are usual; each of them may cost as much time as decoding the picture
constexpr std::int64_t kContext = 2;  // columns beside a crop that smooth upsampling looks at

struct Errors : jpeg_error_mgr {
  std::jmp_buf jump;
  Reason reason;
};

[[noreturn]] void leave(j_common_ptr info) {
  auto& errors = static_cast<Errors&>(*info->err);
  std::array<char, JMSG_LENGTH_MAX> text{};
  errors.format_message(info, text.data());
  errors.reason.set(text.data());
  std::longjmp(errors.jump, 1);  // NOLINT(cert-err52-cpp): the library is C
}

// Some warnings are about oddities that leave every pixel in place; ImageNet has a few such files.
bool harmless(int code) {
  return code == JWRN_EXTRANEOUS_DATA || code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM || code == JWRN_BOGUS_ICC;
}

void take_message(j_common_ptr info, int level) {
  if (level < 0 && !harmless(info->err->msg_code)) leave(info);
}

void say_nothing(j_common_ptr) {}

void watch_scans(j_common_ptr info) {
  auto& jpeg = *reinterpret_cast<j_decompress_ptr>(info);
  if (jpeg.input_scan_number <= kMostScans) return;
  auto& errors = static_cast<Errors&>(*info->err);
  errors.reason.set("more scans than a progressive JPEG has use for");
  std::longjmp(errors.jump, 1);  // NOLINT(cert-err52-cpp)
}

// What Pillow's conversion computes: c, m, y scaled by the white that k leaves. The file has all four inverted.
void cmyk_to_rgb(const std::uint8_t* in, std::uint8_t* out, std::int64_t pixels) {
  for (std::int64_t x = 0; x < pixels; ++x, in += 4, out += kColours) {
    const int white = in[3];
    for (int c = 0; c < kColours; ++c) {
      const int product = (255 - in[c]) * white + 128;
      out[c] = static_cast<std::uint8_t>(white - ((product + (product >> 8)) >> 8));
    }
  }
}

class Jpeg final : public ImageDecoder::Source {
 public:
  explicit Jpeg(std::span<const std::byte> bytes, const ImageLimits& limits) {
    jpeg_.err = jpeg_std_error(&errors_);
    errors_.error_exit = leave;
    errors_.emit_message = take_message;
    errors_.output_message = say_nothing;
    guarded([&] {
      jpeg_create_decompress(&jpeg_);
      jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(bytes.data()),
                   static_cast<unsigned long>(bytes.size()));
      jpeg_save_markers(&jpeg_, kMarker, kMarkerSize);
      jpeg_read_header(&jpeg_, TRUE);
    });
    width = jpeg_.image_width;
    height = jpeg_.image_height;
    check_size(width, height, limits);
    if (jpeg_.data_precision != 8)
      throw ImageError(io::text("JPEG of ", jpeg_.data_precision, " bits a sample; only 8 are read"));
    const int components = jpeg_.num_components;
    if (components != 1 && components != 3 && components != 4)
      throw ImageError(io::text("JPEG of ", components, " colour components; expected 1, 3 or 4"));
    orientation = find_orientation();
  }
  bool can_reduce() const override { return true; }

  Image read(const Box& box, int denominator) override {
    start(denominator);
    const auto rows = static_cast<std::int64_t>(jpeg_.output_height);
    const bool whole = box.width == static_cast<std::int64_t>(jpeg_.output_width);
    const bool all = whole || is_smoothed();
    const auto skipped = all ? box.left : narrow(box);  // columns before the box in the rows that come
    Image image(box.width, box.height);
    std::vector<std::uint8_t> line(static_cast<std::size_t>(jpeg_.output_width) * jpeg_.output_components);
    // Rows go straight to where they belong if they are what is wanted.
    const bool direct = whole && jpeg_.output_components == kColours;
    guarded([&] {
      if (!is_smoothed() && box.top > 0) jpeg_skip_scanlines(&jpeg_, static_cast<JDIMENSION>(box.top));
      for (auto y = static_cast<std::int64_t>(jpeg_.output_scanline); y < box.top + box.height; ++y) {
        const bool wanted = y >= box.top;
        JSAMPROW row = wanted && direct ? image.row(y - box.top) : line.data();
        if (jpeg_read_scanlines(&jpeg_, &row, 1) != 1) ERREXIT(&jpeg_, JERR_INPUT_EOF);
        if (wanted && !direct) take_row(line.data(), skipped, image.row(y - box.top), box.width);
      }
      // After the last row, what ends the file is read as well; damage there is damage. Else the rest is left alone.
      if (box.top + box.height == rows) {
        jpeg_finish_decompress(&jpeg_);
      } else {
        jpeg_abort_decompress(&jpeg_);
      }
    });
    return image;
  }

 private:
  // Calls f; if the library reports an error, that is thrown. f may hold nothing that needs to be destroyed.
  template <class F>
  void guarded(F f) {
    if (setjmp(errors_.jump) == 0) {  // NOLINT(cert-err52-cpp)
      f();
      return;
    }
    throw ImageError("JPEG is damaged or cut short: " + errors_.reason.text());
  }

  int find_orientation() const {
    static constexpr std::string_view kName("Exif\0\0", 6);
    for (auto marker = jpeg_.marker_list; marker != nullptr; marker = marker->next) {
      const std::span<const std::byte> data(reinterpret_cast<const std::byte*>(marker->data), marker->data_length);
      if (marker->marker == kMarker && data.size() > kName.size() &&
          std::memcmp(data.data(), kName.data(), kName.size()) == 0)
        return orientation_in_exif(data.subspan(kName.size()));
    }
    return 1;
  }

  void start(int denominator) {
    progress_.progress_monitor = watch_scans;
    guarded([&] {
      jpeg_.out_color_space = jpeg_.num_components == 4 ? JCS_CMYK : JCS_RGB;
      jpeg_.scale_num = 1;
      jpeg_.scale_denom = static_cast<unsigned>(denominator);
      jpeg_.progress = &progress_;
      jpeg_start_decompress(&jpeg_);
    });
  }

  // Of a progressive picture whose last scans are missing, blocks are smoothed by their neighbours: a crop needs them.
  bool is_smoothed() const {
    constexpr int kLooked = 10;  // at so many coefficients
    if (!jpeg_.progressive_mode || !jpeg_.do_block_smoothing || jpeg_.coef_bits == nullptr) return false;
    for (int c = 0; c < jpeg_.num_components; ++c)
      for (int k = 1; k < kLooked; ++k)
        if (jpeg_.coef_bits[c][k] != 0) return true;
    return false;
  }

  // Decodes only the columns of the box and what their edges depend on; the left one moves to the edge of a block.
  std::int64_t narrow(const Box& box) {
    const auto all = static_cast<std::int64_t>(jpeg_.output_width);
    // At a reduced size, upsampling may work on less than a column: twice as much is enough.
    const auto context = kContext * (jpeg_.scale_denom > 1 ? 2 : 1);
    auto left = static_cast<JDIMENSION>(std::max<std::int64_t>(0, box.left - context));
    auto width = static_cast<JDIMENSION>(std::min(all, box.left + box.width + context) - left);
    guarded([&] { jpeg_crop_scanline(&jpeg_, &left, &width); });
    return box.left - static_cast<std::int64_t>(left);
  }

  void take_row(const std::uint8_t* line, std::int64_t skipped, std::uint8_t* out, std::int64_t pixels) const {
    const auto* from = line + skipped * jpeg_.output_components;
    if (jpeg_.output_components == 4) {
      cmyk_to_rgb(from, out, pixels);
    } else {
      std::memcpy(out, from, static_cast<std::size_t>(kColours * pixels));
    }
  }

  // Freed by a member's destructor: it runs when the constructor throws, too.
  struct Handle : jpeg_decompress_struct {
    Handle() : jpeg_decompress_struct{} {}
    ~Handle() { jpeg_destroy_decompress(this); }  // nothing to do before it is created
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
  };

  Errors errors_{};
  jpeg_progress_mgr progress_{};
  Handle jpeg_;
};

}  // namespace

std::unique_ptr<ImageDecoder::Source> open_jpeg(std::span<const std::byte> bytes, const ImageLimits& limits) {
  return std::make_unique<Jpeg>(bytes, limits);
}

}  // namespace contextpool::data
