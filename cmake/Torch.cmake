# Finds LibTorch without torch's own CMake files, which insist on a CUDA toolkit whenever torch was built with CUDA.
# Looked for, in this order: Torch_DIR or CMAKE_PREFIX_PATH (variables, then environment), the torch of
# Python3_EXECUTABLE (or of the first python3), .venv of this tree. Used by the build and, installed, by
# find_package(ContextPool), which names the torch it was built with in CONTEXTPOOL_TORCH_HINT: taken if it is still
# there and no other is named. Gives CONTEXTPOOL_TORCH_{ROOT,LIB_DIR,VERSION} and the targets
#   contextpool::torch_cpu     the headers, libtorch_cpu and libc10
#   contextpool::torch_openmp  OpenMP by the run-time library that torch itself uses: a second one must not be loaded

set(_hints "")
foreach(_dir IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
  if(_dir)
    list(APPEND _hints "${_dir}/../../..")
  endif()
endforeach()
set(_prefixes "$ENV{CMAKE_PREFIX_PATH}")
string(REPLACE ":" ";" _prefixes "${_prefixes}")
foreach(_dir IN LISTS CMAKE_PREFIX_PATH _prefixes)
  list(APPEND _hints "${_dir}" "${_dir}/../..")
endforeach()
list(APPEND _hints ${CONTEXTPOOL_TORCH_HINT})
if(NOT Python3_EXECUTABLE)
  find_program(Python3_EXECUTABLE NAMES python3)
endif()
foreach(_python IN ITEMS "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/.venv/bin/python")
  if(EXISTS "${_python}")
    execute_process(COMMAND "${_python}" -c "import importlib.util as u; print(*u.find_spec('torch').submodule_search_locations)"
                    OUTPUT_VARIABLE _dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND _hints ${_dir})
  endif()
endforeach()

set(CONTEXTPOOL_TORCH_ROOT "")
foreach(_dir IN LISTS _hints)
  if(EXISTS "${_dir}/include/ATen/ATen.h" AND EXISTS "${_dir}/lib/libtorch_cpu.so")
    get_filename_component(CONTEXTPOOL_TORCH_ROOT "${_dir}" ABSOLUTE)
    break()
  endif()
endforeach()
if(NOT CONTEXTPOOL_TORCH_ROOT)
  set(_message "LibTorch was not found. Name it with -DCMAKE_PREFIX_PATH=\"$(python3 -c 'import torch; "
               "print(torch.utils.cmake_prefix_path)')\" (with pip, add --no-build-isolation), or run `make build` "
               "in ContextPool's source tree, which installs it.")
  string(CONCAT _message ${_message})
  if(CMAKE_FIND_PACKAGE_NAME)
    set(${CMAKE_FIND_PACKAGE_NAME}_FOUND FALSE)
    set(${CMAKE_FIND_PACKAGE_NAME}_NOT_FOUND_MESSAGE "${_message}")
    return()
  endif()
  message(FATAL_ERROR "${_message}")
endif()
set(CONTEXTPOOL_TORCH_LIB_DIR "${CONTEXTPOOL_TORCH_ROOT}/lib")

set(_header "${CONTEXTPOOL_TORCH_ROOT}/include/torch/headeronly/version.h")
if(NOT EXISTS "${_header}")
  set(_header "${CONTEXTPOOL_TORCH_ROOT}/include/torch/csrc/api/include/torch/version.h")
endif()
file(STRINGS "${_header}" _version REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" CONTEXTPOOL_TORCH_VERSION
                     "${_version}")

if(NOT TARGET contextpool::torch_cpu)
  message(STATUS "LibTorch ${CONTEXTPOOL_TORCH_VERSION}: ${CONTEXTPOOL_TORCH_ROOT}")
  set(_include "${CONTEXTPOOL_TORCH_ROOT}/include")
  add_library(contextpool::torch_cpu INTERFACE IMPORTED)
  target_include_directories(contextpool::torch_cpu SYSTEM INTERFACE "${_include}"
                                                                     "${_include}/torch/csrc/api/include")
  target_link_libraries(contextpool::torch_cpu INTERFACE "${CONTEXTPOOL_TORCH_LIB_DIR}/libtorch_cpu.so"
                                                         "${CONTEXTPOOL_TORCH_LIB_DIR}/libc10.so")

  # torch's packages bring their own libgomp, under one of several names; where they do not, it is the compiler's.
  file(GLOB _gomp "${CONTEXTPOOL_TORCH_LIB_DIR}/libgomp*.so*")
  add_library(contextpool::torch_openmp INTERFACE IMPORTED)
  target_compile_options(contextpool::torch_openmp INTERFACE -fopenmp)
  if(_gomp)
    target_link_libraries(contextpool::torch_openmp INTERFACE ${_gomp})
  else()
    target_link_options(contextpool::torch_openmp INTERFACE -fopenmp)
  endif()
endif()
