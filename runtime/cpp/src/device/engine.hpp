// The engine for devices, shared by all libraries that run on them. Its states stay on the device.
//
// A library provides a program. The device layer manages buffers and buckets, reads tokens after each group of steps,
// and refills and moves rows. All work is enqueued on one stream, in order, so the host waits only when it reads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "../engine.hpp"
#include "bundle/manifest.hpp"
#include "device/program.hpp"

namespace txport::core {

// A bundle that a library has loaded.
struct DeviceParts {
  std::string name;     // name of the engine, for messages
  Limits limits;        // maximum sizes of its buckets
  std::string id_type;  // int32 or int64: type of the library for tensors that are int64 in the manifest
  std::string lowering;
  std::shared_ptr<Device> device;
  std::unique_ptr<Program> program;
  std::function<void(const std::string&)> warn;  // called once, in the thread of a call, if steps cannot be captured
};

std::unique_ptr<Engine> make_device_engine(const Manifest& manifest, DeviceParts parts);

}  // namespace txport::core
