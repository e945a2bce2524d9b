// CONTEXTPOOL_API marks what the shared library shows; everything else is hidden.
#pragma once

#define CONTEXTPOOL_API __attribute__((visibility("default")))
