// Failures that libraries report in words of their own, as they do.

#include <doctest/doctest.h>

#include "errors.hpp"

using namespace txport::core;

TEST_CASE("a library's failure is about memory, or it is not") {
  for (const char* words :
       {"ONNX Runtime failed: Failed to allocate memory for requested buffer of size 17179869184",
        "ONNX Runtime failed: std::bad_alloc", "CUDA failure 2: out of memory", "CUDA_ERROR_OUT_OF_MEMORY",
        "TensorRT 10.3.0 failed: [resizingAllocator.cpp::allocate::74] Error Code 1: OutOfMemory",
        "the requested size could not be allocated"}) {
    CAPTURE(words);
    CHECK_THROWS_AS(throw_failure(words), ResourceError);
    CHECK_THROWS_AS(throw_failure<BundleError>(words), ResourceError);
  }
  CHECK_THROWS_AS(throw_failure("ONNX Runtime failed: Non-zero status code"), EngineError);
  CHECK_THROWS_AS(throw_failure<BundleError>("ONNX Runtime does not load a.onnx: no such operator"), BundleError);
}
