// Any bytes are a golden.json or are refused by a BundleError; nothing else.

#include "bundle/golden.hpp"
#include "errors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  try {
    txport::core::parse_golden({reinterpret_cast<const char*>(bytes), size}, "golden.json");
  } catch (const txport::core::BundleError&) {
  }
  return 0;
}
