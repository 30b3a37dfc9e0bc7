#include "fused/tuner.hpp"

#include <algorithm>
#include <utility>

namespace txport::core::fused {

namespace {

constexpr unsigned kLongestPause = 512;  // number of calls
// Weight of the newest call in the running mean of the best level. Other levels are tried rarely, so their newest call
// replaces the mean.
constexpr double kNew = 0.25;
// Trials may cost one call in this number. On a busy machine, a trial may take as long as hundreds of calls.
constexpr double kTrialShare = 32;

}  // namespace

ThreadTuner::ThreadTuner(std::size_t max_threads) : max_threads_(max_threads) {
  while (levels_ < kLevels && (std::size_t{1} << levels_) / 2 < max_threads) ++levels_;
}

std::size_t ThreadTuner::threads_of(std::size_t level) const { return std::min(std::size_t{1} << level, max_threads_); }

ThreadTuner::Bucket& ThreadTuner::bucket(std::size_t work) {
  std::size_t index = 0;
  while (index + 1 < buckets_.size() && (work >> (index + 1)) > 0) ++index;
  return buckets_[index];
}

std::size_t ThreadTuner::choose(std::size_t work) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return 1;
  Bucket& here = bucket(work);
  if (std::exchange(here.again, false)) return threads_of(here.tried);
  if (levels_ == 1 || --here.until_trial > 0) return threads_of(here.best);
  here.until_trial = here.pause = std::min(2 * here.pause, kLongestPause);
  here.again = here.best == 0 || (here.tried < here.best && here.best + 1 < levels_);
  return threads_of(here.tried = here.again ? here.best + 1 : here.best - 1);
}

void ThreadTuner::record(std::size_t work, std::size_t threads, double seconds) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  Bucket& here = bucket(work);
  std::size_t level = 0;
  while (level + 1 < levels_ && threads_of(level) < threads) ++level;
  if (threads_of(level) != threads) return;  // the call got fewer threads than were chosen, since others use them
  double& mean = here.seconds[level];
  mean = mean == 0 || level != here.best ? seconds : mean + (std::min(seconds, 2 * mean) - mean) * kNew;
  const std::size_t before = here.best;
  for (std::size_t other = 0; other < levels_; ++other) {
    const double theirs = here.seconds[other];
    if (theirs > 0 && (here.seconds[here.best] == 0 || theirs < here.seconds[here.best])) here.best = other;
  }
  const double price = std::min(kTrialShare * (seconds / here.seconds[here.best] - 1), 1e9);
  if (level != here.best) here.until_trial = std::max(here.until_trial, static_cast<unsigned>(price));
  here.again = here.again && seconds < 2 * here.seconds[here.best];
  if (here.best != before) here.until_trial = here.pause = 4;
}

}  // namespace txport::core::fused
