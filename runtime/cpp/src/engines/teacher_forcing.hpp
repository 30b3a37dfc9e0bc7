// The optional graphs of a bundle on ONNX Runtime, which process complete sentences and complete translations.
//
// They run on the CPU, in batches without state, also together with an engine on a GPU. The Python twin is
// txport.runtime.engines.teacher_forcing.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bundle/manifest.hpp"
#include "engine.hpp"

namespace txport::core {

// Output of the decoder for one translation.
struct Reading {
  std::vector<float> log_probabilities;  // natural log-probability of each id
  CrossAttention cross;                  // empty if not requested
};

// The graphs of the optional roles, each loaded at its first use. Threads may share one object. Methods throw
// ResourceError, EngineError and MissingLibrary, as those of an engine do.
class TeacherForcing {
 public:
  TeacherForcing() = default;
  virtual ~TeacherForcing() = default;
  TeacherForcing(const TeacherForcing&) = delete;
  TeacherForcing& operator=(const TeacherForcing&) = delete;

  // Run the decoder on sources and their translations (without bos), none of them empty. `take` is called with the
  // index and output of each translation, in the order of computation. `cross`: also return cross-attention.
  virtual void read(const std::vector<EncoderInput>& sources, const std::vector<Ids>& targets, bool cross,
                    const std::function<void(std::size_t, Reading)>& take) const = 0;

  // Compute the encoder output `[source ids, d_model]` of each source, in the same way.
  virtual void memories(const std::vector<Ids>& sources,
                        const std::function<void(std::size_t, FloatMatrix)>& take) const = 0;
};

// Check that a bundle has the graph of a role, kDecoder or kEncoderAttention. Throws BundleError: it does not;
// MissingLibrary: this build of txport cannot run it.
void check_has(const Bundle& bundle, const Manifest& manifest, const std::string& role);

// Open the optional graphs of a bundle. `engine` runs the bundle and must outlive the result. `threads`: threads of
// each operator, 0 for one per core. Returns null in a build without ONNX Runtime.
std::unique_ptr<TeacherForcing> make_teacher_forcing(const Bundle& bundle, const Manifest& manifest,
                                                     const Engine& engine, int threads);

// Group rows of similar length in batches, the longest targets first, by the lengths of sources and targets. A batch
// has up to `max_rows` rows. `numbers` returns how many values a row of given source and target length needs; their
// total is also limited.
std::vector<std::vector<std::size_t>> batches_of(const std::vector<std::size_t>& sources,
                                                 const std::vector<std::size_t>& targets, std::int64_t max_rows,
                                                 const std::function<std::size_t(std::size_t, std::size_t)>& numbers);

}  // namespace txport::core
