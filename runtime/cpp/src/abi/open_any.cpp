#include "abi/open.hpp"
#include "engines/choice.hpp"

namespace txport::abi {

std::unique_ptr<core::Engine> open_asked(const std::filesystem::path& bundle, const core::Manifest& manifest,
                                         const EngineRequest& request) {
  core::Choice choice = core::choose(bundle, manifest, {request.device, request.engine, request.lowering});
  return core::open_engine(bundle, manifest, choice, request.share, request.warn);
}

}  // namespace txport::abi
