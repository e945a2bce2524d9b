# Finds LibTorch without torch's own CMake files, which insist on a CUDA toolkit whenever torch was built with CUDA.
# Looked for, in this order: Torch_DIR or CMAKE_PREFIX_PATH, the torch of Python3_EXECUTABLE (or of the first python3),
# .venv of this tree. Gives the target contextpool::torch_cpu and CONTEXTPOOL_TORCH_{LIB_DIR,VERSION}.

set(_hints "")
if(Torch_DIR)
  list(APPEND _hints "${Torch_DIR}/../../..")
endif()
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
  list(APPEND _hints "${_prefix}" "${_prefix}/../..")
endforeach()
if(NOT Python3_EXECUTABLE)
  find_program(Python3_EXECUTABLE NAMES python3)
endif()
foreach(_python IN ITEMS "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/.venv/bin/python")
  if(EXISTS "${_python}")
    execute_process(COMMAND "${_python}" -c "import os, torch; print(os.path.dirname(torch.__file__))"
                    OUTPUT_VARIABLE _dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(_dir)
      list(APPEND _hints "${_dir}")
    endif()
  endif()
endforeach()

find_path(CONTEXTPOOL_TORCH_INCLUDE_DIR ATen/ATen.h HINTS ${_hints} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(CONTEXTPOOL_TORCH_CPU torch_cpu HINTS ${_hints} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(CONTEXTPOOL_C10 c10 HINTS ${_hints} PATH_SUFFIXES lib NO_DEFAULT_PATH)
if(NOT CONTEXTPOOL_TORCH_INCLUDE_DIR OR NOT CONTEXTPOOL_TORCH_CPU OR NOT CONTEXTPOOL_C10)
  message(FATAL_ERROR "LibTorch was not found. Name it with -DCMAKE_PREFIX_PATH=$(python3 -c "
                      "'import torch; print(torch.utils.cmake_prefix_path)'), or run `make build`, which installs it.")
endif()
get_filename_component(CONTEXTPOOL_TORCH_LIB_DIR "${CONTEXTPOOL_TORCH_CPU}" DIRECTORY)

file(STRINGS "${CONTEXTPOOL_TORCH_INCLUDE_DIR}/torch/headeronly/version.h" _version
     REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" CONTEXTPOOL_TORCH_VERSION
                     "${_version}")
message(STATUS "LibTorch ${CONTEXTPOOL_TORCH_VERSION}: ${CONTEXTPOOL_TORCH_LIB_DIR}")

add_library(contextpool::torch_cpu INTERFACE IMPORTED)
target_include_directories(
  contextpool::torch_cpu SYSTEM INTERFACE "${CONTEXTPOOL_TORCH_INCLUDE_DIR}"
                                          "${CONTEXTPOOL_TORCH_INCLUDE_DIR}/torch/csrc/api/include")
target_link_libraries(contextpool::torch_cpu INTERFACE "${CONTEXTPOOL_TORCH_CPU}" "${CONTEXTPOOL_C10}")
