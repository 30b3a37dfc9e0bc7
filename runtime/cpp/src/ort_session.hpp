// One graph opened by ONNX Runtime, and what its C++ API needs from us.
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "manifest.hpp"

namespace txport::core {

// ONNX Runtime's name of a type of ours, and the bytes of one item.
struct Type {
  ONNXTensorElementDataType onnx;
  std::size_t bytes;
};
Type type_of(const std::string& dtype);

// The first line of ONNX Runtime's message, without its error codes and C++ source locations.
std::string reason(const std::exception& error);

// The process's one environment of ONNX Runtime. Throws InputError: the library cannot be loaded.
Ort::Env& environment();

// The version of ONNX Runtime, as it calls itself.
std::string onnxruntime_version();

// Holds the threads of sessions back until all sessions are open. Opening one uses none of them, but ONNX Runtime's
// threads begin by looking for work in a loop, and took a third of the time of two cores from those that open.
class Gate {
 public:
  void open();
  void wait();

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

// Opens a gate when its scope ends.
class GateOpener {
 public:
  explicit GateOpener(Gate& gate) : gate_(gate) {}
  ~GateOpener() { gate_.open(); }
  GateOpener(const GateOpener&) = delete;
  GateOpener& operator=(const GateOpener&) = delete;

 private:
  Gate& gate_;
};

// Open one graph of a bundle; its threads begin when the gate is opened.
// Throws BundleError: ONNX Runtime does not load it, or it is not what the manifest says. InputError: the device is not
// there.
Ort::Session open_session(const std::filesystem::path& directory, const Graph& graph, const std::string& device,
                          int threads, const std::shared_ptr<Gate>& gate);

}  // namespace txport::core
