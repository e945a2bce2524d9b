// Where the tree's levels stand in memory: level after level, the lowest first, and the parts of their gradients alike.
#include "kernels/cuda/pool1d/tree/tree.h"

namespace contextpool::cuda {

Tree make_tree(int tokens, int batch) {
  Tree tree{};
  if (tokens < 1 << kLeaf) return tree;
  tree.split = kSplit;
  for (const int least : kSplitBatches) tree.split += batch >= least ? 1 : 0;
  for (tree.last = kLeaf; tokens >> (tree.last + 3) != 0; ++tree.last) {  // blocks of up to a quarter of the sequence
  }
  for (int k = kLeaf; k <= tree.last; ++k) {
    tree.offset[k - kLeaf] = tree.blocks;
    tree.blocks += ((tokens - 1) >> k) + 1;
    tree.offset[k - kLeaf + 1] = tree.blocks;
    tree.part_offset[k - kLeaf] = tree.part_blocks;
    tree.part_blocks += tree.count(k) * tree.parts(k);
  }
  return tree;
}

}  // namespace contextpool::cuda
