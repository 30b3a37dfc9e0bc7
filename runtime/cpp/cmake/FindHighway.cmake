# Google Highway, 1.2 or newer (SumOfMulQuadAccumulate): target Highway::Highway, an interface of its headers and of what
# must be compiled or linked with them. Looks in HIGHWAY_ROOT (a variable, or one of the environment) first: a source tree,
# as `make cpp` gets it; there the few sources that dispatch needs are compiled in. Else an installed library is linked.
find_path(Highway_INCLUDE_DIR hwy/highway.h HINTS ${HIGHWAY_ROOT} $ENV{HIGHWAY_ROOT})
mark_as_advanced(Highway_INCLUDE_DIR)
if(Highway_INCLUDE_DIR)
  foreach(file highway.h base.h)
    file(READ "${Highway_INCLUDE_DIR}/hwy/${file}" text)
    if(text MATCHES "define HWY_MAJOR ([0-9]+)[^#]*#define HWY_MINOR ([0-9]+)")
      set(Highway_VERSION ${CMAKE_MATCH_1}.${CMAKE_MATCH_2})
    endif()
  endforeach()
  if(EXISTS "${Highway_INCLUDE_DIR}/hwy/targets.cc")
    file(GLOB Highway_SOURCES "${Highway_INCLUDE_DIR}/hwy/abort.cc" "${Highway_INCLUDE_DIR}/hwy/targets.cc"
      "${Highway_INCLUDE_DIR}/hwy/per_target.cc")
  else()
    find_library(Highway_LIBRARY hwy HINTS ${HIGHWAY_ROOT} $ENV{HIGHWAY_ROOT})
    mark_as_advanced(Highway_LIBRARY)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Highway REQUIRED_VARS Highway_INCLUDE_DIR VERSION_VAR Highway_VERSION
  REASON_FAILURE_MESSAGE "Give the folder of its source tree: -DHIGHWAY_ROOT=... ")

if(Highway_FOUND AND NOT Highway_SOURCES AND NOT Highway_LIBRARY)
  set(Highway_FOUND FALSE)
endif()
if(Highway_FOUND AND NOT TARGET Highway::Highway)
  add_library(Highway::Highway INTERFACE IMPORTED)
  target_include_directories(Highway::Highway SYSTEM INTERFACE "${Highway_INCLUDE_DIR}")
  if(Highway_LIBRARY)
    target_link_libraries(Highway::Highway INTERFACE "${Highway_LIBRARY}")
  endif()
endif()
