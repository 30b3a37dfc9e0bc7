// Restriction of target tokens to a shortlist on engines without restrict_rows: the host masks their logits.
#pragma once

#include <memory>

#include "engine.hpp"
#include "search/settings.hpp"

namespace txport::core {

// The engine for a search. If the search has a shortlist and `engine` cannot restrict rows, this is a wrapper around
// `engine` that reads all logits of each step. Otherwise it is `engine`, which must outlive it.
class EngineOf {
 public:
  EngineOf(const Engine& engine, const Search& search);
  const Engine& operator*() const { return restricted_ != nullptr ? *restricted_ : engine_; }

 private:
  const Engine& engine_;
  std::unique_ptr<const Engine> restricted_;
};

}  // namespace txport::core
