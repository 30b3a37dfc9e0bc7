// The optional graphs of a bundle on ONNX Runtime: they read whole sentences, finished translations among them.
//
// These are plain runs of some sentences at a time on the CPU, also beside an engine on a GPU: nothing is kept from one
// to the next. txport.runtime.engines.teacher_forcing is the same in Python.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bundle/manifest.hpp"
#include "engine.hpp"
#include "text/alignment.hpp"

namespace txport::core {

// What the decoder makes of one translation.
struct Reading {
  std::vector<float> log_probabilities;  // natural logarithms, of each id of the translation
  CrossAttention cross;                  // empty if it was not asked for
};

// The graphs of the optional roles, each loaded at its first use. Threads may share one. Methods throw ResourceError,
// EngineError and MissingLibrary as an engine's.
class TeacherForcing {
 public:
  TeacherForcing() = default;
  virtual ~TeacherForcing() = default;
  TeacherForcing(const TeacherForcing&) = delete;
  TeacherForcing& operator=(const TeacherForcing&) = delete;

  // What the decoder makes of translations (without bos) of sources, of which neither is empty: `take` gets each with
  // its number, in the order in which they are computed. `cross`: cross-attention as well.
  virtual void read(const std::vector<EncoderInput>& sources, const std::vector<Ids>& targets, bool cross,
                    const std::function<void(std::size_t, Reading)>& take) const = 0;

  // The encoder's output `[source ids, d_model]` for each source, likewise.
  virtual void memories(const std::vector<Ids>& sources,
                        const std::function<void(std::size_t, FloatMatrix)>& take) const = 0;
};

// Throws BundleError: a bundle has no graph of this role, kDecoder or kEncoderAttention. MissingLibrary: this build of
// txport cannot run it.
void check_has(const Bundle& bundle, const Manifest& manifest, const std::string& role);

// Of a bundle and the engine that runs it, which must outlive this; `threads`: of each operator, 0 for as many as there
// are cores. Null in a build without ONNX Runtime.
std::unique_ptr<TeacherForcing> make_teacher_forcing(const Bundle& bundle, const Manifest& manifest,
                                                     const Engine& engine, int threads);

// Of sources and targets of these lengths: rows of about one length, the longest targets first, as many in a batch as
// there may be: of rows, and of `numbers` (of a source's and a target's length) that each row has at most.
std::vector<std::vector<std::size_t>> batches_of(const std::vector<std::size_t>& sources,
                                                 const std::vector<std::size_t>& targets, std::int64_t most_rows,
                                                 const std::function<std::size_t(std::size_t, std::size_t)>& numbers);

}  // namespace txport::core
