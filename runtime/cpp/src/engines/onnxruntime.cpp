#include "engines/onnxruntime.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "errors.hpp"
#include "system/system.hpp"

namespace txport::core {

namespace {

constexpr const char* kVariable = "TXPORT_ONNXRUNTIME";

std::string library_name() {
  const std::string named = variable(kVariable);
  return named.empty() ? "libonnxruntime.so.1" : named;
}

const OrtApiBase* load() {
  // ONNX Runtime 1.29 and newer send telemetry unless this variable is set before it starts. A translation library must
  // not send anything. To allow telemetry, set the variable to 0.
  ::setenv("ORT_DISABLE_TELEMETRY", "1",
           0);  // NOLINT(concurrency-mt-unsafe): called once, before the library is loaded
  const std::string name = library_name();
  // Never closed: sessions may live until the process ends.
  void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = library == nullptr ? nullptr : ::dlsym(library, "OrtGetApiBase");
  if (symbol == nullptr) {
    const char* reason = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc stores one per thread
    throw MissingLibrary("ONNX Runtime cannot be loaded (" + std::string(reason == nullptr ? name : reason) +
                         "): install it, or name the file in the environment variable " + kVariable);
  }
  const OrtApiBase* base = reinterpret_cast<decltype(&OrtGetApiBase)>(symbol)();
  if (base->GetApi(ORT_API_VERSION) == nullptr) {
    throw MissingLibrary("ONNX Runtime " + std::string(base->GetVersionString()) + " of " + name +
                         " is older than the headers that txport was built with (1." + std::to_string(ORT_API_VERSION) +
                         "): install that version or a newer one");
  }
  return base;
}

}  // namespace

const OrtApiBase& onnxruntime_library() {
  static const OrtApiBase* const base = load();
  return *base;
}

}  // namespace txport::core
