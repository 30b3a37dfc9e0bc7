#include "engines/ort_start.hpp"

#include <chrono>
#include <cstdlib>
#include <utility>

namespace txport::core {

namespace {

// If no sentence comes for this long, weights are packed before the first one.
constexpr std::chrono::milliseconds kIdle(100);

// Counts sessions that are being opened. A process that ends has to wait for them, since ONNX Runtime's own objects are
// destroyed next. There may be some if a translator was not closed.
class Openings {
 public:
  // Whether one may begin.
  bool begin() {
    const std::lock_guard lock(mutex_);
    if (!ended_) ++count_;
    return !ended_;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    --count_;
    changed_.notify_all();
  }
  void finish() {
    std::unique_lock lock(mutex_);
    ended_ = true;
    changed_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
  bool ended_ = false;
};

// Never destroyed, since threads may still come at exit.
Openings& openings() {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static Openings* const all = [] {
    auto* made = new Openings;
    (void)std::atexit([] { openings().finish(); });  // refused only if there is no memory for it
    return made;
  }();
  return *all;
}

}  // namespace

StartingSessions::StartingSessions(OrtSessions packed)
    : name(packed.name),
      step_graph(packed.step_graph),
      packed_(std::make_shared<const OrtSessions>(std::move(packed))),
      is_packed_(true) {}

StartingSessions::StartingSessions(OrtSessions mapped, std::function<OrtSessions()> open,
                                   std::function<void(const std::string&)> warn)
    : name(mapped.name),
      step_graph(mapped.step_graph),
      open_(std::move(open)),
      warn_(std::move(warn)),
      mapped_(std::make_shared<const OrtSessions>(std::move(mapped))) {
  openings();  // registered after ONNX Runtime was loaded, so that it runs before ONNX Runtime's own end
  turn_->thread = std::thread([this] { open_packed(); });
}

StartingSessions::~StartingSessions() {
  if (is_forked()) {
    turn_.release();  // NOLINT(bugprone-unused-return-value): the thread that uses it does not exist here
    return;
  }
  {
    const std::lock_guard lock(turn_->mutex);
    closing_ = true;
    turn_->changed.notify_all();
  }
  if (turn_->thread.joinable()) turn_->thread.join();
}

bool StartingSessions::is_forked() const { return process_ != ::getpid(); }

SharedSessions StartingSessions::ready() const { return is_packed_ ? packed_ : mapped_; }

SharedSessions StartingSessions::for_state(std::size_t rows) {
  if (is_forked()) return ready();
  std::unique_lock lock(turn_->mutex);
  const bool first = !std::exchange(asked_, true);
  turn_->changed.notify_all();
  if (first && rows == 1 && !packed_) return lend_first();
  return packed(lock);
}

SharedSessions StartingSessions::for_sources(std::size_t rows) {
  if (is_forked()) return ready();
  std::unique_lock lock(turn_->mutex);
  if (rows == 1) {
    SharedSessions first = std::exchange(first_, {}).lock();
    if (first) return first;
  }
  return packed(lock);
}

// With the lock held.
SharedSessions StartingSessions::lend_first() {
  running_ = true;
  SharedSessions lent(mapped_.get(), [this, held = mapped_](const OrtSessions*) mutable {
    held.reset();
    end_first();
  });
  first_ = lent;
  return lent;
}

void StartingSessions::end_first() {
  if (is_forked()) return;
  SharedSessions over;  // is destroyed after the lock
  const std::lock_guard lock(turn_->mutex);
  running_ = false;
  over = take_mapped_if_over();
  turn_->changed.notify_all();
}

SharedSessions StartingSessions::packed(std::unique_lock<std::mutex>& lock) {
  wanted_ = true;
  turn_->changed.notify_all();
  turn_->changed.wait(lock, [this] { return packed_ != nullptr; });
  SharedSessions found = packed_;
  const std::string fault = std::exchange(fault_, "");
  lock.unlock();
  if (!fault.empty() && warn_) warn_(fault + "; single sentences go on as before, batches take longer");
  return found;
}

void StartingSessions::open_packed() {
  {
    std::unique_lock lock(turn_->mutex);
    turn_->changed.wait_for(lock, kIdle, [this] { return asked_ || wanted_ || closing_; });
    turn_->changed.wait(lock, [this] { return !running_ || wanted_ || closing_; });
    if (closing_) return;
  }
  SharedSessions opened;
  std::string fault = "the process ends";
  if (openings().begin()) {
    try {
      opened = std::make_shared<const OrtSessions>(open_());
    } catch (const std::exception& error) {
      fault = error.what();
    }
    openings().end();
  }
  SharedSessions over;
  const std::lock_guard lock(turn_->mutex);
  if (!opened) fault_ = fault;
  packed_ = opened ? opened : mapped_;
  is_packed_ = true;
  over = take_mapped_if_over();
  turn_->changed.notify_all();
}

// The mapped sessions, if they will not be used any more. Call it with the lock held, and destroy them without it.
SharedSessions StartingSessions::take_mapped_if_over() {
  if (running_ || !packed_) return nullptr;
  return std::exchange(mapped_, nullptr);
}

}  // namespace txport::core
