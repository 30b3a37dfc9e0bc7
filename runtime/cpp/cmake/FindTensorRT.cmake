# TensorRT: the headers of its runtime, 8.6 or newer, and those of CUDA that they include. Nothing is linked: txport
# opens the library when it runs. Looks in TENSORRT_ROOT and CUDA_ROOT (variables, or of the environment) first.
find_path(TensorRT_INCLUDE_DIR NvInferRuntime.h HINTS ${TENSORRT_ROOT} $ENV{TENSORRT_ROOT} PATH_SUFFIXES include)
find_path(TensorRT_CUDA_INCLUDE_DIR cuda_runtime_api.h
  HINTS ${CUDA_ROOT} $ENV{CUDA_ROOT} $ENV{CUDA_HOME} PATHS /usr/local/cuda PATH_SUFFIXES include)
mark_as_advanced(TensorRT_INCLUDE_DIR TensorRT_CUDA_INCLUDE_DIR)

# "8.6.1"; from 10.13 on the numbers have names of their own.
if(TensorRT_INCLUDE_DIR)
  file(READ "${TensorRT_INCLUDE_DIR}/NvInferVersion.h" text)
  foreach(part MAJOR MINOR PATCH)
    if(text MATCHES "define (TRT_${part}_ENTERPRISE|NV_TENSORRT_${part}) ([0-9]+)")
      list(APPEND TensorRT_VERSION ${CMAKE_MATCH_2})
    endif()
  endforeach()
  list(JOIN TensorRT_VERSION "." TensorRT_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TensorRT
  REQUIRED_VARS TensorRT_INCLUDE_DIR TensorRT_CUDA_INCLUDE_DIR VERSION_VAR TensorRT_VERSION)
