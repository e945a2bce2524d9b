// Exists so that the precompiled header of torch is compiled once, for every layer above ops (cmake/Layer.cmake).
