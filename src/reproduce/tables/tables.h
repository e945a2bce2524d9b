// The tables, each in the file of its name, and what several of them share.
#pragma once

#include "reproduce/table.h"

namespace contextpool::reproduce {

Table table_4();
Table table_5();
Table table_6();
Table table_s1();
Table mixers();
Table predictor();
Table recall();
Table k_hop();
Table placements();
Table ablations();
Table vit_forms();
Table resnet_forms();

// Language models of bytes on any text: seconds on a CPU; the presets demo and quick, minutes on a core; and the preset
// spec-lm, minutes on a GPU.
Recipe text_smoke();
Recipe text_demo();
Recipe text_quick();
Recipe text_small();
// Pictures: generated shapes, CIFAR-10.
Score top1();
Role cifar10();

}  // namespace contextpool::reproduce
