// One graph opened by ONNX Runtime, and what its C++ API needs from us.
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

// ONNX Runtime's name of a type of ours, and the bytes of one item.
struct Type {
  ONNXTensorElementDataType onnx;
  std::size_t bytes;
};
Type type_of(const std::string& dtype);

// The first line of ONNX Runtime's message, without its error codes and C++ source locations; of a failure of CUDA what
// failed and why, as "CUDA failure 35: CUDA driver version is insufficient".
std::string reason(const std::exception& error);

// The process's one environment of ONNX Runtime. Throws MissingLibrary: the library cannot be loaded.
Ort::Env& environment();

// The version of ONNX Runtime, as it calls itself.
std::string onnxruntime_version();

// The sessions of a bundle, opened side by side, since each packs its weights as it opens.
struct OrtSessions {
  std::string name;  // of the library, where it runs and the lowering, for people
  // Mutable because the C++ API declares Run as not const; the function under it may be called by many threads at once.
  mutable Ort::Session encoder;
  mutable Ort::Session step;
  Graph step_graph;
};

// Open the encoder and the first of the chosen lowerings that ONNX Runtime loads. `stream` is the cudaStream_t that its
// CUDA provider works on; of use for device cuda only.
// Throws BundleError: ONNX Runtime does not load one, or it contradicts the manifest. ResourceError: for want of
// memory. MissingLibrary: this ONNX Runtime has no CUDA provider, or one that does not start.
OrtSessions open_sessions(const Bundle& bundle, const Manifest& manifest, const Choice& choice, int threads,
                          void* stream);

// Open one more graph of a bundle on the CPU. Throws as `open_sessions`.
Ort::Session open_on_cpu(const Bundle& bundle, const Graph& graph, int threads);

// The session of the step of beam search, opened when it is first needed. Threads may share one.
class BeamSession {
 public:
  // `device`, `threads` and `stream` as of `open_sessions`.
  BeamSession(Bundle bundle, const Manifest& manifest, std::string device, int threads, void* stream);

  // Null for a bundle without it, and for an ONNX Runtime before 1.25, which does not support its opset: the rows of a
  // sentence are then ordinary rows. Throws as `open_sessions` otherwise.
  Ort::Session* open() const;
  // Its graph, if `open` gives a session.
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

// Run a session over what is bound. Throws EngineError: ONNX Runtime failed. MissingLibrary: its CUDA provider does not
// find cuDNN. ResourceError: for want of memory.
void run(Ort::Session& session, const Ort::RunOptions& options, const Ort::IoBinding& binding);

// The file of ONNX Runtime's CUDA provider, which lies beside the library.
std::filesystem::path cuda_provider();

// Why ONNX Runtime could not start that provider: a library that is missing, a driver for an older CUDA, or the reason
// that was given.
std::string why_no_cuda(const std::filesystem::path& provider, const std::string& given = "");

// Whether this ONNX Runtime has its CUDA provider.
bool has_cuda_provider();

}  // namespace txport::core
