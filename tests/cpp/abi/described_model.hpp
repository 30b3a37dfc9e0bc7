// A model as an application describes it to txport_engine_create.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bundle/parameters.hpp"
#include "system/system.hpp"
#include "txport/engine.h"

class DescribedModel {
 public:
  explicit DescribedModel(txport::core::ModelFile described) : file_(std::move(described)) {
    for (const txport::core::Parameter& tensor : file_.parameters.tensors) parameters_.push_back(fields_of(tensor));
    const auto& [layers, decoder_layers, d_model, heads, head_dim, source, target, copies, encoder_heads,
                 feature_size] = file_.sizes;
    const auto& architecture = file_.parameters.architecture;
    fields = TXPORT_MODEL_INIT;
    fields.weights = weights_.c_str();
    fields.weights_bytes = file_.bytes;
    fields.precision = file_.precision.c_str();
    fields.encoder_layers = layers;
    fields.decoder_layers = decoder_layers;
    fields.d_model = d_model;
    fields.heads = heads;
    fields.head_dim = head_dim;
    fields.source_vocabulary = source;
    fields.target_vocabulary = target;
    fields.batch = file_.limits.batch;
    fields.source = file_.limits.source;
    fields.target = file_.limits.target;
    fields.pad = file_.tokens.pad;
    fields.unk = file_.tokens.unk;
    fields.bos = file_.tokens.bos;
    fields.eos = file_.tokens.eos;
    fields.norm = architecture.norm.c_str();
    fields.activation = architecture.activation.c_str();
    fields.embedding_scale = architecture.embedding_scale;
    fields.layer_norm_epsilon = architecture.layer_norm_epsilon;
    fields.parameters = parameters_.data();
    fields.parameter_count = static_cast<std::int64_t>(parameters_.size());
    fields.norm_kind = architecture.norm_kind.c_str();
    fields.encoder_heads = encoder_heads;
    fields.feature_size = feature_size.value_or(0);
  }
  DescribedModel(const DescribedModel&) = delete;  // its fields point into it
  DescribedModel& operator=(const DescribedModel&) = delete;

  txport_model fields{};
  txport_parameter& parameter(std::size_t i) { return parameters_.at(i); }

 private:
  const txport::core::ModelFile file_;
  const std::string weights_ = txport::core::text_of(file_.weights);
  std::vector<txport_parameter> parameters_;

  static txport_parameter fields_of(const txport::core::Parameter& tensor) {
    txport_parameter result{};
    result.name = tensor.name.c_str();
    result.dtype = tensor.dtype.c_str();
    result.offset = tensor.offset;
    result.scales = tensor.scales.value_or(-1);
    result.dimensions = static_cast<std::int64_t>(tensor.shape.size());
    std::copy(tensor.shape.begin(), tensor.shape.end(), result.shape);
    std::copy(tensor.strides.begin(), tensor.strides.end(), result.strides);
    return result;
  }
};
