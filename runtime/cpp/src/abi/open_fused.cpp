#include "abi/open.hpp"
#include "errors.hpp"
#include "fused/engine.hpp"

namespace txport::abi {

std::unique_ptr<core::Engine> open_asked(const std::filesystem::path& bundle, const core::Manifest& manifest,
                                         const EngineRequest& request) {
  const bool here = request.device != "cuda" && (request.engine == "auto" || request.engine == "fused");
  if (!here || !request.lowering.empty()) {
    throw core::InputError(
        "libtxport_engine has the fused engine alone, for the CPU: leave device, engine and lowering "
        "out, or load libtxport, which has them all");
  }
  return core::open_fused(bundle, manifest, request.share);
}

}  // namespace txport::abi
