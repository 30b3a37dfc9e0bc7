// txport-translate: standard input to standard output, line by line; the same bytes as tx-translate writes.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "errors.hpp"
#include "text/lines.hpp"
#include "text/utf8.hpp"
#include "translator.hpp"

namespace {

using namespace txport::core;

// As shells report a program that a closed pipe ended.
constexpr int kClosedPipe = 141;

// A log-probability with six decimals, never as minus zero.
std::string show(double score) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(6) << score;
  return text.str() == "-0.000000" ? "0.000000" : text.str();
}

template <typename T, typename Show>
std::string array(const std::vector<T>& values, const Show& show_one) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : ", ") + show_one(value);
  return "[" + text + "]";
}

std::string as_json_line(const Translation& result) {
  const std::string scores = result.scores ? ", \"scores\": " + array(*result.scores, show) : "";
  const std::string ids = array(result.ids, [](std::int64_t id) { return std::to_string(id); });
  return "{\"text\": " + nlohmann::json(result.text).dump() + ", \"ids\": " + ids + scores +
         ", \"truncated\": " + (result.truncated ? "true" : "false") + "}\n";
}

struct Arguments {
  std::string bundle;
  bool json = false;
  std::size_t window = kWindowLines;
  TranslatorOptions opening;
  Options options;
};

// Lines up to the first that is not UTF-8 are translated before it is refused.
std::size_t valid_lines(const std::vector<std::string>& lines) {
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (utf8_fault(lines[i])) return i;
  }
  return lines.size();
}

int translate(const Arguments& arguments) {
  const Translator translator(arguments.bundle, arguments.opening);
  Windows windows(STDIN_FILENO, arguments.window);
  std::size_t first = 1;
  const auto give = [&](const std::vector<std::string>& lines, std::size_t begin, std::size_t end) {
    const std::vector<std::string_view> texts(lines.begin() + static_cast<std::ptrdiff_t>(begin),
                                              lines.begin() + static_cast<std::ptrdiff_t>(end));
    std::string output;
    for (const Translation& result : translator.translate(texts, arguments.options, "line", first + begin)) {
      output += arguments.json ? as_json_line(result) : as_line(result.text);
    }
    return write_all(STDOUT_FILENO, output);
  };
  for (auto lines = windows.next(); !lines.empty(); lines = windows.next()) {
    const std::size_t valid = valid_lines(lines);
    if (valid > 0 && !give(lines, 0, valid)) return kClosedPipe;
    if (valid < lines.size()) give(lines, valid, valid + 1);  // throws
    first += lines.size();
  }
  return 0;
}

CLI::Range at_least(std::int64_t least) { return {least, std::numeric_limits<std::int64_t>::max()}; }

// The flag of an option, by its kind.
void add(CLI::App& app, const std::string& flag, Options::Limit& option, const char* help) {
  app.add_option(flag, option, help)->check(at_least(1));
}
void add(CLI::App& app, const std::string& flag, Options::Count& option, const char* help) {
  app.add_option(flag, option, help)->check(at_least(0));
}
void add(CLI::App& app, const std::string& flag, Options::Flag& option, const char* help) {
  app.add_flag(flag, option, help);
}
void add(CLI::App& app, const std::string& flag, Options::Text& option, const char* help) {
  app.add_option(flag, option, help);
}
void add(CLI::App& app, const std::string& flag, Options::Prefix& option, const char* help) {
  app.add_option_function<std::string>(
      flag, [&option](const std::string& text) { option = text; }, help);
}

// max_length is --max-length.
std::string flag_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

void declare(CLI::App& app, Arguments& arguments) {
  TranslatorOptions& opening = arguments.opening;
  app.add_option("bundle", arguments.bundle, "The directory that tx-export wrote.")->required();
  app.add_flag("--json", arguments.json, "Write a JSON object a line: text, ids, truncated (and scores).");
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): a name as text and as a member
#define TXPORT_OPTION(kind, name, help) add(app, flag_of(#name), arguments.options.name, help);
#include "options.inc"
#undef TXPORT_OPTION
  app.add_option("--device", opening.device, "Where to run: auto, cpu, cuda or trt. [default: auto]");
  app.add_option("--lowering", opening.lowering,
                 "The decoder step to use: ort, scatter or tensorscatter. [default: the best here]");
  app.add_option("--threads", opening.threads, "Threads of a batch. [default: the cores, shared]")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  opening.workers = 0;
  app.add_option("--workers", opening.workers, "Batches side by side on the CPU. [default: by the cores]")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  app.add_option("--batch", opening.batch, "Most lines that run together. [default: the bundle's]")->check(at_least(1));
  app.add_option("--batch-tokens", opening.batch_tokens, "Most source tokens, padding included, that run together.")
      ->check(at_least(1))
      ->capture_default_str();
  app.add_option("--window", arguments.window, "Most lines to read ahead.")->check(at_least(1))->capture_default_str();
  app.set_version_flag("--version", TXPORT_VERSION);
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): only for want of memory to report an error
int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // NOLINT(cert-err33-c): write reports it instead
  CLI::App app{"Translate lines from standard input to standard output with a bundle. One line out for each line in."};
  Arguments arguments;
  try {
    declare(app, arguments);
    app.parse(argc, argv);
    arguments.options.scores = arguments.options.scores && arguments.json;
    arguments.opening.warn = [](const std::string& words) { std::cerr << "txport-translate: " << words << std::endl; };
    return translate(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const CheckFailed& error) {
    std::cerr << "txport-translate: " << error.what() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "txport-translate: " << error.what() << "\n";
    return 2;
  }
}
