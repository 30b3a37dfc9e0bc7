// Batches that are shared by calls of several threads. One of the threads decodes for all. When its own call is
// finished, another thread continues.
//
// This is the Leader/Followers pattern (Schmidt, Stal, Rohnert and Buschmann, Pattern-Oriented Software Architecture
// 2). It needs no background thread, so the process may fork, and a call does not fail because of another call.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "engine.hpp"
#include "search/requests.hpp"
#include "search/scheduler.hpp"

namespace txport::core {

// Batches that calls of several threads share. Calls share a batch only if this does not change results: on engines
// that compute each row independently (Engine::ragged). A call decodes alone if it fills a batch by itself, or if all
// running batches have another search.
class SharedBatches {
 public:
  // The engine must outlive it. `max_groups`: number of batches that run in parallel before calls share them. With
  // several workers, each call decodes alone.
  SharedBatches(const Engine& engine, const SearchOptions& options, std::size_t max_groups = 1);
  ~SharedBatches();
  SharedBatches(const SharedBatches&) = delete;
  SharedBatches& operator=(const SharedBatches&) = delete;

  // Decode requests; results and errors are those of `decode_all`.
  std::vector<Result> decode(std::vector<Request> requests) const;

  // Return the number of unfinished requests in shared batches.
  std::size_t unanswered() const;

 private:
  struct Call;
  class Group;
  struct Groups;

  const Engine& engine_;
  const SearchOptions options_;
  const std::size_t max_groups_;
  mutable std::atomic<Groups*> groups_;

  Groups& groups() const;
  std::optional<std::vector<Result>> try_join(const std::vector<Request>& requests) const;
  std::shared_ptr<Group> group_of(Groups& groups, const Search& search) const;
};

}  // namespace txport::core
