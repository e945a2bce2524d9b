# The CUDA side of contextpool_ops, by CONTEXTPOOL_CUDA:
#   AUTO  with CUDA where torch was built with it and a toolkit (nvcc) is found, else without
#   ON    with CUDA; an error that says what is missing
#   OFF   without
# Without, a CUDA tensor is answered by src/ops/cuda/unavailable.cpp. Where there is nvcc but torch has no CUDA, the
# target contextpool_cuda_check compiles the kernels and the glue all the same (nothing links them; not part of `all`).
set(CONTEXTPOOL_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO, ON or OFF")
set_property(CACHE CONTEXTPOOL_CUDA PROPERTY STRINGS AUTO ON OFF)
set(CONTEXTPOOL_CUDA_ARCHITECTURES "80;90a-real" CACHE STRING "Compute capabilities; 80 stands for its PTX too")

set(_kernels
    pool1d/pool1d pool1d/index
    pool1d/plan/plan pool1d/plan/sort pool1d/plan/weights
    pool1d/tree/tree pool1d/tree/up pool1d/tree/down
    pool1d/half/forward pool1d/half/scores pool1d/half/gather_blocks pool1d/half/gather_tokens
    pool1d/float32/balance pool1d/float32/forward pool1d/float32/origin pool1d/float32/scores
    pool1d/float32/gather_blocks pool1d/float32/gather_tokens
    pool1d/float64/formula
    pool2d/pool2d pool2d/backward_pixels pool2d/backward_targets pool2d/forward pool2d/layout pool2d/plan)
list(TRANSFORM _kernels REPLACE "(.+)" "src/kernels/cuda/\\1.cu")
# The fused operators of a training step: a folder each, and the glue of the same name in src/ops/cuda.
set(CONTEXTPOOL_STEP_OPERATORS
    add_layer_norm bias_gelu cross_entropy dynamic_convolution predict_windows rotary short_convolution)
set(_step_glue "")
foreach(_operator IN LISTS CONTEXTPOOL_STEP_OPERATORS)
  list(APPEND _kernels src/kernels/cuda/${_operator}/${_operator}.cu)
  list(APPEND _step_glue src/ops/cuda/${_operator}.cpp)
endforeach()

if(CONTEXTPOOL_SANITIZE) # nvcc does not take the sanitizers' flags
  set(CONTEXTPOOL_CUDA OFF)
endif()
set(CONTEXTPOOL_WITH_CUDA FALSE)
if(NOT CONTEXTPOOL_CUDA STREQUAL "OFF")
  find_program(CONTEXTPOOL_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  set(_torch_cuda "${CONTEXTPOOL_TORCH_LIB_DIR}/libtorch_cuda.so")
  if(CONTEXTPOOL_NVCC AND EXISTS "${_torch_cuda}")
    set(CONTEXTPOOL_WITH_CUDA TRUE)
  elseif(CONTEXTPOOL_CUDA STREQUAL "ON")
    if(NOT CONTEXTPOOL_NVCC)
      message(FATAL_ERROR "CONTEXTPOOL_CUDA=ON needs the CUDA toolkit, but nvcc was not found: put it on PATH or name "
                          "it with -DCONTEXTPOOL_NVCC=")
    endif()
    message(FATAL_ERROR "CONTEXTPOOL_CUDA=ON needs a PyTorch with CUDA, but ${CONTEXTPOOL_TORCH_ROOT} "
                        "(torch ${CONTEXTPOOL_TORCH_VERSION}) has no libtorch_cuda.so")
  endif()
  if(CONTEXTPOOL_NVCC)
    set(CMAKE_CUDA_COMPILER "${CONTEXTPOOL_NVCC}")
    if(NOT CMAKE_CUDA_HOST_COMPILER)
      set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
    endif()
    set(CMAKE_CUDA_ARCHITECTURES "${CONTEXTPOOL_CUDA_ARCHITECTURES}")
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
  endif()
endif()

if(CONTEXTPOOL_NVCC AND NOT CONTEXTPOOL_CUDA STREQUAL "OFF")
  add_library(contextpool_kernels_cuda OBJECT EXCLUDE_FROM_ALL ${_kernels})
  target_include_directories(contextpool_kernels_cuda PRIVATE src)
  target_compile_options(contextpool_kernels_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>)
  # C++17: CMake 3.25 knows no later dialect of nvcc's.
  set_target_properties(contextpool_kernels_cuda PROPERTIES CUDA_STANDARD 17 CUDA_VISIBILITY_PRESET hidden)
endif()

if(CONTEXTPOOL_WITH_CUDA)
  message(STATUS "CUDA ${CUDAToolkit_VERSION}: kernels for ${CONTEXTPOOL_CUDA_ARCHITECTURES}")
  target_sources(contextpool_ops PRIVATE src/ops/cuda/pool1d.cpp src/ops/cuda/pool2d.cpp ${_step_glue}
                                         $<TARGET_OBJECTS:contextpool_kernels_cuda>)
  target_include_directories(contextpool_ops PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  # torch's CUDA side registers itself when it is loaded; hardly a symbol of it is named, so the linker must be told.
  target_link_libraries(contextpool_ops PRIVATE "-Wl,--push-state,--no-as-needed,${_torch_cuda},--pop-state"
                                                "${CONTEXTPOOL_TORCH_LIB_DIR}/libc10_cuda.so" CUDA::cudart)
else()
  message(STATUS "CUDA: not built (CONTEXTPOOL_CUDA=${CONTEXTPOOL_CUDA})")
  target_sources(contextpool_ops PRIVATE src/ops/cuda/unavailable.cpp)
  if(TARGET contextpool_kernels_cuda)
    # One architecture is enough to see that everything compiles. The one header that only a torch with CUDA carries
    # says how its libraries were built.
    set_target_properties(contextpool_kernels_cuda PROPERTIES CUDA_ARCHITECTURES 90a-real COMPILE_WARNING_AS_ERROR ON)
    file(WRITE "${PROJECT_BINARY_DIR}/cuda_check/c10/cuda/impl/cuda_cmake_macros.h"
         "#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n")
    add_library(contextpool_ops_cuda OBJECT EXCLUDE_FROM_ALL src/ops/cuda/pool1d.cpp src/ops/cuda/pool2d.cpp
                                             src/runtime/graph.cpp ${_step_glue})
    target_include_directories(contextpool_ops_cuda PRIVATE src include)
    target_include_directories(contextpool_ops_cuda SYSTEM PRIVATE "${PROJECT_BINARY_DIR}/cuda_check")
    target_link_libraries(contextpool_ops_cuda PRIVATE contextpool::torch_cpu CUDA::cudart)
    add_custom_target(contextpool_cuda_check)
    add_dependencies(contextpool_cuda_check contextpool_kernels_cuda contextpool_ops_cuda)
  endif()
endif()
