// Any description of a model over any weights is refused as the bundle's fault or the caller's, or the fused engine
// runs it: the largest source ids, as many tokens as there may be, and every step chooses one of the target's tokens.

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "abi/described_model.hpp"
#include "abi/engine.hpp"
#include "fused/random_model.hpp"
#include "fuzz/choices.hpp"

using namespace txport::core;
using random_model::RandomModel;

namespace {

constexpr std::int64_t kPositions = 20;

const RandomModel& base(std::size_t choice) {
  static const auto model = [](bool int8, bool float16, bool tied) {
    random_model::Options options;
    options.int8 = int8;
    options.float16 = float16;
    options.tied = options.shared = tied;
    options.encoder_layers = 1;
    options.embedding_norm = tied;
    options.norm = tied ? "post" : "pre";
    if (!tied) options.rms = options.gated = true, options.relative = float16 ? "layer" : "stack";
    return options;
  };
  static const std::array<RandomModel, 4> models{
      RandomModel(model(false, false, true), 1), RandomModel(model(true, false, true), 2),
      RandomModel(model(true, false, false), 3), RandomModel(model(false, true, false), 4)};
  return models.at(choice);
}

void change_table(Parameters& parameters, Choices& choices) {
  std::vector<Parameter>& tensors = parameters.tensors;
  Parameter& tensor = tensors[choices.below(tensors.size())];
  const auto change = [&](std::int64_t& number) { number = choices.number(number); };
  const auto change_one = [&](std::vector<std::int64_t>& numbers) {
    if (!numbers.empty()) change(numbers[choices.below(numbers.size())]);  // an earlier change may have removed all
  };
  switch (choices.below(7)) {
    case 0:
      return change(tensor.offset);
    case 1:
      return change_one(tensor.shape);
    case 2:
      return change_one(tensor.strides);
    case 3:
      tensor.scales = choices.number(tensor.scales.value_or(0));
      return;
    case 4:
      tensor.dtype = std::array{"float32", "float16", "int8", "int4"}.at(choices.below(4));
      return;
    case 5:
      tensor.shape.resize(choices.below(3), 1);
      tensor.strides.resize(tensor.shape.size(), 1);
      return;
    default:
      tensors.erase(tensors.begin() + (&tensor - tensors.data()));
  }
}

void change_sizes(ModelFile& model, Choices& choices) {
  ModelSizes& sizes = model.sizes;
  const std::array numbers{
      &sizes.encoder_layers, &sizes.decoder_layers, &sizes.d_model,           &sizes.heads,
      &sizes.head_dim,       &sizes.encoder_heads,  &sizes.source_vocabulary, &sizes.target_vocabulary,
      &model.limits.source,  &model.limits.target,  &model.limits.batch,      &model.tokens.pad,
      &model.tokens.unk,     &model.tokens.bos,     &model.tokens.eos,        &model.bytes};
  std::int64_t& number = *numbers.at(choices.below(numbers.size()));
  number = choices.number(number);
}

// Weights of a model's file that are other ones while this lives.
class ChangedWeights {
 public:
  ChangedWeights(const RandomModel& model, Choices& choices)
      : file_(model.directory() / kWeightsName, std::ios::in | std::ios::out | std::ios::binary) {
    const auto size = static_cast<std::size_t>(model.manifest.files.at(kWeightsName).bytes);
    while (choices.any() && before_.size() < 100) {
      const auto at = static_cast<std::streamoff>((choices.below(65536) << 8U | choices.below(256)) % size);
      file_.seekg(at);
      before_.push_back({at, static_cast<char>(file_.get())});
      write(at, static_cast<char>(choices.below(256)));
    }
    file_.flush();
  }
  ~ChangedWeights() {
    std::for_each(before_.rbegin(), before_.rend(), [this](const Byte& byte) { write(byte.at, byte.value); });
  }
  ChangedWeights(const ChangedWeights&) = delete;
  ChangedWeights& operator=(const ChangedWeights&) = delete;

 private:
  struct Byte {
    std::streamoff at;
    char value;
  };
  std::fstream file_;
  std::vector<Byte> before_;

  void write(std::streamoff at, char value) {
    file_.seekp(at);
    file_.put(value);
  }
};

// Sentences of the largest and the smallest ids, the longest beside one of one token.
void translate(const Engine& engine, const ModelSizes& sizes, bool logits) {
  const std::int64_t width = std::min(engine.limits().source, kPositions);
  Ids ids(static_cast<std::size_t>(2 * width), sizes.source_vocabulary - 1);
  ids.back() = ids.front() = 0;
  const auto memory = engine.encode(ids, {width, 1});
  const std::int64_t target = std::min(engine.limits().target, kPositions);
  const auto state = engine.allocate(2, width, target, {logits});
  state->place({0, 1}, *memory, {0, 1}, {target, target});
  for (std::int64_t made = 0; made < target; ++made) {
    state->step(1);
    for (const std::int64_t id : state->read().token_ids) {
      if (id < 0 || id >= sizes.target_vocabulary) std::abort();
    }
    if (made + 1 < target) state->override_tokens({0, 1}, {sizes.target_vocabulary - 1, 0}, {false, false});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  Choices choices(bytes, size);
  const RandomModel& model = base(choices.below(4));
  ModelFile file = model.file();
  file.limits = {2, kPositions, kPositions};
  for (std::size_t changes = choices.below(4); changes > 0 && !file.parameters.tensors.empty(); --changes) {
    choices.below(2) == 0 ? change_table(file.parameters, choices) : change_sizes(file, choices);
  }
  const bool logits = choices.below(2) == 0;
  const ChangedWeights changed(model, choices);
  const DescribedModel described(file);
  txport_engine_options how = TXPORT_ENGINE_OPTIONS_INIT;
  how.threads = 1;
  txport_engine_handle* engine = nullptr;
  const txport_code code = txport_engine_create(&described.fields, &how, &engine);
  if (code != TXPORT_OK && code != TXPORT_BUNDLE_ERROR && code != TXPORT_INPUT_ERROR) std::abort();
  if (engine != nullptr && file.limits.batch > 1) translate(*engine->engine, file.sizes, logits);
  txport_engine_close(engine);
  return 0;
}
