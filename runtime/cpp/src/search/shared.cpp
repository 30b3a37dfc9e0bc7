#include "search/shared.hpp"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <utility>

#include "search/decoding.hpp"
#include "system/system.hpp"

namespace txport::core {

// A call that waits for its answers.
struct SharedBatches::Call {
  std::vector<Result> results;
  std::size_t unanswered;
  bool lost = false;                // the batch failed: it decodes alone then, and has what becomes of that
  std::condition_variable changed;  // it has ended, or is to lead

  explicit Call(std::size_t count) : results(count), unanswered(count) {}
  bool ended() const { return lost || unanswered == 0; }
};

// Calls of one search that share batches; all but the worker, which is the leader's, under the lock of the groups.
class SharedBatches::Group {
 public:
  Group(const Engine& engine, Search asked, const SearchOptions& options)
      : search_(std::move(asked)),
        policy_(policy_of(engine, search_)),
        scheduler_(engine, *policy_, options),
        worker_(scheduler_) {}

  const Search& search() const { return search_; }
  std::size_t unanswered() const { return owners_.size(); }
  bool is_led_by(const Call& call) const { return leader_ == &call; }

  void add(Call& call, std::vector<Request> requests) {
    const std::size_t first = scheduler_.submit(std::move(requests));
    for (std::size_t place = 0; place < call.unanswered; ++place) owners_[first + place] = {&call, place};
    if (leader_ == nullptr) leader_ = &call;
  }

  // Run a group of steps for all.
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
    std::size_t place;
  };

  const Search search_;
  const std::unique_ptr<const Policy> policy_;
  Scheduler scheduler_;
  Worker worker_;
  std::map<std::size_t, Owner> owners_;  // of each request to be answered
  Call* leader_ = nullptr;

  void answer(Result result) {
    const auto found = owners_.find(result.index);
    const Owner owner = found->second;
    owners_.erase(found);
    result.index = owner.place;
    owner.call->results[owner.place] = std::move(result);
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

// The groups of a process.
struct SharedBatches::Groups {
  const unsigned forked = forks();
  std::mutex mutex;
  std::vector<std::shared_ptr<Group>> running;
};

SharedBatches::SharedBatches(const Engine& engine, const SearchOptions& options, std::size_t most)
    : engine_(engine), options_(options), most_(most), groups_(new Groups) {}

SharedBatches::~SharedBatches() { delete groups_.load(); }

std::vector<Result> SharedBatches::decode(std::vector<Request> requests) const {
  const auto rows = static_cast<std::size_t>(options_.rows.value_or(engine_.limits().batch));
  if (engine_.ragged() && options_.workers <= 1 && !requests.empty() && requests.size() < rows) {
    if (auto results = joined(requests)) return std::move(*results);
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

// A forked process has none of the threads of the groups, which do not change.
SharedBatches::Groups& SharedBatches::groups() const {
  Groups* found = groups_.load();
  if (found->forked == forks()) return *found;
  auto own = std::make_unique<Groups>();
  return groups_.compare_exchange_strong(found, own.get()) ? *own.release() : *found;
}

// The answers by a batch of several calls; nothing if there is none for this call, or it failed.
std::optional<std::vector<Result>> SharedBatches::joined(const std::vector<Request>& requests) const {
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
  if (groups.running.size() < most_) return std::make_shared<Group>(engine_, search, options_);
  std::shared_ptr<Group> best;
  for (const auto& group : groups.running) {
    const bool better = best == nullptr || group->unanswered() < best->unanswered();
    if (group->search() == search && better) best = group;
  }
  return best;
}

}  // namespace txport::core
