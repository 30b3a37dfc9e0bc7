// What a handle of txport/engine.h holds; tests make one from any engine.
#pragma once

#include <memory>

#include "bundle/parameters.hpp"
#include "engine.hpp"

// States and memories share their engine, so that either may be closed first.
struct txport_engine_handle {
  std::shared_ptr<const txport::core::Engine> engine;
  txport::core::ModelSizes sizes;
};
