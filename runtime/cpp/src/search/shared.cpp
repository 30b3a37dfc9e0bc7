#include "search/shared.hpp"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <utility>

#include "search/decoding.hpp"
#include "system/system.hpp"

namespace txport::core {

// A call that waits for its results.
struct SharedBatches::Call {
  std::vector<Result> results;
  std::size_t unanswered;
  bool lost = false;                // the batch failed: the call then decodes alone, with its own result or error
  std::condition_variable changed;  // the call has ended or became the leader

  explicit Call(std::size_t count) : results(count), unanswered(count) {}
  bool ended() const { return lost || unanswered == 0; }
};

// Calls with the same search that share batches. The mutex of the groups guards everything except the worker, which
// only the leader uses.
class SharedBatches::Group {
 public:
  Group(const Engine& engine, Search search, const SearchOptions& options)
      : search_(std::move(search)),
        policy_(policy_of(engine, search_)),
        scheduler_(engine, *policy_, options),
        worker_(scheduler_) {}

  const Search& search() const { return search_; }
  std::size_t unanswered() const { return owners_.size(); }
  bool is_led_by(const Call& call) const { return leader_ == &call; }

  void add(Call& call, std::vector<Request> requests) {
    const std::size_t first = scheduler_.submit(std::move(requests));
    for (std::size_t position = 0; position < call.unanswered; ++position)
      owners_[first + position] = {&call, position};
    if (leader_ == nullptr) leader_ = &call;
  }

  // Run a group of steps for all calls.
  void lead(std::unique_lock<std::mutex>& lock) {
    try {
      lock.unlock();
      const Slots slots = worker_.step();
      lock.lock();
      for (const auto& slot : slots) {
        if (slot->done) answer(slot->result());
      }
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      lose_all();
    }
  }

  // Make another call the leader; false if there is none.
  bool leave(const Call& call) {
    if (leader_ != &call) return true;
    leader_ = owners_.empty() ? nullptr : owners_.begin()->second.call;
    if (leader_ != nullptr) leader_->changed.notify_one();
    return leader_ != nullptr;
  }

 private:
  struct Owner {
    Call* call;
    std::size_t position;
  };

  const Search search_;
  const std::unique_ptr<const Policy> policy_;
  Scheduler scheduler_;
  Worker worker_;
  std::map<std::size_t, Owner> owners_;  // of each unfinished request
  Call* leader_ = nullptr;

  void answer(Result result) {
    const auto current = owners_.find(result.index);
    const Owner owner = current->second;
    owners_.erase(current);
    result.index = owner.position;
    owner.call->results[owner.position] = std::move(result);
    if (--owner.call->unanswered == 0) owner.call->changed.notify_one();
  }

  void lose_all() {
    worker_.abandon();
    for (const auto& [index, owner] : owners_) {
      owner.call->lost = true;
      owner.call->changed.notify_one();
    }
    owners_.clear();
  }
};

// The groups of one process.
struct SharedBatches::Groups {
  const unsigned forked = forks();
  std::mutex mutex;
  std::vector<std::shared_ptr<Group>> running;
};

SharedBatches::SharedBatches(const Engine& engine, const SearchOptions& options, std::size_t max_groups)
    : engine_(engine), options_(options), max_groups_(max_groups), groups_(new Groups) {}

SharedBatches::~SharedBatches() { delete groups_.load(); }

std::vector<Result> SharedBatches::decode(std::vector<Request> requests) const {
  const auto rows = static_cast<std::size_t>(options_.rows.value_or(engine_.limits().batch));
  if (engine_.ragged() && options_.workers <= 1 && !requests.empty() && requests.size() < rows) {
    if (auto results = try_join(requests)) return std::move(*results);
  }
  return decode_all(engine_, std::move(requests), options_);
}

std::size_t SharedBatches::unanswered() const {
  Groups& groups = this->groups();
  const std::lock_guard lock(groups.mutex);
  std::size_t count = 0;
  for (const auto& group : groups.running) count += group->unanswered();
  return count;
}

// Return the groups of this process. A forked process gets new groups, because it has none of the parent's threads.
SharedBatches::Groups& SharedBatches::groups() const {
  Groups* current = groups_.load();
  if (current->forked == forks()) return *current;
  auto new_groups = std::make_unique<Groups>();
  return groups_.compare_exchange_strong(current, new_groups.get()) ? *new_groups.release() : *current;
}

// Decode in a shared batch. Return no value if there is no batch for this call, or if the batch failed.
std::optional<std::vector<Result>> SharedBatches::try_join(const std::vector<Request>& requests) const {
  Groups& groups = this->groups();
  std::unique_lock lock(groups.mutex);
  const std::shared_ptr<Group> group = group_of(groups, requests.front().search);
  if (group == nullptr) return std::nullopt;
  Call call(requests.size());
  group->add(call, requests);
  auto& running = groups.running;
  if (std::find(running.begin(), running.end(), group) == running.end()) running.push_back(group);
  while (!call.ended()) {
    if (group->is_led_by(call)) {
      group->lead(lock);
    } else {
      call.changed.wait(lock);
    }
  }
  if (!group->leave(call)) running.erase(std::remove(running.begin(), running.end(), group), running.end());
  return call.lost ? std::nullopt : std::optional(std::move(call.results));
}

std::shared_ptr<SharedBatches::Group> SharedBatches::group_of(Groups& groups, const Search& search) const {
  if (groups.running.size() < max_groups_) return std::make_shared<Group>(engine_, search, options_);
  std::shared_ptr<Group> best;
  for (const auto& group : groups.running) {
    const bool better = best == nullptr || group->unanswered() < best->unanswered();
    if (group->search() == search && better) best = group;
  }
  return best;
}

}  // namespace txport::core
