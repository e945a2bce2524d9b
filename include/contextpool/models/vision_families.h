// The families of vision models: ViT and DeiT, Swin, ResNet.
#pragma once

#include <memory>

#include "contextpool/models/family.h"

namespace contextpool::models {

std::unique_ptr<Family> vision_transformer_family();
std::unique_ptr<Family> swin_family();
std::unique_ptr<Family> resnet_family();

}  // namespace contextpool::models
