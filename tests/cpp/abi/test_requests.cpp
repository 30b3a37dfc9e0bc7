// Submitted sentences, in C and in C++: whole answers, tokens, and all the ways not to have one.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "repository.hpp"
#include "txport/txport.hpp"

namespace {

const std::vector<std::string> kTexts{"the cat sees a bird", "one", "", "a big red dog",
                                      "a small blue bird and a tree"};

txport::Translator open_toy() {
  txport::TranslatorOptions how;
  how.threads = 1;
  return txport::Translator(kToyBundle.string(), how);
}

// What a callback form was told.
struct Told {
  std::mutex mutex;
  std::condition_variable changed;
  int times = 0;
  txport_code code = TXPORT_WAITING;
  std::string text;
  std::string message;
  std::string pieces;
  int left = 0;  // pieces until `hear` stops; 0: never

  static int hear(void* user, int64_t /*id*/, const char* text, size_t length, double /*score*/) {
    auto& told = *static_cast<Told*>(user);
    told.pieces.append(text, length);
    return --told.left == 0 ? 1 : 0;
  }

  static void done(void* user, txport_code code, txport_result* result) {
    auto& told = *static_cast<Told*>(user);
    const std::lock_guard lock(told.mutex);
    ++told.times;
    told.code = code;
    if (code != TXPORT_OK) told.message = txport_message();
    if (result != nullptr) told.text = txport_result_text(result, 0, nullptr);
    txport_result_free(result);
    told.changed.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return times > 0; });
    CHECK(times == 1);
  }
};

// An open translator as C has it.
struct Opened {
  txport_translator* translator = nullptr;
  Opened() { REQUIRE(txport_open(kToyBundle.c_str(), nullptr, &translator) == TXPORT_OK); }
  ~Opened() { txport_close(translator); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};

}  // namespace

TEST_CASE("C ABI: a request whose answer is waited for") {
  const std::string expected = open_toy().translate("one").text;
  txport_pending* pending = nullptr;
  txport_result* result = nullptr;
  {
    const Opened opened;
    REQUIRE(txport_submit(opened.translator, "one", SIZE_MAX, nullptr, nullptr, &pending) == TXPORT_OK);
    txport_code code = TXPORT_WAITING;
    while (code == TXPORT_WAITING) code = txport_pending_wait(pending, 0, &result);
    REQUIRE(code == TXPORT_OK);
    CHECK(txport_result_count(result) == 1);
    CHECK(txport_result_text(result, 0, nullptr) == expected);
    txport_result_free(result);
    CHECK(txport_pending_wait(pending, -1, &result) == TXPORT_INPUT_ERROR);
    CHECK(std::string(txport_message()).find("was already returned") != std::string::npos);
    CHECK(result == nullptr);
    txport_pending_free(pending);

    REQUIRE(txport_submit(opened.translator, "one two", 3, nullptr, nullptr, &pending) == TXPORT_OK);
    CHECK(txport_drain(opened.translator) == TXPORT_OK);
    txport_pending* refused = nullptr;
    CHECK(txport_submit(opened.translator, "one", SIZE_MAX, nullptr, nullptr, &refused) == TXPORT_INPUT_ERROR);
    CHECK(refused == nullptr);
  }
  REQUIRE(txport_pending_wait(pending, 60, &result) == TXPORT_OK);  // it outlives its translator
  CHECK(txport_result_text(result, 0, nullptr) == expected);
  txport_result_free(result);
  txport_pending_free(pending);
}

TEST_CASE("C ABI: a request whose answer comes to a callback") {
  const txport::Translator translator = open_toy();
  const Opened opened;
  txport_request request = TXPORT_REQUEST_INIT;
  for (const std::string& text : kTexts) {
    Told told;
    request.done = Told::done;
    request.token = Told::hear;
    request.user = &told;
    REQUIRE(txport_submit(opened.translator, text.data(), text.size(), nullptr, &request, nullptr) == TXPORT_OK);
    told.wait();
    CHECK(told.code == TXPORT_OK);
    CHECK(told.text == translator.translate(text).text);
    CHECK(told.pieces == told.text);
  }
  Told stopped;
  stopped.left = 2;
  request.user = &stopped;
  txport_pending* pending = nullptr;
  REQUIRE(txport_submit(opened.translator, "one", SIZE_MAX, nullptr, &request, &pending) == TXPORT_OK);
  stopped.wait();
  CHECK(stopped.code == TXPORT_CANCELLED);
  CHECK(stopped.message == "the callback stopped the translation");
  CHECK(stopped.left == 0);
  txport_result* result = nullptr;
  CHECK(txport_pending_wait(pending, 0, &result) == TXPORT_INPUT_ERROR);  // the answer went to the callback
  txport_pending_free(pending);
  Told late;
  request.user = &late;
  request.seconds = 1e-9;
  REQUIRE(txport_submit(opened.translator, "one", SIZE_MAX, nullptr, &request, nullptr) == TXPORT_OK);
  late.wait();
  CHECK(late.code == TXPORT_DEADLINE_EXCEEDED);
  CHECK(late.message == "the request was not finished at its deadline");
}

TEST_CASE("C ABI: a callback that throws ends its request only") {
  const Opened opened;
  txport_request request = TXPORT_REQUEST_INIT;
  request.token = [](void* /*user*/, int64_t /*id*/, const char* /*text*/, size_t /*length*/, double /*score*/) -> int {
    throw 42;
  };
  txport_pending* bad = nullptr;
  txport_pending* good = nullptr;
  txport_result* result = nullptr;
  REQUIRE(txport_submit(opened.translator, "one", SIZE_MAX, nullptr, &request, &bad) == TXPORT_OK);
  REQUIRE(txport_submit(opened.translator, "one", SIZE_MAX, nullptr, nullptr, &good) == TXPORT_OK);
  CHECK(txport_pending_wait(bad, -1, &result) == TXPORT_CANCELLED);
  CHECK(txport_pending_wait(good, -1, &result) == TXPORT_OK);
  txport_result_free(result);
  txport_pending_free(bad);
  txport_pending_free(good);
  request.token = nullptr;
  request.done = [](void* user, txport_code code, txport_result* given) {
    Told::done(user, code, given);
    throw 42;
  };
  for (int i = 0; i < 2; ++i) {
    Told told;
    request.user = &told;
    REQUIRE(txport_submit(opened.translator, "one", SIZE_MAX, nullptr, &request, nullptr) == TXPORT_OK);
    told.wait();
  }
}

TEST_CASE("C ABI: requests that cannot be") {
  const Opened opened;
  txport_pending* pending = nullptr;
  txport_result* result = nullptr;
  txport_request request = TXPORT_REQUEST_INIT;
  CHECK(txport_submit(nullptr, "one", SIZE_MAX, nullptr, nullptr, &pending) == TXPORT_INPUT_ERROR);
  CHECK(txport_submit(opened.translator, nullptr, 0, nullptr, nullptr, &pending) == TXPORT_INPUT_ERROR);
  CHECK(txport_submit(opened.translator, "one", SIZE_MAX, nullptr, nullptr, nullptr) == TXPORT_INPUT_ERROR);
  CHECK(txport_submit(opened.translator, "\xFF", SIZE_MAX, nullptr, nullptr, &pending) == TXPORT_INPUT_ERROR);
  for (const size_t size : {size_t{0}, sizeof(request) - 1, sizeof(request) + 1}) {
    request.struct_size = size;
    CHECK(txport_submit(opened.translator, "one", SIZE_MAX, nullptr, &request, &pending) == TXPORT_INPUT_ERROR);
  }
  request.struct_size = sizeof(request);
  request.token = Told::hear;
  txport_options beams = TXPORT_OPTIONS_INIT;
  beams.beam = 2;
  CHECK(txport_submit(opened.translator, "one", SIZE_MAX, &beams, &request, &pending) == TXPORT_INPUT_ERROR);
  CHECK(std::string(txport_message()).find("a stream is greedy") == 0);
  CHECK(pending == nullptr);
  CHECK(txport_pending_wait(nullptr, 0, &result) == TXPORT_INPUT_ERROR);
  REQUIRE(txport_submit(opened.translator, "", 0, nullptr, nullptr, &pending) == TXPORT_OK);
  CHECK(txport_pending_wait(pending, 0, nullptr) == TXPORT_INPUT_ERROR);
  CHECK(txport_pending_wait(pending, 0, &result) == TXPORT_OK);
  CHECK(std::string(txport_result_text(result, 0, nullptr)).empty());
  txport_result_free(result);
  txport_pending_free(pending);
  txport_pending_cancel(nullptr);
  txport_pending_free(nullptr);
  CHECK(txport_drain(nullptr) == TXPORT_INPUT_ERROR);
}

TEST_CASE("C ABI: a callback closes its translator") {
  Opened opened;
  struct Closing {
    txport_translator* translator = nullptr;
    std::promise<void> submitted;
    std::vector<txport_code> codes;
    std::mutex mutex;
    std::condition_variable changed;
  } closing;
  closing.translator = opened.translator;
  txport_request request = TXPORT_REQUEST_INIT;
  request.user = &closing;
  request.done = [](void* user, txport_code code, txport_result* result) {
    auto& all = *static_cast<Closing*>(user);
    txport_result_free(result);
    if (txport_translator* translator = std::exchange(all.translator, nullptr)) {
      all.submitted.get_future().wait();
      txport_close(translator);
    }
    const std::lock_guard lock(all.mutex);
    all.codes.push_back(code);
    all.changed.notify_all();
  };
  txport_options longer = TXPORT_OPTIONS_INIT;
  longer.full_length = 1;
  for (const auto* options : {static_cast<txport_options*>(nullptr), &longer, &longer}) {
    REQUIRE(txport_submit(opened.translator, "one", SIZE_MAX, options, &request, nullptr) == TXPORT_OK);
  }
  opened.translator = nullptr;
  closing.submitted.set_value();
  std::unique_lock lock(closing.mutex);
  closing.changed.wait(lock, [&] { return closing.codes.size() == 3; });
  CHECK(closing.codes == std::vector<txport_code>{TXPORT_OK, TXPORT_CANCELLED, TXPORT_CANCELLED});
}

TEST_CASE("C++ API: submitted sentences of many threads are translated as in a call") {
  const txport::Translator translator = open_toy();
  std::vector<txport::Options> options(4);
  options[1].beam = 3;
  options[1].n_best = 2;
  options[2].no_repeat_ngram = 2;
  options[3].sample = true;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      txport::Options own = options[thread % options.size()];
      own.scores = true;
      std::vector<txport::Pending> pending;
      for (const std::string& text : kTexts) pending.push_back(translator.submit(text, own, 600));
      for (std::size_t i = 0; i < kTexts.size(); ++i) {
        const txport::Translation expected = translator.translate(kTexts[i], own);
        const txport::Translation found = pending[i].get();
        wrong += found.text != expected.text || found.ids != expected.ids ||
                 found.score.has_value() != expected.score.has_value();
        wrong += found.scores.size() != expected.scores.size();
        wrong += found.hypotheses.size() != expected.hypotheses.size();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("C++ API: an answer that does not come") {
  txport::Translator translator = open_toy();
  std::string text;
  const auto answer = translator
                          .submit("one", {}, 0,
                                  [&](const txport::Piece& piece) {
                                    text += piece.text;
                                    return true;
                                  })
                          .get();
  CHECK(text == answer.text);
  CHECK(translator.submit("  ").get().text.empty());
  CHECK_THROWS_AS(translator.submit("one", {}, 1e-9).get(), txport::DeadlineExceeded);
  CHECK_THROWS_AS(translator.submit("one", {}, 0, [](const txport::Piece&) { return false; }).get(), txport::Cancelled);
  CHECK_THROWS_AS(
      translator.submit("one", {}, 0, [](const txport::Piece&) -> bool { throw std::domain_error("mine"); }).get(),
      std::domain_error);
  CHECK_THROWS_AS(translator.submit("\xFF"), txport::InputError);
  std::promise<void> go_on;
  const auto opened = go_on.get_future().share();
  txport::Pending holds = translator.submit("one", {}, 0, [opened](const txport::Piece&) {
    opened.wait();
    return true;
  });
  txport::Pending cancelled = translator.submit("a big red dog");
  CHECK(cancelled.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  cancelled.cancel();
  go_on.set_value();
  CHECK_THROWS_WITH_AS(cancelled.get(), "the request was cancelled", txport::Cancelled);
  CHECK(holds.get().text == answer.text);
  txport::Pending drained = translator.submit("one");
  translator.drain();
  CHECK(drained.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
  CHECK(drained.get().text == answer.text);
  CHECK_THROWS_WITH_AS(translator.submit("one"), "the queue was closed: open the bundle again", txport::InputError);
  CHECK(translator.translate("one").text == answer.text);
}

TEST_CASE("C++ API: a translator that ends cancels what has no answer") {
  std::vector<txport::Pending> pending;
  txport::Options longer;
  longer.full_length = true;
  {
    const txport::Translator translator = open_toy();
    for (int i = 0; i < 200; ++i) pending.push_back(translator.submit("one", longer));
  }
  int cancelled = 0;
  for (txport::Pending& each : pending) {
    REQUIRE(each.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
    try {
      each.get();
    } catch (const txport::Cancelled&) {
      ++cancelled;
    }
  }
  CHECK(cancelled > 0);
}

TEST_CASE("C++ API: no more than 1024 requests wait") {
  const txport::Translator translator = open_toy();
  std::promise<void> go_on;
  const auto opened = go_on.get_future().share();
  std::vector<txport::Pending> pending;
  pending.push_back(translator.submit("one", {}, 0, [opened](const txport::Piece&) {
    opened.wait();
    return false;
  }));
  txport::Options shortest;
  shortest.max_length = 1;
  for (int i = 1; i < 1024; ++i) pending.push_back(translator.submit("one", shortest));
  CHECK_THROWS_AS(translator.submit("one"), txport::ResourceError);
  for (std::size_t i = 100; i < pending.size(); ++i) pending[i].cancel();
  go_on.set_value();
  for (txport::Pending& each : pending) each.wait();
  CHECK(translator.submit("one", shortest).get().ids.size() == 1);
}

TEST_CASE("C and C++ API: a request of the parent fails in a forked process instead of hanging") {
  const txport::Translator translator = open_toy();
  const Opened opened;
  std::promise<void> started;
  std::promise<void> go_on;
  std::shared_future<void> released = go_on.get_future().share();
  const auto hold = [&started, released, first = true](const txport::Piece&) mutable {
    if (std::exchange(first, false)) started.set_value();
    released.wait();
    return true;
  };
  txport::Pending answered = translator.submit("one");
  answered.wait();
  txport::Pending held = translator.submit("one", {}, 0, hold);
  started.get_future().wait();
  txport_pending* in_c = nullptr;
  txport_request request = TXPORT_REQUEST_INIT;
  request.user = &released;
  request.token = [](void* user, int64_t, const char*, size_t, double) {
    static_cast<std::shared_future<void>*>(user)->wait();
    return 0;
  };
  REQUIRE(txport_submit(opened.translator, "one", SIZE_MAX, nullptr, &request, &in_c) == TXPORT_OK);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    int lost = 0;
    const auto count = [&lost](const auto& call) {
      try {
        call();
      } catch (const txport::EngineError& error) {
        lost += std::string(error.what()).find("belongs to the parent process") != std::string::npos ? 1 : 0;
      }
    };
    count([&held] { held.get(); });
    count([&held] { held.wait(); });
    count([&held] { held.wait_for(std::chrono::hours(1)); });
    txport_result* result = nullptr;
    const bool in_c_too = txport_pending_wait(in_c, -1, &result) == TXPORT_ENGINE_ERROR && result == nullptr;
    ::_exit(lost == 3 && in_c_too && !answered.get().text.empty() ? 0 : 1);
  }
  go_on.set_value();
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(!held.get().text.empty());
  txport_result* result = nullptr;
  CHECK(txport_pending_wait(in_c, -1, &result) == TXPORT_OK);
  txport_result_free(result);
  txport_pending_free(in_c);
}
