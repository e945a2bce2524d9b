// A family, a dataset and a task of their own, added from outside: docs/extending.md walks through this folder.
//
// The task: on which of two interleaved spirals does a point lie? The model: a perceptron of one hidden layer.
#pragma once

#include <memory>

#include "contextpool/models/family.h"
#include "contextpool/tasks/registry.h"

namespace contextpool::toy {

std::unique_ptr<models::Family> family();
std::unique_ptr<tasks::TaskKind> task();

}  // namespace contextpool::toy
