# What leaves the build tree: a Python package (when scikit-build-core calls, `make wheel`), or a CMake package
# (`cmake --install`), which the build tree itself is too.
set_target_properties(contextpool_ops PROPERTIES BUILD_WITH_INSTALL_RPATH ON)

if(SKBUILD)
  # site-packages/contextpool/lib finds site-packages/torch/lib, wherever that is.
  set_target_properties(contextpool_ops PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib")
  install(TARGETS contextpool_ops LIBRARY DESTINATION contextpool/lib)
  foreach(_file IN LISTS CONTEXTPOOL_PYTHON)
    get_filename_component(_folder "contextpool/${_file}" DIRECTORY)
    install(FILES "${PROJECT_SOURCE_DIR}/python/contextpool/${_file}" DESTINATION "${_folder}")
  endforeach()
  install(FILES "${PROJECT_BINARY_DIR}/python/contextpool/_build.py" DESTINATION contextpool)
  return()
endif()

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/ContextPool")
set_target_properties(contextpool_ops PROPERTIES INSTALL_RPATH "${CONTEXTPOOL_TORCH_LIB_DIR}")
install(TARGETS contextpool_ops contextpool_nn EXPORT ContextPool LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
                                                                  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
file(RELATIVE_PATH _library "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
set_target_properties(contextpool PROPERTIES INSTALL_RPATH "$ORIGIN/${_library};${CONTEXTPOOL_TORCH_LIB_DIR}")
install(TARGETS contextpool RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
set(_headers "${PROJECT_SOURCE_DIR}/include/contextpool")
install(FILES "${_headers}/export.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/contextpool")
install(DIRECTORY "${_headers}/ops" "${_headers}/nn" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/contextpool")
install(EXPORT ContextPool NAMESPACE ContextPool:: FILE ContextPoolTargets.cmake DESTINATION "${_package}")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/ContextPoolConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/ContextPoolConfig.cmake" INSTALL_DESTINATION "${_package}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/ContextPoolConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/ContextPoolConfig.cmake" "${PROJECT_BINARY_DIR}/ContextPoolConfigVersion.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/Torch.cmake" DESTINATION "${_package}")

export(EXPORT ContextPool NAMESPACE ContextPool:: FILE "${PROJECT_BINARY_DIR}/ContextPoolTargets.cmake")
configure_file("${CMAKE_CURRENT_LIST_DIR}/Torch.cmake" "${PROJECT_BINARY_DIR}/Torch.cmake" COPYONLY)
