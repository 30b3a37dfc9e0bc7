// An engine whose state never leaves its device: written once for every library that runs on one.
//
// A library adds a program; buffers, buckets, the tokens that the host reads after each group of steps, refilling and
// moving rows are here. All work is enqueued on one stream, in order, so the host waits only when it reads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "../engine.hpp"
#include "bundle/manifest.hpp"
#include "device/program.hpp"

namespace txport::core {

// A bundle as a library has loaded it.
struct DeviceParts {
  std::string name;     // of the engine, for people
  Limits limits;        // of its buckets
  std::string id_type;  // int32 or int64: the library's type for the manifest's int64
  std::string lowering;
  std::shared_ptr<Device> device;
  std::unique_ptr<Program> program;
  std::function<void(const std::string&)> warn;  // called once, in the thread of a call, if steps cannot be captured
};

std::unique_ptr<Engine> make_device_engine(const Manifest& manifest, DeviceParts parts);

}  // namespace txport::core
