// Both sessions map the weights file of the bundle into memory.

#include "engines/ort.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "bundle/interface.hpp"
#include "engines/ort_beams.hpp"
#include "engines/ort_cuda.hpp"
#include "engines/ort_state.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

// The beam search step and its buffers, opened at the first use; see BeamSession.
class LazyBeams {
 public:
  LazyBeams(const Bundle& bundle, const Manifest& manifest, int threads)
      : session_(bundle, manifest, "cpu", threads, nullptr), encoder_(manifest.encoder()), tokens_(manifest.tokens) {}

  const OrtSteps* steps() {
    std::call_once(opened_, [this] {
      Ort::Session* session = session_.open();
      if (session == nullptr) return;
      buffers_.emplace(encoder_, session_.graph());
      steps_.emplace(OrtSteps{*buffers_, *session, tokens_});
    });
    return steps_ ? &*steps_ : nullptr;
  }

 private:
  const BeamSession session_;
  const Graph encoder_;
  const SpecialTokens tokens_;
  std::optional<OrtBuffers> buffers_;
  std::optional<OrtSteps> steps_;
  std::once_flag opened_;
};

class OrtEngine : public Engine {
 public:
  OrtEngine(const Bundle& bundle, const Manifest& manifest, OrtSessions sessions, int threads)
      : limits_(manifest.limits()),
        vocabulary_(manifest.model.target_vocabulary),
        feature_size_(manifest.model.feature_size.value_or(1)),
        sessions_(std::move(sessions)),
        buffers_(manifest.encoder(), sessions_.step_graph),
        steps_{buffers_, sessions_.step, manifest.tokens},
        beams_(bundle, manifest, threads) {}

  const std::string& name() const override { return sessions_.name; }
  const Limits& limits() const override { return limits_; }
  const SpecialTokens& tokens() const override { return steps_.tokens; }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::int64_t poll() const override { return 1; }  // reading tokens costs nothing on the CPU
  // The lowering "ort" reads only the used part of a cache, so longer caches only cost memory. Caches as long as the
  // sources avoid most moves.
  std::int64_t first_target(std::int64_t source) const override {
    std::int64_t target = kFirstTarget;
    while (buffers_.step().lowering == "ort" && target <= source) target *= 2;
    return target;
  }

  std::shared_ptr<const Memory> encode(const Ids& input_ids, const Ids& source_lengths) const override {
    return encode_to_host(input_ids, source_lengths);
  }

  std::shared_ptr<const Memory> encode_features(const std::vector<float>& features,
                                                const Ids& source_lengths) const override {
    return encode_to_host(features, source_lengths);
  }

  // Encode ids `[batch, source]`, or vectors `[batch, source, feature_size]`.
  template <typename Number>
  std::shared_ptr<const OrtMemory> encode_to_host(const std::vector<Number>& sources, const Ids& source_lengths) const {
    const char* name = std::is_same_v<Number, float> ? kFeatures : kInputIds;
    const auto batch = static_cast<std::int64_t>(source_lengths.size());
    const std::int64_t each = std::is_same_v<Number, float> ? feature_size_ : 1;
    const std::int64_t source = static_cast<std::int64_t>(sources.size()) / batch / each;
    const HostTensors inputs = buffers_.encoder_inputs(batch, source);
    auto memory = std::make_shared<OrtMemory>(buffers_.encoder_outputs(batch, source));
    std::copy(sources.begin(), sources.end(), inputs.at(name).as<Number>());
    std::copy(source_lengths.begin(), source_lengths.end(), inputs.at("source_lengths").as<std::int64_t>());
    Ort::IoBinding binding(sessions_.encoder);
    for (const auto& [name, tensor] : inputs) binding.BindInput(name.c_str(), tensor.value());
    for (const auto& [name, tensor] : memory->tensors()) binding.BindOutput(name.c_str(), tensor.value());
    run(sessions_.encoder, Ort::RunOptions{nullptr}, binding);
    return memory;
  }

  std::unique_ptr<DecoderState> allocate(std::size_t rows, std::int64_t source, std::int64_t target,
                                         const Outputs& outputs) const override {
    if (const OrtSteps* steps = outputs.beams > 1 ? beams_.steps() : nullptr) {
      return std::make_unique<OrtBeams>(*steps, BeamSizes{rows / outputs.beams, outputs.beams, source, target},
                                        outputs);
    }
    HostTensors tensors = buffers_.state(rows, source, target, outputs.any_logits());
    return std::make_unique<OrtState>(steps_, std::move(tensors), rows, source, target);
  }

 private:
  const Limits limits_;
  const std::int64_t vocabulary_;
  const std::int64_t feature_size_;
  const OrtSessions sessions_;
  const OrtBuffers buffers_;
  const OrtSteps steps_;
  mutable LazyBeams beams_;
};

}  // namespace

std::unique_ptr<Engine> open_ort(const Bundle& bundle, const Manifest& manifest, const Choice& choice,
                                 const CpuShare& share, const std::function<void(const std::string&)>& warn) {
  if (choice.device == "cuda") {
#ifdef TXPORT_WITH_CUDA
    return open_ort_cuda(bundle, manifest, choice, warn);
#else
    (void)warn;
    throw MissingLibrary(
        "this build of txport has no CUDA: configure it with -DTXPORT_WITH_CUDA=ON, or use device cpu");
#endif
  }
  return std::make_unique<OrtEngine>(bundle, manifest, open_sessions(bundle, manifest, choice, share.threads, nullptr),
                                     share.threads);
}

template <typename Number>
std::shared_ptr<const OrtMemory> encode_on_host(const Engine& engine, const std::vector<Number>& sources,
                                                const Ids& source_lengths) {
  const auto* ort_engine = dynamic_cast<const OrtEngine*>(&engine);
  return ort_engine == nullptr ? nullptr : ort_engine->encode_to_host(sources, source_lengths);
}
template std::shared_ptr<const OrtMemory> encode_on_host(const Engine&, const Ids&, const Ids&);
template std::shared_ptr<const OrtMemory> encode_on_host(const Engine&, const std::vector<float>&, const Ids&);

}  // namespace txport::core
