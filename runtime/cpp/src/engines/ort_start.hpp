// The sessions of a bundle on the CPU: for one sentence at once, for more when their weights are packed.
//
// ONNX Runtime packs weights for its matrix products as it opens a graph, which takes most of the time of opening (base
// preset: 110 of 170 ms to the first token), even when it has saved the graph with packed weights. So the first
// sentence, if it comes alone and soon, runs on sessions that read the weights from the mapped file, without packing.
// Sessions with packed weights are opened in the background when that sentence is over. Its first token comes early;
// each of its other tokens takes 1.2 to 2.5 times as long. Products over packed weights are summed in another order, so
// the logits of that one sentence may differ in their last bits, as they do between batches of different sizes.
//
// A forked process does not have the background thread, and a lock that this thread held is never released there. So it
// takes no lock, and uses the sessions that were ready before the fork.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engines/ort_session.hpp"

namespace txport::core {

using SharedSessions = std::shared_ptr<const OrtSessions>;

class StartingSessions {
 public:
  // Packed from the beginning.
  explicit StartingSessions(OrtSessions packed);
  // `mapped` for the first sentence; `open` makes the packed ones, in a thread of this object. If it fails, the mapped
  // ones are used for everything, and `warn`, which may be empty, is called once, in the thread of a call.
  StartingSessions(OrtSessions mapped, std::function<OrtSessions()> open, std::function<void(const std::string&)> warn);
  // Waits for sessions that are being opened. No state may be left that uses the sessions of this object.
  ~StartingSessions();
  StartingSessions(const StartingSessions&) = delete;
  StartingSessions& operator=(const StartingSessions&) = delete;

  // For the steps of a new state of this many rows.
  SharedSessions for_state(std::size_t rows);
  // For encoding this many sentences: the first sentence's go with its state.
  SharedSessions for_sources(std::size_t rows);

  const std::string name;  // as OrtSessions has it
  const Graph step_graph;

 private:
  struct Turn {
    std::mutex mutex;
    std::condition_variable changed;
    std::thread thread;
  };

  std::function<OrtSessions()> open_;
  std::function<void(const std::string&)> warn_;
  std::unique_ptr<Turn> turn_ = std::make_unique<Turn>();
  SharedSessions mapped_;                   // until the others are open and the first sentence is over
  SharedSessions packed_;                   // nothing until they are open
  std::atomic<bool> is_packed_ = false;     // set after packed_ is set and before mapped_ is released
  std::weak_ptr<const OrtSessions> first_;  // what the first sentence runs on, until its sources are encoded
  bool asked_ = false;                      // for any state
  bool running_ = false;                    // the first sentence
  bool wanted_ = false;                     // somebody waits for the packed ones
  bool closing_ = false;
  std::string fault_;           // why they could not be opened, until a call has warned of it
  pid_t process_ = ::getpid();  // the process that has the thread

  bool is_forked() const;
  SharedSessions ready() const;
  SharedSessions lend_first();
  void end_first();
  SharedSessions packed(std::unique_lock<std::mutex>& lock);
  void open_packed();
  SharedSessions take_mapped_if_over();
};

}  // namespace txport::core
