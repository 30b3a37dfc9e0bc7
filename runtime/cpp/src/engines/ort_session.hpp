// Sessions of ONNX Runtime, and helpers for its C++ API.
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include "bundle/manifest.hpp"
#include "engines/choice.hpp"

namespace txport::core {

// An element type of ONNX Runtime, and its size in bytes.
struct Type {
  ONNXTensorElementDataType onnx;
  std::size_t bytes;
};
Type type_of(const std::string& dtype);

// Return the first line of ONNX Runtime's message without error codes and source locations. For CUDA failures, return
// only the failure and its reason: "CUDA failure 35: CUDA driver version is insufficient".
std::string reason(const std::exception& error);

// Return ONNX Runtime's environment of this process. Throws MissingLibrary: the library cannot be loaded.
Ort::Env& environment();

// Return the version that ONNX Runtime reports.
std::string onnxruntime_version();

// The sessions of a bundle. They are opened in parallel, since each packs its weights when it opens.
struct OrtSessions {
  std::string name;  // library, device and lowering, for messages
  // Mutable because Run is not const in the C++ API. The underlying function may be called by several threads at once.
  mutable Ort::Session encoder;
  mutable Ort::Session step;
  Graph step_graph;
};

// Open the encoder and the first of the chosen lowerings that ONNX Runtime can load. `stream` is the cudaStream_t for
// the CUDA provider, only used with device cuda. Throws BundleError: ONNX Runtime cannot load a graph, or the graph
// contradicts the manifest; ResourceError: memory does not suffice; MissingLibrary: this ONNX Runtime has no CUDA
// provider, or the provider does not start.
OrtSessions open_sessions(const Bundle& bundle, const Manifest& manifest, const Choice& choice, int threads,
                          void* stream);

// Open another graph of a bundle on the CPU. Throws the errors of `open_sessions`.
Ort::Session open_on_cpu(const Bundle& bundle, const Graph& graph, int threads);

// The session of the beam search step, opened at its first use. Threads may share one object.
class BeamSession {
 public:
  // `device`, `threads` and `stream` are as in `open_sessions`.
  BeamSession(Bundle bundle, const Manifest& manifest, std::string device, int threads, void* stream);

  // Return the session. Null if the bundle does not have the graph, or if ONNX Runtime is older than 1.25 and does not
  // support its opset; beams are then ordinary rows. Otherwise throws the errors of `open_sessions`.
  Ort::Session* open() const;
  // Return its graph. Only valid if `open` returns a session.
  const Graph& graph() const { return *graph_; }

 private:
  const Bundle bundle_;
  const std::optional<Graph> graph_;
  const std::string device_;
  const int threads_;
  void* const stream_;
  mutable std::once_flag opened_;
  mutable std::optional<Ort::Session> session_;
};

// Run a session with bound tensors. Throws EngineError: ONNX Runtime failed; MissingLibrary: its CUDA provider cannot
// find cuDNN; ResourceError: memory does not suffice.
void run(Ort::Session& session, const Ort::RunOptions& options, const Ort::IoBinding& binding);

// Return the path of ONNX Runtime's CUDA provider, which is in the folder of the library.
std::filesystem::path cuda_provider();

// Return the reason why ONNX Runtime cannot start the CUDA provider: a missing library, a driver for an older CUDA, or
// otherwise the `reported` reason.
std::string why_no_cuda(const std::filesystem::path& provider, const std::string& reported = "");

// Return whether this ONNX Runtime has its CUDA provider.
bool has_cuda_provider();

}  // namespace txport::core
