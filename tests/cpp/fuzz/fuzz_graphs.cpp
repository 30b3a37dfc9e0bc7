// Any bytes are a graph that tx-export may have written or are refused by a BundleError; nothing else.

#include <string_view>

#include "bundle/graph_rules.hpp"
#include "errors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const std::string_view model(reinterpret_cast<const char*>(bytes), size);
  try {
    txport::core::check_graph(model, 4096);
  } catch (const txport::core::BundleError&) {
  }
  return 0;
}
