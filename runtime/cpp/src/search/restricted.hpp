// Restriction to a sentence's own words, over engines that have none themselves: the host masks their logits.
#pragma once

#include <memory>

#include "engine.hpp"
#include "search/settings.hpp"

namespace txport::core {

// The engine of a search: with a shortlist one whose rows can be restricted, which is the given one or, if that cannot,
// one over it that reads all logits of each step. The given one must outlive it.
class EngineOf {
 public:
  EngineOf(const Engine& engine, const Search& search);
  const Engine& operator*() const { return over_ != nullptr ? *over_ : engine_; }

 private:
  const Engine& engine_;
  std::unique_ptr<const Engine> over_;
};

}  // namespace txport::core
