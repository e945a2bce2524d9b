// Weights that others trained, by their names: timm's ViT, DeiT, Swin and ResNet, Microsoft's Swin, DeiT's own files,
// torchvision's ViT, Swin and ResNet, and ResNets for CIFAR with option-A shortcuts. A file of tensors is all that is
// needed (scripts/convert_weights.py makes safetensors of a .pth).
//
// Position tables of another image size are resized: bicubic, with antialias as timm does it for ViT, without for the
// relative tables of Swin, as Microsoft does it.
#pragma once

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "contextpool/models/resnet.h"
#include "contextpool/models/swin.h"
#include "contextpool/models/vision_transformer.h"

namespace contextpool::models {

using ForeignTensors = std::vector<std::pair<std::string, torch::Tensor>>;

struct ForeignOptions {
  bool drop_head = false;       // leave the classifier of the model as it is, for other classes than the file's
  bool replace_head = false;    // the same, only where the file has none, or one of another number of classes
  std::string who = "weights";  // opens the messages: the file's name
};

struct ForeignReport {
  std::string source;                // whose names they are: timm, Microsoft, torchvision, ...
  std::vector<std::string> resized;  // tables that had another size
  std::vector<std::string> kept;     // the model's own that were not loaded: mixers and a dropped head
  int64_t classes = 0;               // of the file's head; 0 where it has none
};

// Copies the tensors into the model, converting dtypes and devices. The parameters of mixers stay as they are where a
// file does not have them, as those of others do not; a file of ours for another image size loads whole. Unless
// everything else is there and of the right shape nothing is changed, and c10::ValueError says what is missing,
// unexpected or of another shape, and where the classes differ.
ForeignReport load_foreign(VisionTransformer& model, const ForeignTensors& tensors, const ForeignOptions& options = {});
ForeignReport load_foreign(Swin& model, const ForeignTensors& tensors, const ForeignOptions& options = {});
ForeignReport load_foreign(ResNet& model, const ForeignTensors& tensors, const ForeignOptions& options = {});
// The same for a model whose family is known at run time only; c10::ValueError if it is none of these.
ForeignReport load_foreign(torch::nn::Module& model, const ForeignTensors& tensors, const ForeignOptions& options = {});

}  // namespace contextpool::models
