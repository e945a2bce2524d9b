# contextpool_layer(<name> SOURCES ... LIBRARIES ...): the library contextpool_<name> of a layer above ops, public headers
# under include/, its own under src/. contextpool_pch(<target>): compiles a target with the shared precompiled header.
# All of them need the same flags, those of executables too, or the header is not taken. Their inline functions are not
# hidden: libtorch_cuda looks for some of them in the program.
set(_upper_flags -fpch-preprocess -fPIC $<$<BOOL:${CONTEXTPOOL_QUICK_BUILD}>:-O1>)
add_library(contextpool_torch_header OBJECT "${PROJECT_SOURCE_DIR}/src/torch_header.cpp")
target_link_libraries(contextpool_torch_header PRIVATE contextpool::torch_cpu)
target_precompile_headers(contextpool_torch_header PRIVATE <torch/torch.h>)
set_target_properties(contextpool_torch_header PROPERTIES VISIBILITY_INLINES_HIDDEN OFF)
target_compile_options(contextpool_torch_header PRIVATE ${_upper_flags})

function(contextpool_pch target)
  target_compile_options(${target} PRIVATE ${_upper_flags})
  target_precompile_headers(${target} REUSE_FROM contextpool_torch_header)
  set_target_properties(${target} PROPERTIES VISIBILITY_INLINES_HIDDEN OFF)
endfunction()

function(contextpool_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(contextpool_${name} STATIC ${ARG_SOURCES})
  add_library(ContextPool::${name} ALIAS contextpool_${name})
  target_compile_features(contextpool_${name} PUBLIC cxx_std_20)
  target_include_directories(contextpool_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                        $<INSTALL_INTERFACE:include> PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(contextpool_${name} PUBLIC ${ARG_LIBRARIES})
  set_target_properties(contextpool_${name} PROPERTIES EXPORT_NAME ${name})
  contextpool_pch(contextpool_${name})
endfunction()
