# ONNX Runtime: its headers, and its library if there is one, which txport opens when it runs and does not link.
# Looks in ONNXRUNTIME_ROOT (a variable, or one of the environment) first: an unpacked release, or a folder with include/
# and lib/ as `make cpp` makes it.
find_path(OnnxRuntime_INCLUDE_DIR onnxruntime_cxx_api.h
  HINTS ${ONNXRUNTIME_ROOT} $ENV{ONNXRUNTIME_ROOT}
  PATH_SUFFIXES include include/onnxruntime include/onnxruntime/core/session onnxruntime onnxruntime/core/session)
find_library(OnnxRuntime_LIBRARY NAMES onnxruntime HINTS ${ONNXRUNTIME_ROOT} $ENV{ONNXRUNTIME_ROOT} PATH_SUFFIXES lib lib64)
mark_as_advanced(OnnxRuntime_INCLUDE_DIR OnnxRuntime_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OnnxRuntime REQUIRED_VARS OnnxRuntime_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Give the folder of ONNX Runtime's include/ and lib/: -DONNXRUNTIME_ROOT=... ")
