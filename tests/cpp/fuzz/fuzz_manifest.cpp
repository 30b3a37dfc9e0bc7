// Any bytes are a manifest or are refused by a BundleError; nothing else. What is made up is signed first, so that the
// manifest's own hash does not keep the fuzzer out.

#include <string>
#include <string_view>

#include "bundle/manifest.hpp"
#include "errors.hpp"
#include "repository.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const std::string data(reinterpret_cast<const char*>(bytes), size);
  for (const std::string& text : {data, sign(data)}) {
    try {
      txport::core::Manifest::parse(text);
    } catch (const txport::core::BundleError&) {
    }
  }
  return 0;
}
