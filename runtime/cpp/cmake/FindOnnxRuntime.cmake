# ONNX Runtime: OnnxRuntime::OnnxRuntime. Looks in ONNXRUNTIME_ROOT (a variable, or one of the environment) first: an
# unpacked release, or a folder with include/ and lib/ as `make cpp` makes it.
find_path(OnnxRuntime_INCLUDE_DIR onnxruntime_cxx_api.h
  HINTS ${ONNXRUNTIME_ROOT} $ENV{ONNXRUNTIME_ROOT}
  PATH_SUFFIXES include include/onnxruntime include/onnxruntime/core/session onnxruntime onnxruntime/core/session)
find_library(OnnxRuntime_LIBRARY NAMES onnxruntime HINTS ${ONNXRUNTIME_ROOT} $ENV{ONNXRUNTIME_ROOT} PATH_SUFFIXES lib lib64)
mark_as_advanced(OnnxRuntime_INCLUDE_DIR OnnxRuntime_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OnnxRuntime REQUIRED_VARS OnnxRuntime_LIBRARY OnnxRuntime_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Give the folder of ONNX Runtime's include/ and lib/: -DONNXRUNTIME_ROOT=... ")

if(OnnxRuntime_FOUND AND NOT TARGET OnnxRuntime::OnnxRuntime)
  add_library(OnnxRuntime::OnnxRuntime UNKNOWN IMPORTED)
  set_target_properties(OnnxRuntime::OnnxRuntime PROPERTIES
    IMPORTED_LOCATION "${OnnxRuntime_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${OnnxRuntime_INCLUDE_DIR}")
endif()
