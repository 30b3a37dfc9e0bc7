# libmd, for SHA-256: LibMd::LibMd. Debian and Ubuntu: apt install libmd-dev.
find_path(LibMd_INCLUDE_DIR sha2.h)
find_library(LibMd_LIBRARY md)
mark_as_advanced(LibMd_INCLUDE_DIR LibMd_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibMd REQUIRED_VARS LibMd_LIBRARY LibMd_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "On Debian and Ubuntu: apt install libmd-dev.")

if(LibMd_FOUND AND NOT TARGET LibMd::LibMd)
  add_library(LibMd::LibMd UNKNOWN IMPORTED)
  set_target_properties(LibMd::LibMd PROPERTIES
    IMPORTED_LOCATION "${LibMd_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${LibMd_INCLUDE_DIR}")
endif()
