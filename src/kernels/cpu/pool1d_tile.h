// Targets worked on together, so that a row is loaded once for all of them.
//
// Neighbouring targets have windows of different widths over much the same rows. Rows are taken in strips of kStrip;
// for each strip a mask tells which targets have sources in it. A strip's rows stay in registers while they meet all
// its targets (or, in the transpose, its sums do), and a target costs its own rows only, rounded up to strips.
#pragma once

#include "kernels/cpu/pool1d_sources.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

inline constexpr int kTile = 256;

// A target of a tile: where its sources are, and the place of its weights among those of the tile.
struct Member {
  std::int64_t target;
  std::int64_t offset;
  Cover cover;
};

// A segment of a member, as the strips of a run see it: its weights for strip k are those from base + k * kStrip on.
struct Slot {
  int member;
  std::int64_t base;
};

// Strips first..first + count of one level, and the slots that have sources there: bit s of a strip's mask stands for
// slot s of the run.
struct StripRun {
  static constexpr int kSlots = 64;
  int level;
  std::int64_t first;
  std::int64_t count;
  std::int64_t mask;  // place of the first strip's mask
  int slot;           // place of the first slot
  int slots;
};

class Strips {
 public:
  // Of the members that `take` says yes to.
  template <class Take>
  void assign(const Member* members, int count, const Take& take) {
    collect(members, count, take);
    runs_count_ = 0;
    std::int64_t masks = 0;
    for (int k = 0; k < pieces_count_; ++k) {
      const Piece& piece = pieces_[k];
      StripRun* run = runs_count_ > 0 ? &runs_[runs_count_ - 1] : nullptr;
      if (run == nullptr || run->slots == StripRun::kSlots || run->level != piece.level ||
          piece.first > run->first + run->count + kGap) {
        if (run != nullptr) masks += run->count;
        run = &runs_[runs_count_++];
        *run = {piece.level, piece.first, 0, masks, k, 0};
      }
      const std::int64_t end = std::max(run->first + run->count, piece.end);
      run->first = std::min(run->first, piece.first);
      run->count = end - run->first;
      ++run->slots;
      slots_[k] = {piece.member, piece.base};
    }
    if (runs_count_ > 0) masks += runs_[runs_count_ - 1].count;
    fill_masks(masks);
  }

  const StripRun* begin() const { return runs_.data(); }
  const StripRun* end() const { return runs_.data() + runs_count_; }
  const Slot* slots(const StripRun& run) const { return slots_.data() + run.slot; }
  std::uint64_t mask(const StripRun& run, std::int64_t strip) const { return masks_[run.mask + strip - run.first]; }

 private:
  static constexpr std::int64_t kGap = 8;  // empty strips that do not end a run

  struct Piece {
    int level;
    int member;
    std::int64_t first, end;  // strips
    std::int64_t base;
  };
  // The order of a level's pieces: by place, but those of about the same place by member, so that a run meets few.
  static constexpr int kPlace = 6;
  static bool before(const Piece& a, const Piece& b) { return a.first >> kPlace < b.first >> kPlace; }

  template <class Take>
  void collect(const Member* members, int count, const Take& take) {
    pieces_count_ = 0;
    std::int64_t most = 0;
    for (int k = 0; k < count; ++k) most += members[k].cover.end() - members[k].cover.begin();
    pieces_.reserve(most);
    unsorted_.reserve(most);
    slots_.reserve(most);
    runs_.reserve(most);
    int of_level[kMaxLevels + 2] = {};
    for (int k = 0; k < count; ++k) {
      if (!take(members[k])) continue;
      for (const Segment& s : members[k].cover) {
        const std::int64_t base = members[k].offset + s.offset - s.first();
        unsorted_[pieces_count_++] = {s.level, k, s.begin / kStrip, (s.end + kStrip - 1) / kStrip, base};
        ++of_level[s.level + 2];
      }
    }
    // By level, then by place: those of a level come nearly in order.
    for (int level = 0; level < kMaxLevels; ++level) of_level[level + 2] += of_level[level + 1];
    int begin_of_level[kMaxLevels + 2];
    for (int level = 0; level < kMaxLevels + 2; ++level) begin_of_level[level] = of_level[level];
    for (int k = 0; k < pieces_count_; ++k) {
      const Piece piece = unsorted_[k];
      int at = of_level[piece.level + 1]++;
      for (; at > begin_of_level[piece.level + 1] && before(piece, pieces_[at - 1]); --at)
        pieces_[at] = pieces_[at - 1];
      pieces_[at] = piece;
    }
  }

  void fill_masks(std::int64_t count) {
    masks_.reserve(count);
    for (std::int64_t k = 0; k < count; ++k) masks_[k] = 0;
    for (const StripRun& run : *this) {
      for (int s = 0; s < run.slots; ++s) {
        const Piece& piece = pieces_[run.slot + s];
        std::uint64_t* masks = masks_.data() + run.mask - run.first;
        for (std::int64_t k = piece.first; k < piece.end; ++k) masks[k] |= std::uint64_t{1} << s;
      }
    }
  }

  Buffer<Piece> unsorted_;
  Buffer<Piece> pieces_;
  Buffer<Slot> slots_;
  Buffer<StripRun> runs_;
  Buffer<std::uint64_t> masks_;
  int pieces_count_ = 0;
  int runs_count_ = 0;
};

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
