// txport-bench: measures a bundle on this machine with the C++ runtime. README.md lists what is timed.

#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "at_least.hpp"
#include "errors.hpp"
#include "translator.hpp"
#include "utf8.hpp"

namespace {

using namespace txport::core;
using txport::tools::at_least;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMinWarmUp = 3;
constexpr std::size_t kMaxWarmUp = 30;
constexpr double kStable = 0.05;  // warm-up ends when three calls in a row differ by less

struct Arguments {
  std::string bundle;
  std::string output;
  std::int64_t batch = 1;
  std::int64_t source = 32;
  std::int64_t target = 64;
  std::size_t calls = 200;
  double seconds = 20;
  TranslatorOptions opening;
};

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Return the percentile of sorted values, by the nearest-rank method. `share` is from 0 to 1.
double percentile(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<std::size_t>(rank, 1) - 1];
}

Json percentiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {{"p50", percentile(values, 0.50)}, {"p90", percentile(values, 0.90)}, {"p99", percentile(values, 0.99)}};
}

// Return random ids, the same in every run. Ids do not affect the time.
Ids make_source(const Manifest& manifest, std::int64_t length, std::uint32_t seed) {
  std::mt19937 random(seed);
  const std::int64_t vocabulary = manifest.model.source_vocabulary;
  Ids ids;
  while (static_cast<std::int64_t>(ids.size()) < length - 1) {
    const auto id = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(vocabulary));
    if (id != manifest.tokens.pad && id != manifest.tokens.eos) ids.push_back(id);
  }
  ids.push_back(manifest.tokens.eos);
  return ids;
}

// Call until three calls in a row take about the same time. Return the number of calls.
std::size_t warm_up(const std::function<double()>& call) {
  std::vector<double> times;
  while (times.size() < kMaxWarmUp) {
    times.push_back(call());
    if (times.size() < kMinWarmUp) continue;
    const auto [fastest, slowest] = std::minmax_element(times.end() - 3, times.end());
    if (*slowest <= *fastest * (1 + kStable)) break;
  }
  return times.size();
}

std::string processor() {
  std::ifstream facts("/proc/cpuinfo");
  for (std::string line; std::getline(facts, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::int64_t resident_bytes() {
  std::ifstream facts("/proc/self/statm");
  std::int64_t size = 0;
  std::int64_t resident = 0;
  facts >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

void check(const Arguments& arguments, const Manifest& manifest) {
  const Limits limits = manifest.limits();
  if (arguments.batch > limits.batch || arguments.source > limits.source || arguments.target > limits.target) {
    throw InputError("this bundle supports up to " + std::to_string(limits.batch) + " sentences of " +
                     std::to_string(limits.source) + " source tokens and up to " + std::to_string(limits.target) +
                     " target tokens: choose --batch, --source and --target within these limits");
  }
}

// Run all timed calls. Generated tokens are counted, since a model may end a sentence early.
Json measure(const Arguments& arguments, const Translator& translator, double open_ms, double startup_ms) {
  const Manifest& manifest = translator.manifest();
  std::vector<Ids> sources;
  Ids padded;
  for (std::int64_t row = 0; row < arguments.batch; ++row) {
    sources.push_back(make_source(manifest, arguments.source, static_cast<std::uint32_t>(row)));
    padded.insert(padded.end(), sources.back().begin(), sources.back().end());
  }
  const Ids lengths(sources.size(), arguments.source);
  Options options;
  options.max_length = arguments.target;
  Options one_token;
  one_token.max_length = 1;
  std::int64_t tokens = 0;
  std::int64_t steps = 0;
  const auto timed = [&](const std::function<void()>& body) {
    const auto start = Clock::now();
    body();
    return milliseconds_since(start);
  };
  const auto translate = [&] {
    steps = tokens = 0;
    for (const Translation& result : translator.translate_ids(sources, options)) {
      const auto length = static_cast<std::int64_t>(result.ids.size());
      tokens += length;
      steps = std::max(steps, length);
    }
  };
  const std::size_t warm_ups = warm_up([&] { return timed(translate); });
  std::vector<double> encoder;
  std::vector<double> first;
  std::vector<double> per_token;
  double total_ms = 0;
  const auto begin = Clock::now();
  while (per_token.size() < arguments.calls && milliseconds_since(begin) < 1000 * arguments.seconds) {
    encoder.push_back(timed([&] {
      translator.engine().encode(padded, lengths);
      translator.engine().synchronize();
    }));
    first.push_back(timed([&] { translator.translate_ids(sources, one_token); }));
    const double call = timed(translate);
    total_ms += call;
    per_token.push_back(call / static_cast<double>(steps));
  }
  const auto calls = static_cast<double>(per_token.size());
  return {{"calls", per_token.size()},
          {"warm_up_calls", warm_ups},
          {"tokens_per_call", tokens},
          {"open_ms", open_ms},
          {"startup_ms", startup_ms},
          {"encoder_ms", percentiles(encoder)},
          {"first_token_ms", percentiles(first)},
          {"ms_per_token", percentiles(per_token)},
          {"tokens_per_second", 1000 * calls * static_cast<double>(tokens) / total_ms},
          {"sentences_per_second", 1000 * calls * static_cast<double>(arguments.batch) / total_ms},
          {"resident_bytes", resident_bytes()},
          {"peak_resident_bytes", peak_resident_bytes()}};
}

Json bench(const Arguments& arguments, Clock::time_point start) {
  const Translator translator(arguments.bundle, arguments.opening);
  const double open_ms = milliseconds_since(start);
  const Manifest& manifest = translator.manifest();
  check(arguments, manifest);
  Options one_token;
  one_token.max_length = 1;
  translator.translate_ids({make_source(manifest, arguments.source, 0)}, one_token);
  const double startup_ms = milliseconds_since(start);
  Json figures = measure(arguments, translator, open_ms, startup_ms);
  return {{"format", "txport-bench"},
          {"format_version", 1},
          {"made_by", {{"name", "txport-bench"}, {"version", TXPORT_VERSION}}},
          {"machine", {{"processor", processor()}, {"cores", std::thread::hardware_concurrency()}}},
          {"bundle", {{"manifest_sha256", manifest.sha256}, {"precision", manifest.precision.type}}},
          {"engine", translator.engine().name()},
          {"reason", translator.reason()},
          {"threads", arguments.opening.threads},
          {"workload", {{"batch", arguments.batch}, {"source", arguments.source}, {"target", arguments.target}}},
          {"figures", std::move(figures)}};
}

void declare(CLI::App& app, Arguments& arguments) {
  app.add_option("bundle", arguments.bundle, "A bundle: a directory of tx-export or a file of tx-pack.")->required();
  app.add_option("-o,--output", arguments.output, "File for the JSON. [default: standard output]");
  at_least(app.add_option("--batch", arguments.batch, "Batch size in sentences."), 1)->capture_default_str();
  at_least(app.add_option("--source", arguments.source, "Source tokens per sentence."), 1)->capture_default_str();
  at_least(app.add_option("--target", arguments.target, "Target tokens per sentence."), 1)->capture_default_str();
  at_least(app.add_option("--calls", arguments.calls, "Number of timed calls."), 1)->capture_default_str();
  app.add_option("--seconds", arguments.seconds, "Stop timing after this number of seconds.")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  EngineRequest& where = arguments.opening.where;
  app.add_option("--device", where.device, "Device: auto, cpu or cuda. [default: auto]");
  app.add_option("--engine", where.engine, "Engine: auto, fused, ort or trt. [default: auto]");
  app.add_option("--lowering", where.lowering, "Decoder step graph. [default: the best for the installed library]");
  at_least(app.add_option("--threads", arguments.opening.threads, "Number of threads. [default: one per core]"), 0);
  app.set_version_flag("--version", TXPORT_VERSION);
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): only if there is no memory to report an error
int main(int argc, char** argv) {
  const auto start = Clock::now();
  CLI::App app{
      "Measure a bundle: time to open, first token, milliseconds per token, tokens per second, memory. Writes JSON."};
  Arguments arguments;
  try {
    declare(app, arguments);
    app.parse(argc, argv);
    arguments.opening.batch = arguments.batch;
    arguments.opening.batch_tokens = arguments.batch * arguments.source;
    const std::string text = bench(arguments, start).dump(1) + "\n";
    if (arguments.output.empty()) {
      std::cout << text;
      return 0;
    }
    std::ofstream file(arguments.output);
    file << text << std::flush;
    if (!file) throw InputError(arguments.output + " cannot be written: choose another file with --output");
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::cerr << "txport-bench: " << printable(error.what()) << "\n";
    return 2;
  }
}
