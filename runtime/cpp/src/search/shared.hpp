// One batch for the calls of many threads: one of these decodes for all, and hands over when it has its own answers.
//
// That is the pattern Leader/Followers (Schmidt, Stal, Rohnert and Buschmann, Pattern-Oriented Software Architecture
// 2). It needs no thread of its own, so that a process may fork, and no call has another's failure.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "engine.hpp"
#include "search/requests.hpp"
#include "search/scheduler.hpp"

namespace txport::core {

// Batches for the calls of many threads. Calls share a batch where that changes nothing but the time: on an engine
// whose rows are computed each by itself. A call that would fill a batch decodes alone, and so does one that finds
// others of another search only.
class SharedBatches {
 public:
  // The engine must outlive it. `most`: batches that run side by side before calls share them. With several workers
  // each call decodes alone.
  SharedBatches(const Engine& engine, const SearchOptions& options, std::size_t most = 1);
  ~SharedBatches();
  SharedBatches(const SharedBatches&) = delete;
  SharedBatches& operator=(const SharedBatches&) = delete;

  // Answers as `decode_all` gives them; throws as it does.
  std::vector<Result> decode(std::vector<Request> requests) const;

  // Requests in shared batches that have no answer yet.
  std::size_t unanswered() const;

 private:
  struct Call;
  class Group;
  struct Groups;

  const Engine& engine_;
  const SearchOptions options_;
  const std::size_t most_;
  mutable std::atomic<Groups*> groups_;

  Groups& groups() const;
  std::optional<std::vector<Result>> joined(const std::vector<Request>& requests) const;
  std::shared_ptr<Group> group_of(Groups& groups, const Search& search) const;
};

}  // namespace txport::core
