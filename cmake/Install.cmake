# What leaves the build tree: a Python package (when scikit-build-core calls, `make wheel`), or a CMake package
# (`cmake --install`), which the build tree itself is too. Both have the program.
set_target_properties(contextpool_ops PROPERTIES BUILD_WITH_INSTALL_RPATH ON)

if(SKBUILD)
  # site-packages/contextpool/{lib,bin} find site-packages/torch/lib, wherever that is.
  set_target_properties(contextpool_ops PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib")
  set_target_properties(contextpool PROPERTIES INSTALL_RPATH "$ORIGIN/../lib;$ORIGIN/../../torch/lib")
  install(TARGETS contextpool_ops LIBRARY DESTINATION contextpool/lib)
  install(TARGETS contextpool RUNTIME DESTINATION contextpool/bin)
  # A wheel brings SentencePiece's libraries along (the program looks in $ORIGIN/../lib): few machines have them.
  foreach(_library IN LISTS CONTEXTPOOL_SENTENCEPIECE_LIBRARIES)
    if(_library MATCHES "\\.so")
      file(REAL_PATH "${_library}" _file)
      get_filename_component(_name "${_file}" NAME)
      string(REGEX REPLACE "(\\.so\\.[0-9]+).*" "\\1" _name "${_name}") # as programs ask for it
      install(PROGRAMS "${_file}" DESTINATION contextpool/lib RENAME "${_name}")
    endif()
  endforeach()
  foreach(_file IN LISTS CONTEXTPOOL_PYTHON)
    get_filename_component(_folder "contextpool/${_file}" DIRECTORY)
    install(FILES "${PROJECT_SOURCE_DIR}/python/contextpool/${_file}" DESTINATION "${_folder}")
  endforeach()
  install(FILES "${PROJECT_BINARY_DIR}/python/contextpool/_build.py" DESTINATION contextpool)
  # The command `contextpool`: the file behind `python -m contextpool`, without importing the package and torch first.
  install(PROGRAMS "${PROJECT_SOURCE_DIR}/python/contextpool/__main__.py" DESTINATION "${SKBUILD_SCRIPTS_DIR}"
          RENAME contextpool)
  return()
endif()

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/ContextPool")
list(TRANSFORM CONTEXTPOOL_LAYERS PREPEND contextpool_ OUTPUT_VARIABLE _layers)

# Where installed binaries look for torch: CMAKE_INSTALL_RPATH if it is set; else in the Python environment that the
# prefix is (if it is one), then where the torch is that this was built with.
set(_torch "${CMAKE_INSTALL_RPATH}")
set(_in_prefix "")
if(NOT _torch)
  set(_torch "${CONTEXTPOOL_TORCH_LIB_DIR}")
  if(_torch MATCHES "/(lib[^/]*/python[0-9.]+/[a-z]+-packages/torch/lib)$")
    set(_in_prefix "${CMAKE_MATCH_1}")
  endif()
endif()
function(contextpool_rpath target folder)
  file(RELATIVE_PATH _libraries "/${folder}" "/${CMAKE_INSTALL_LIBDIR}")
  set(_paths "$ORIGIN/${_libraries}")
  if(_in_prefix)
    file(RELATIVE_PATH _environment "/${folder}" "/${_in_prefix}")
    list(APPEND _paths "$ORIGIN/${_environment}")
  endif()
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${_paths};${_torch}")
endfunction()
contextpool_rpath(contextpool_ops "${CMAKE_INSTALL_LIBDIR}")
contextpool_rpath(contextpool "${CMAKE_INSTALL_BINDIR}")
cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${_torch}" NORMALIZE _in_source)
if(_in_source)
  install(CODE "if(NOT EXISTS \"\${CMAKE_INSTALL_PREFIX}/${_in_prefix}\")
    message(\"-- What is installed needs the torch in ${_torch}. Keep it, install into a Python environment that has \"
            \"torch (--prefix), or name another with cmake --preset default -DCMAKE_INSTALL_RPATH=TORCH/lib\")
  endif()")
endif()

install(TARGETS contextpool_ops ${_layers} EXPORT ContextPool LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
                                                              ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(TARGETS contextpool RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
set(_headers "${PROJECT_SOURCE_DIR}/include/contextpool")
install(FILES "${_headers}/export.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/contextpool")
foreach(_layer IN ITEMS ops ${CONTEXTPOOL_LAYERS})
  install(DIRECTORY "${_headers}/${_layer}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/contextpool")
endforeach()
install(EXPORT ContextPool NAMESPACE ContextPool:: FILE ContextPoolTargets.cmake DESTINATION "${_package}")
string(JOIN " " _components ${CONTEXTPOOL_LAYERS})
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/ContextPoolConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/ContextPoolConfig.cmake" INSTALL_DESTINATION "${_package}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/ContextPoolConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/ContextPoolConfig.cmake" "${PROJECT_BINARY_DIR}/ContextPoolConfigVersion.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/Torch.cmake" DESTINATION "${_package}")

export(EXPORT ContextPool NAMESPACE ContextPool:: FILE "${PROJECT_BINARY_DIR}/ContextPoolTargets.cmake")
configure_file("${CMAKE_CURRENT_LIST_DIR}/Torch.cmake" "${PROJECT_BINARY_DIR}/Torch.cmake" COPYONLY)
