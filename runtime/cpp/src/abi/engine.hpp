// Contents of the handles of txport/engine.h. Tests create handles for other engines.
#pragma once

#include <deque>
#include <memory>

#include "../engine.hpp"
#include "abi/guard.hpp"
#include "bundle/parameters.hpp"
#include "errors.hpp"

// States and memories share ownership of their engine, so any of them may be closed first.
struct txport_engine_handle {
  std::shared_ptr<const txport::core::Engine> engine;
  txport::core::ModelSizes sizes;
};

struct txport_engine_state {
  txport_engine_handle handle;
  std::unique_ptr<txport::core::DecoderState> state;
  txport::core::Outputs outputs;
  std::deque<std::int64_t> unread;  // steps of each group that was not read yet

  std::int64_t rows() const { return static_cast<std::int64_t>(state->rows()); }
};

namespace txport::abi {

inline txport_engine_state& valid(txport_engine_state* state) {
  if (required(state, "state").state == nullptr) throw core::InputError("the state was moved: use the new one");
  return *state;
}

// Return a valid state whose steps were all read. Throws InputError.
inline txport_engine_state& idle(txport_engine_state* state) {
  if (!valid(state).unread.empty()) throw core::InputError("steps of the state were not read: read them first");
  return *state;
}

}  // namespace txport::abi
