// What the handles of txport/engine.h hold; tests make one of an engine from any engine.
#pragma once

#include <deque>
#include <memory>

#include "../engine.hpp"
#include "abi/guard.hpp"
#include "bundle/parameters.hpp"
#include "errors.hpp"

// States and memories share their engine, so that either may be closed first.
struct txport_engine_handle {
  std::shared_ptr<const txport::core::Engine> engine;
  txport::core::ModelSizes sizes;
};

struct txport_engine_state {
  txport_engine_handle handle;
  std::unique_ptr<txport::core::DecoderState> state;
  txport::core::Outputs outputs;
  std::deque<std::int64_t> unread;  // steps of each group

  std::int64_t rows() const { return static_cast<std::int64_t>(state->rows()); }
};

namespace txport::abi {

inline txport_engine_state& usable(txport_engine_state* state) {
  if (given(state, "state").state == nullptr) throw core::InputError("the state was moved: use the new one");
  return *state;
}

// One whose steps were all read.
inline txport_engine_state& read_out(txport_engine_state* state) {
  if (!usable(state).unread.empty()) throw core::InputError("steps of the state were not read: read them first");
  return *state;
}

}  // namespace txport::abi
