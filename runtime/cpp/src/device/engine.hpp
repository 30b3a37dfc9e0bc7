// An engine whose state never leaves its device: written once for every library that runs on one.
//
// A library adds two programs, encoder and step; buffers, buckets, the ring of tokens that the host polls every few
// steps, refilling and moving rows are here.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bundle/manifest.hpp"
#include "device/program.hpp"
#include "engine.hpp"

namespace txport::core {

// A bundle as a library has loaded it.
struct DeviceParts {
  std::string name;     // of the engine, for people
  Limits limits;        // of its buckets
  std::string id_type;  // int32 or int64: the library's type for the manifest's int64
  std::string lowering;
  MakeDevice make_device;
  std::unique_ptr<Program> encoder;
  std::unique_ptr<Program> step;
  std::function<void(const std::string&)> warn;  // called once, in the thread of a call, if steps cannot be captured
};

std::unique_ptr<Engine> make_device_engine(const Manifest& manifest, DeviceParts parts);

}  // namespace txport::core
