// The fused engine of a model that the caller describes. The whole description is checked.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "abi/engine.hpp"
#include "abi/guard.hpp"
#include "abi/options.hpp"
#include "bundle/parameters.hpp"
#include "fused/engine.hpp"
#include "system/system.hpp"
#include "txport/engine.h"

namespace {

using namespace txport;
using abi::required;
using abi::within;

// Return the value of a field, which must be one of `choices`.
std::string choice_of(const char* value, std::initializer_list<const char*> choices, const char* name) {
  const std::string text = &required(value, name);
  for (const char* each : choices) {
    if (text == each) return text;
  }
  throw core::InputError(std::string(name) + " is " + core::quote(text) + ": use " + core::joined(choices));
}

core::Parameter parameter_of(const txport_parameter& fields) {
  const auto count = static_cast<std::size_t>(within(fields.dimensions, 1, 2, "txport_parameter.dimensions"));
  return {&required(fields.name, "txport_parameter.name"),
          choice_of(fields.dtype, {"float32", "float16", "int8"}, "txport_parameter.dtype"),
          fields.offset,
          core::Ids(fields.shape, fields.shape + count),
          core::Ids(fields.strides, fields.strides + count),
          fields.scales == -1 ? std::nullopt : std::optional(fields.scales)};
}

core::Parameters parameters_of(const txport_model& model) {
  core::Parameters result{
      {choice_of(model.norm, {"post", "pre", "post_final"}, "txport_model.norm"),
       choice_of(model.activation, {"relu", "gelu", "gelu_tanh", "silu"}, "txport_model.activation"),
       model.embedding_scale, model.layer_norm_epsilon,
       model.norm_kind == nullptr ? "layer" : choice_of(model.norm_kind, {"layer", "rms"}, "txport_model.norm_kind")},
      {}};
  constexpr std::size_t kFirst = sizeof(txport_parameter);  // the size of the first version of the struct
  if (model.parameter_size < kFirst || model.parameter_size > sizeof(txport_parameter)) {
    throw core::InputError("txport_model.parameter_size is " + std::to_string(model.parameter_size) +
                           ": set it to sizeof(txport_parameter), and compile with the header of this library");
  }
  within(model.parameter_count, 0, 1 << 24, "txport_model.parameter_count");
  if (model.parameter_count > 0) required(model.parameters, "txport_model.parameters");
  const auto* at = reinterpret_cast<const std::byte*>(model.parameters);
  for (std::int64_t i = 0; i < model.parameter_count; ++i, at += model.parameter_size) {
    txport_parameter fields{};
    std::memcpy(&fields, at, model.parameter_size);
    result.tensors.push_back(parameter_of(fields));
  }
  return result;
}

core::ModelFile model_of(const txport_model& model) {
  if (reinterpret_cast<std::uintptr_t>(model.weights_data) % sizeof(float) != 0) {
    throw core::InputError(
        "txport_model.weights_data is not at a multiple of 4 bytes: copy the weights to an aligned buffer");
  }
  return {
      core::path_of(&required(model.weights, "txport_model.weights")),
      within(model.weights_bytes, 1, INT64_MAX, "txport_model.weights_bytes"),
      {model.encoder_layers, model.decoder_layers, model.d_model, model.heads, model.head_dim, model.source_vocabulary,
       model.target_vocabulary, false, model.encoder_heads == 0 ? model.heads : model.encoder_heads,
       model.feature_size == 0 ? std::nullopt : std::optional(model.feature_size)},
      {model.pad, model.unk, model.bos, model.eos},
      {model.batch, model.source, model.target},
      choice_of(model.precision, {"float32", "float16", "int8"}, "txport_model.precision"),
      parameters_of(model),
      {std::shared_ptr<const void>(), static_cast<const std::byte*>(model.weights_data)}};
}

}  // namespace

txport_code txport_engine_create(const txport_model* model, const txport_engine_options* options,
                                 txport_engine_handle** engine) noexcept {
  return abi::guarded([&] {
    required(engine, "engine") = nullptr;
    constexpr std::size_t kFirst = offsetof(txport_model, norm_kind);  // the size of the first version of the struct
    const core::ModelFile file = model_of(abi::read_options(&required(model, "model"), kFirst, "txport_model"));
    const auto fields = abi::read_options(options, sizeof(txport_engine_options), "txport_engine_options");
    within(fields.threads, 0, 4096, "threads");
    core::check_model(file);
    auto opened = core::open_fused(file, {fields.threads, fields.many != 0});
    *engine = std::make_unique<txport_engine_handle>(txport_engine_handle{std::move(opened), file.sizes}).release();
    return TXPORT_OK;
  });
}
