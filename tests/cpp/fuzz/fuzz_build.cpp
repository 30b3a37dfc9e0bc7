// Any bytes are the record of a build or are refused by a BundleError; nothing else.

#include <string_view>

#include "engines/build_record.hpp"
#include "errors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  try {
    txport::core::BuildRecord::parse({reinterpret_cast<const char*>(bytes), size});
  } catch (const txport::core::BundleError&) {
  }
  return 0;
}
