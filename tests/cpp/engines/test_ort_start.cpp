// The first sentence runs on sessions whose weights are not packed, and everything else on packed ones, opened in time.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "engines/ort_start.hpp"
#include "errors.hpp"
#include "repository.hpp"
#include "translator.hpp"

using namespace txport::core;

namespace {

OrtSessions sessions(const std::string& name) {
  environment();  // knows how to release even what is not there
  return {name, Ort::Session{nullptr}, Ort::Session{nullptr}, Graph{}};
}

// Sessions that say by their name what they are; opening waits until it may.
struct Fixture {
  std::promise<void> may_open;
  std::shared_future<void> allowed = may_open.get_future().share();
  std::atomic<int> begun{0};
  std::vector<std::string> warnings;
  std::string fault;
  StartingSessions start{sessions("mapped"),
                         [this] {
                           ++begun;
                           allowed.wait();
                           if (!fault.empty()) throw BundleError(fault);
                           return sessions("packed");
                         },
                         [this](const std::string& warning) { warnings.push_back(warning); }};

  ~Fixture() { allow(); }
  void allow() {
    if (allowed.wait_for(std::chrono::seconds(0)) != std::future_status::ready) may_open.set_value();
  }
  bool begins_in_time() const {
    for (int i = 0; i < 1000 && begun == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return begun == 1;
  }
};

Translator open_toy(int workers) {
  TranslatorOptions options;
  options.device = "cpu";
  options.threads = 1;
  options.workers = workers;
  return {kToyBundle, options};
}

}  // namespace

TEST_CASE("the first sentence alone does not wait for packed weights, all others do") {
  Fixture fixture;
  auto first = fixture.start.for_state(1);
  CHECK(first->name == "mapped");
  CHECK(fixture.start.for_sources(1)->name == "mapped");
  auto second = std::async(std::launch::async, [&] { return fixture.start.for_state(1)->name; });
  CHECK(second.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout);
  fixture.allow();
  CHECK(second.get() == "packed");
  CHECK(fixture.start.for_sources(1)->name == "packed");
  CHECK(first->name == "mapped");  // to its end
  first.reset();
  CHECK(fixture.start.for_state(1)->name == "packed");
  CHECK(fixture.begun == 1);
  CHECK(fixture.warnings.empty());
}

TEST_CASE("a first batch of several rows waits, and no later sentence is the first one then") {
  Fixture fixture;
  fixture.allow();
  CHECK(fixture.start.for_state(2)->name == "packed");
  CHECK(fixture.start.for_sources(2)->name == "packed");
  CHECK(fixture.start.for_state(1)->name == "packed");
  CHECK(fixture.start.for_sources(1)->name == "packed");
}

TEST_CASE("nothing is packed beside the first sentence") {
  Fixture fixture;
  fixture.allow();
  auto first = fixture.start.for_state(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(250));  // longer than the idle time
  CHECK(fixture.begun == 0);
  first.reset();
  CHECK(fixture.begins_in_time());
}

TEST_CASE("weights are packed ahead if nothing is asked for") {
  Fixture fixture;
  CHECK(fixture.begins_in_time());
  const auto first = fixture.start.for_state(1);  // while they are being packed
  CHECK(first->name == "mapped");
  fixture.allow();
  CHECK(fixture.start.for_state(1)->name == "packed");
  CHECK(first->name == "mapped");
}

TEST_CASE("the first sentence runs on packed weights if they are there") {
  Fixture fixture;
  fixture.allow();
  CHECK(fixture.start.for_sources(2)->name == "packed");  // waits until they are
  CHECK(fixture.start.for_state(1)->name == "packed");
}

TEST_CASE("what is closed at once never packs, and what is being opened then is waited for") {
  std::atomic<int> begun{0};
  std::atomic<int> opened{0};
  const auto open = [&] {
    ++begun;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++opened;
    return sessions("packed");
  };
  { const StartingSessions unused(sessions("mapped"), open, nullptr); }
  CHECK(begun == 0);
  for (int i = 0; i < 20; ++i) {
    StartingSessions start(sessions("mapped"), open, nullptr);
    start.for_state(1).reset();
    std::this_thread::sleep_for(std::chrono::microseconds(50 * i));
  }
  CHECK(begun == opened);
}

TEST_CASE("if weights cannot be packed, the first sessions serve all, and one warning says why") {
  Fixture fixture;
  fixture.fault = "no memory";
  fixture.allow();
  CHECK(fixture.start.for_state(8)->name == "mapped");
  CHECK(fixture.start.for_sources(8)->name == "mapped");
  CHECK(fixture.start.for_state(1)->name == "mapped");
  REQUIRE(fixture.warnings.size() == 1);
  CHECK(fixture.warnings[0].find("no memory") == 0);
}

TEST_CASE("sessions that were packed from the beginning serve all") {
  StartingSessions start(sessions("packed"));
  CHECK(start.for_state(1)->name == "packed");
  CHECK(start.for_sources(1)->name == "packed");
  CHECK(start.for_state(8)->name == "packed");
}

TEST_CASE("a sentence has the same ids and scores to five digits as the first one and later, alone and streamed") {
  const std::string text = "the cat sees a small blue bird and a tree";
  Options options;
  options.scores = true;
  const Translator packed = open_toy(2);
  const Translation expected = packed.translate({text}, options)[0];
  const auto same = [&](const Translation& found) {
    REQUIRE(found.ids == expected.ids);
    for (std::size_t i = 0; i < expected.ids.size(); ++i) {
      CHECK((*found.scores)[i] == doctest::Approx((*expected.scores)[i]).epsilon(1e-5));
    }
  };
  const Translator translator = open_toy(1);
  for (int i = 0; i < 3; ++i) same(translator.translate({text}, options)[0]);
  same(translator.translate({text, "one"}, options)[0]);
  const Translator streamed = open_toy(1);
  for (int i = 0; i < 3; ++i) {
    PieceStream stream(streamed, text, options);
    Ids ids;
    while (const auto piece = stream.next()) ids.push_back(piece->id);
    CHECK(ids == expected.ids);
  }
}

TEST_CASE("rows that are refilled in a batch of one go over to packed weights") {
  TranslatorOptions options;
  options.device = "cpu";
  options.threads = 1;
  options.batch = 1;
  const std::vector<std::string_view> texts{"the cat sees a bird", "one", "a big red dog", "a tree"};
  const auto one_by_one = Translator(kToyBundle, options).translate(texts, {});
  const auto together = open_toy(2).translate(texts, {});
  for (std::size_t i = 0; i < texts.size(); ++i) CHECK(one_by_one[i].ids == together[i].ids);
}

TEST_CASE("a process that was forked goes on with what was ready") {
  TranslatorOptions options;
  options.device = "cpu";
  options.threads = 1;  // ONNX Runtime's own threads do not come along
  auto translator = std::make_unique<Translator>(kToyBundle, options);
  const std::vector<std::string_view> texts{"the cat sees a bird", "a big red dog"};
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the thread waits: sanitizers' locks are not held
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(60);
    bool same = true;
    for (int i = 0; i < 2; ++i) {
      same = same && translator->translate({texts[0]}, {})[0].ids == translator->translate(texts, {})[0].ids;
    }
    translator.reset();
    ::_exit(same ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(translator->translate({texts[0]}, {})[0].ids == translator->translate(texts, {})[0].ids);
}
