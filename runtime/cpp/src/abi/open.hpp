// The engines that a library of ours can open: open_fused.cpp is libtxport_engine's answer, open_any.cpp libtxport's.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "bundle/manifest.hpp"
#include "cores.hpp"
#include "engine.hpp"

namespace txport::abi {

// What an application asks for, in the words of txport.h.
struct EngineRequest {
  std::string device;
  std::string engine;
  std::string lowering;
  core::CpuShare share;
  std::function<void(const std::string&)> warn;
};

// Throws InputError: this library has no such engine. Else as core::choose and core::open_engine.
std::unique_ptr<core::Engine> open_asked(const std::filesystem::path& bundle, const core::Manifest& manifest,
                                         const EngineRequest& request);

}  // namespace txport::abi
