// Every tile size of pool1d's CUDA kernels, in one place.
#pragma once

namespace contextpool::cuda {

constexpr int kThreads = 256;   // of a thread block, where half/matrix.cuh does not say 128
constexpr int kTile = 64;       // targets (or, transposed, source rows) of a tile
constexpr int kRows = 32;       // source rows (or, transposed, targets) of one pipeline stage: 4 slots of 8
constexpr int kSlot = 8;        // rows of a slot: 8 tokens, or the 8 nodes of a block
constexpr int kScoreRows = 64;  // source rows of one step of the scores

// Stages of rows on their way from memory, and the thread blocks a multiprocessor that have room for them.
struct Pipeline {
  int stages, blocks;
};
constexpr Pipeline kPlainPipe{3, 2};  // float32
constexpr Pipeline kForwardPipe{3, 3};
constexpr Pipeline kScoresPipe{4, 3};
constexpr Pipeline kFewScoresPipe{5, 2};  // below this many tiles
constexpr int kManyScores = 2048;
constexpr Pipeline kTokensPipe{3, 3};  // the gathers
constexpr Pipeline kBlocksPipe{4, 2};
constexpr Pipeline kNarrowPipe{4, 5};  // forward and gathers with narrow tiles
constexpr Pipeline kNarrowScoresPipe{3, 5};
constexpr int kListRows = 512;   // source rows whose weights' exponents are brought to shared memory at once
constexpr int kManyTiles = 640;  // fill the multiprocessors; a thread block of the forward sum then does all channels

constexpr int kLongSequence = 512;  // tokens above which the tree pays for itself
constexpr int kMany = 16;           // fewer targets than tokens by more than this factor are few, and
constexpr int kLongForFew = 2048;   // for them it does above so many
constexpr int kNodes = 8;           // Chebyshev nodes of a block
constexpr int kLeaf = 6;            // log2 of the tokens of the smallest block
constexpr int kRaiseUp = 3;         // levels one tree kernel goes up inside a thread block
constexpr int kRaiseDown = 4;       // ... or down
constexpr int kTreeColumns = 64;    // channels of a thread block of the tree kernels
constexpr int kMaxLevels = 26;      // levels 6 .. 31
constexpr int kClasses = 24;        // tokens, then levels 6 .. 28
constexpr int kLogsThreads = 1024;  // that make the weights of a sequence's blocks
constexpr int kSortChunk = 512;     // targets of a thread block of the sort
constexpr int kSpan = 4;            // log2 of the blocks in whose span targets of a level share tiles (see span_chunks)
constexpr int kShortLanes = 8;      // threads that plan a target of a short sequence together: there are few targets
constexpr int kLongLanes = 4;
constexpr int kLogsAlone = 8192;  // tokens of a sequence up to which one thread block makes all its weights of blocks
constexpr int kBalanced = 8192;   // tokens of a thread block that balances gradients
// Rows that look for the targets that use them look at so many half tiles together first, where a sequence has many.
constexpr int kIndexed = 128, kManyHalves = 2048;
// A group of blocks of level k gathers from targets in 2^(k - split) parts, at most 64; split is this, and one more for
// each of these sizes that the batch reaches.
constexpr int kSplit = 7;
constexpr int kSplitBatches[] = {8, 32};

// Columns (channels) of a tile; for float32 also of one step of the scores, and the padding of rows in shared memory.
template <typename T>
struct TileOf {
  static constexpr int columns = 256;
  static constexpr int narrow = 64;  // where there are no more channels: groups of them are rows of their own
};
template <>
struct TileOf<float> {
  static constexpr int columns = 128, pad = 4, score_columns = 32;
};

}  // namespace contextpool::cuda
