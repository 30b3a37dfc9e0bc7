// txport-translate: translate files or standard input line by line to standard output or a file. It writes the same
// bytes as tx-translate.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

#include "at_least.hpp"
#include "errors.hpp"
#include "new_file.hpp"
#include "text/lines.hpp"
#include "translator.hpp"
#include "utf8.hpp"

namespace {

using namespace txport::core;
using txport::tools::at_least;

// Exit codes after Ctrl-C and after a closed pipe, as shells report them.
constexpr int kInterrupted = 130;
constexpr int kClosedPipe = 141;
constexpr const char* kStandardInput = "-";

// Return a log-probability with six decimals, never as minus zero. JSON cannot represent infinite numbers or NaN.
std::string show(double score) {
  if (!std::isfinite(score)) return "null";
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

// Return a byte range of a text in characters, which tx-translate counts.
std::string in_characters(const Span& span, std::string_view text) {
  const std::size_t start = count_characters(text.substr(0, span.start));
  const std::size_t length = count_characters(text.substr(span.start, span.end - span.start));
  return "[" + std::to_string(start) + ", " + std::to_string(start + length) + "]";
}

std::string in_characters(const std::vector<Span>& words, std::string_view text) {
  return array(words, [text](const Span& word) { return in_characters(word, text); });
}

std::string rows_of(const FloatMatrix& matrix) {
  std::string text;
  for (auto row = matrix.values.begin(); row != matrix.values.end();
       row += static_cast<std::ptrdiff_t>(matrix.columns)) {
    const std::vector<float> values(row, row + static_cast<std::ptrdiff_t>(matrix.columns));
    text += (text.empty() ? "" : ", ") + array(values, show);
  }
  return "[" + text + "]";
}

std::string as_json(const Translation& result, std::string_view source) {
  std::string alignment;
  if (result.alignment) {
    alignment = R"(, "alignment": ")" + result.alignment->pharaoh + R"(", "source_words": )" +
                in_characters(result.alignment->source_words, source) + R"(, "target_words": )" +
                in_characters(result.alignment->target_words, result.text);
  }
  const std::string score = result.score ? ", \"score\": " + show(*result.score) : "";
  const std::string scores = result.scores ? ", \"scores\": " + array(*result.scores, show) : "";
  const std::string attention = result.attention ? ", \"attention\": " + rows_of(*result.attention) : "";
  const std::string ids = array(result.ids, [](std::int64_t id) { return std::to_string(id); });
  const auto one = [source](const Translation& each) { return as_json(each, source); };
  const std::string others = result.hypotheses.empty() ? "" : ", \"hypotheses\": " + array(result.hypotheses, one);
  const auto flag = [](const char* name, bool value) {
    return std::string(", \"") + name + "\": " + (value ? "true" : "false");
  };
  return "{\"text\": " + nlohmann::json(result.text).dump() + ", \"ids\": " + ids + score + scores + alignment +
         attention + flag("truncated", result.truncated) + flag("finished", result.finished) +
         flag("looped", result.looped) + others + "}";
}

// Return a document as JSON: the text, and its parts with their character ranges in source and text.
std::string as_json(const Document& document, std::string_view source) {
  const std::string parts = array(document.parts, [&](const Part& part) {
    return R"({"source": )" + in_characters(part.source, source) + R"(, "target": )" +
           in_characters(part.target, document.text) + R"(, "cut": )" + (part.cut ? "true" : "false") + ", " +
           as_json(part.translation, part.text).substr(1);
  });
  return "{\"text\": " + nlohmann::json(document.text).dump() + ", \"parts\": " + parts + "}\n";
}

// Return the text and its alignment in Marian's format.
std::string as_text_line(const Translation& result, bool alignments) {
  if (!alignments) return as_line(result.text);
  const std::string pairs = result.alignment ? result.alignment->pharaoh : "";
  return as_line(result.text + " |||" + (pairs.empty() ? "" : " ") + pairs);
}

struct Arguments {
  std::string bundle;
  std::vector<std::string> files;
  std::string output;
  std::string errors = "strict";
  bool json = false;
  bool document = false;
  std::size_t window = kWindowLines;
  TranslatorOptions opening;
  Options options;
};

// Return whether standard error is a terminal while input and output are not.
bool is_watched(const Arguments& arguments) {
  const bool reads = std::count(arguments.files.begin(), arguments.files.end(), kStandardInput) > 0;
  return ::isatty(STDERR_FILENO) != 0 && !(reads && ::isatty(STDIN_FILENO) != 0) &&
         !(arguments.output.empty() && ::isatty(STDOUT_FILENO) != 0);
}

// Cleanup after Ctrl-C: an unfinished file (or null), and whether a progress line is unfinished.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): a signal handler can only access globals
const char* volatile unfinished_file = nullptr;
volatile std::sig_atomic_t unfinished_line = 0;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

extern "C" void on_interrupt(int /*signal*/) {
  constexpr const char* kWords = "\ntxport-translate: interrupted\n";
  const char* words = kWords + (unfinished_line != 0 ? 0 : 1);
  if (unfinished_file != nullptr) ::unlink(unfinished_file);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, words, std::strlen(words));
  ::_exit(kInterrupted);
}

// Progress line on standard error: lines translated and lines per second.
class Progress {
 public:
  explicit Progress(bool shown) : clear(shown ? "\r\x1b[K" : "") {}
  ~Progress() {
    if (!clear.empty() && lines_ > 0) std::cerr << std::endl;
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void start() { start_ = Clock::now(); }

  void add(std::size_t lines) {
    lines_ += lines;
    if (clear.empty()) return;
    unfinished_line = 1;
    const double seconds = std::max(std::chrono::duration<double>(Clock::now() - start_).count(), 1e-3);
    std::cerr << clear << lines_ << " lines, " << std::lround(static_cast<double>(lines_) / seconds) << " per second"
              << std::flush;
  }

  const std::string clear;  // erases the progress line; must precede other messages

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  std::size_t lines_ = 0;
};

// A background job of a shell ignores Ctrl-C; keep that setting.
void listen_for_interrupts() {
  if (std::signal(SIGINT, on_interrupt) == SIG_IGN) std::signal(SIGINT, SIG_IGN);  // NOLINT(cert-err33-c)
}

// Standard output or a file.
class Output {
 public:
  explicit Output(const std::string& path) {
    if (path.empty()) return;
    file_.emplace(path);
    unfinished_file = file_->temporary_path().c_str();  // before the file exists: Ctrl-C may come at any time
    file_->open();
  }
  ~Output() { unfinished_file = nullptr; }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Return false if the reader has closed the pipe.
  bool write(const std::string& data) const { return write_all(file_ ? file_->descriptor() : STDOUT_FILENO, data); }
  void finish() {
    if (file_) file_->publish();
  }

 private:
  std::optional<NewFile> file_;
};

// Return the flag of an option: --max-length for max_length.
std::string flag_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

// Replace names of options in a message with their flags, such as n_best with --n-best.
std::string with_flags(const std::string& message) {
#define TXPORT_OPTION(kind, name, help) #name,
  static const std::vector<std::string> options{
#include "txport/options.inc"
  };
#undef TXPORT_OPTION
  // An option of a single word is also a word of the language, except in these places.
  static const std::regex named = [] {
    std::string long_names, short_names;
    for (const std::string& name : options)
      (name.find('_') == std::string::npos ? short_names : long_names) += "|" + name;
    const std::string is_short = "(" + short_names.substr(1) + ")";
    return std::regex(
        R"(\bthe option (\w+)|\b()" + long_names.substr(1) + R"()\b(?![./]))" + R"(|\b)" + is_short +
        R"((?= has no effect| excludes | contains | has the id | \S+ is (?:not|too) )|\b(without |excludes |raise ))" +
        is_short + R"(\b)");
  }();
  std::string result;
  auto rest = message.cbegin();
  for (std::sregex_iterator match(message.begin(), message.end(), named), end; match != end; ++match) {
    const std::smatch& option = *match;
    result.append(rest, option[0].first);
    result += option[4].str() + flag_of(option[1].str() + option[2].str() + option[3].str() + option[5].str());
    rest = option[0].second;
  }
  return result.append(rest, message.cend());
}

// Refuse arguments that would fail only after the translation.
void check(const Arguments& arguments) {
  const auto needs_json = [&](bool requested, const std::string& name) {
    if (requested && !arguments.json) {
      throw InputError(flag_of(name) + " needs --json: it does not fit in a line of text");
    }
  };
  needs_json(arguments.options.scores, "scores");
  needs_json(arguments.options.attention, "attention");
  needs_json(arguments.document && arguments.options.alignments, "alignments");
  needs_json(arguments.options.n_best.has_value(), "n_best");
  needs_json(arguments.options.alternatives.has_value(), "alternatives");
  for (const std::string& file : arguments.files) {
    if (file != kStandardInput) InputFile::check(file);
  }
}

// Removed from the first line of a file.
constexpr const char* kByteOrderMark = "\xEF\xBB\xBF";

// Longer lines are refused: they are not sentences, and would waste memory and time.
constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;

// Return a number with commas between thousands.
std::string grouped(std::size_t number) {
  std::string text = std::to_string(number);
  for (std::size_t place = text.size(); place > 3; place -= 3) text.insert(place - 3, ",");
  return text;
}

// Throw an error that explains why a line is not translated.
void refuse_line(const std::string& line, const std::string& what) {
  if (line.size() > kMaxLineBytes) {
    throw InputError(what + " has " + grouped(line.size()) + " bytes, more than " + grouped(kMaxLineBytes) +
                     ": break it into sentences, or choose --errors skip");
  }
  check_utf8(line, what, ", or choose --errors replace or skip");
}

// Replace or skip invalid UTF-8 and skip lines longer than `max_bytes`, according to --errors. Return the number of
// lines before the first invalid one.
std::size_t usable_lines(std::vector<std::string>& lines, const std::string& errors,
                         std::size_t max_bytes = std::string::npos) {
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].size() > max_bytes) {
      if (errors != "skip") return i;
      lines[i].clear();
    }
    if (!utf8_fault(lines[i])) continue;
    if (errors == "strict") return i;
    lines[i] = errors == "replace" ? replace_faults(lines[i]) : "";
  }
  return lines.size();
}

// Return a text in which each line is valid UTF-8; see `usable_lines`.
std::string usable_text(std::string text, const std::string& errors, const std::string& what) {
  if (!utf8_fault(text)) return text;
  std::string usable;
  std::size_t number = 1;
  for (std::size_t start = 0, end = 0; end != std::string::npos; start = end + 1, ++number) {
    end = text.find('\n', start);
    std::vector<std::string> line{text.substr(start, end == std::string::npos ? end : end - start)};
    if (usable_lines(line, errors) == 0) {
      check_utf8(line[0], what + " " + std::to_string(number), ", or choose --errors replace or skip");
    }
    usable += line[0];
    if (end != std::string::npos) usable += '\n';
  }
  return usable;
}

// Translate one file as a document; false if the reader closed the pipe.
bool translate_whole(const Arguments& arguments, const Translator& translator, int descriptor, const std::string& what,
                     const Output& output, Progress& progress) {
  const std::string text = usable_text(read_all(descriptor), arguments.errors, what);
  const Document document = translator.translate_document(text, arguments.options, what);
  progress.add(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')));
  return output.write(arguments.json ? as_json(document, text) : document.text);
}

// Translate one file; false if the reader closed the pipe.
bool translate_file(const Arguments& arguments, const Translator& translator, const std::string& path,
                    const Output& output, Progress& progress) {
  std::optional<InputFile> file;
  if (path != kStandardInput) file.emplace(path);
  const std::string what = file ? path + ", line" : "line";
  const int descriptor = file ? file->descriptor() : STDIN_FILENO;
  if (arguments.document) return translate_whole(arguments, translator, descriptor, what, output, progress);
  Windows windows(descriptor, arguments.window, arguments.output.empty() ? kFirstLines : arguments.window);
  std::size_t first = 1;
  for (auto lines = windows.next(); !lines.empty(); lines = windows.next()) {
    if (first == 1 && lines[0].rfind(kByteOrderMark, 0) == 0) lines[0].erase(0, std::strlen(kByteOrderMark));
    const std::size_t usable = usable_lines(lines, arguments.errors, kMaxLineBytes);
    const std::vector<std::string_view> texts(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(usable));
    std::string written;
    const auto results = translator.translate(texts, arguments.options, what, first);
    for (std::size_t i = 0; i < results.size(); ++i) {
      written += arguments.json ? as_json(results[i], texts[i]) + "\n"
                                : as_text_line(results[i], arguments.options.alignments);
    }
    if (!output.write(written)) return false;
    progress.add(usable);
    if (usable < lines.size()) refuse_line(lines[usable], what + " " + std::to_string(first + usable));
    first += lines.size();
  }
  return true;
}

int translate(Arguments& arguments) {
  if (arguments.files.empty()) arguments.files.emplace_back(kStandardInput);
  check(arguments);
  Progress progress(is_watched(arguments));
  arguments.opening.warn = [&progress](const std::string& words) {
    std::cerr << progress.clear << "txport-translate: " << words << std::endl;
  };
  const Translator translator(arguments.bundle, arguments.opening);
  Output output(arguments.output);
  progress.start();
  for (const std::string& path : arguments.files) {
    if (!translate_file(arguments, translator, path, output, progress)) return kClosedPipe;
  }
  output.finish();
  return 0;
}

// Add the flag of an option to the command line, according to its kind.
void add(CLI::App& app, const std::string& flag, Options::Limit& option, const char* help) {
  at_least(app.add_option<Options::Limit, std::int64_t>(flag, option, help), 1);
}
void add(CLI::App& app, const std::string& flag, Options::Natural& option, const char* help) {
  at_least(app.add_option<Options::Natural, std::int64_t>(flag, option, help), 0);
}
void add(CLI::App& app, const std::string& flag, Options::Count& option, const char* help) {
  at_least(app.add_option(flag, option, help), 0);
}
template <int kind>
void add(CLI::App& app, const std::string& flag, Options::Maybe<double, kind>& option, const char* help) {
  app.add_option<Options::Maybe<double, kind>, double>(flag, option, help);
}
void add(CLI::App& app, const std::string& flag, Options::Switch& option, const char* help) {
  app.add_flag_callback(
      flag, [&option] { option = true; }, help);
}
void add(CLI::App& app, const std::string& flag, Options::Flag& option, const char* help) {
  app.add_flag(flag, option, help);
}
void add(CLI::App& app, const std::string& flag, Options::Text& option, const char* help) {
  app.add_option(flag, option, help);
}
template <typename Choice, typename = decltype(Choice::kChoices)>
void add(CLI::App& app, const std::string& flag, Choice& option, const char* help) {
  const std::set<std::string> choices(Choice::kChoices.begin(), Choice::kChoices.end());
  app.add_option_function<std::string>(
         flag, [&option](const std::string& text) { option = text; }, help)
      ->check(CLI::IsMember(choices));
}
void add(CLI::App& app, const std::string& flag, Options::Prefix& option, const char* help) {
  app.add_option_function<std::string>(
      flag, [&option](const std::string& text) { option = text; }, help);
}
// Repeatable flags: one value per flag.
void add(CLI::App& app, const std::string& flag, Options::Words& option, const char* help) {
  app.add_option_function<std::vector<std::string>>(
         flag, [&option](const std::vector<std::string>& words) { option.assign(words.begin(), words.end()); }, help)
      ->expected(1)
      ->take_all();
}
void add(CLI::App& app, const std::string& flag, Options::List& option, const char* help) {
  at_least(app.add_option(flag, option, help)->expected(1)->take_all(), 0);
}

void declare(CLI::App& app, Arguments& arguments) {
  TranslatorOptions& opening = arguments.opening;
  app.add_option("bundle", arguments.bundle, "A bundle: a directory of tx-export or a file of tx-pack.")->required();
  app.add_option("files", arguments.files, "Files to translate. [default: -, standard input]");
  app.add_option("-o,--output", arguments.output,
                 "File to write. It appears only when complete. [default: standard output]");
  app.add_option("--errors", arguments.errors,
                 "What to do with a line that is not UTF-8: stop (strict), insert U+FFFD (replace), or write an empty "
                 "line (skip).")
      ->check(CLI::IsMember({"strict", "replace", "skip"}))
      ->capture_default_str();
  app.add_flag("--json", arguments.json, "Write one JSON object per line: text, ids, truncated, finished.");
  app.add_flag("--document", arguments.document,
               "Translate each file as a document: split it into sentences and keep its layout. With --json, write one "
               "object per file.");
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): a name as text and as a member
#define TXPORT_OPTION(kind, name, help) add(app, flag_of(#name), arguments.options.name, help);
#include "txport/options.inc"
#undef TXPORT_OPTION
  app.add_option("--device", opening.where.device, "Device: auto, cpu or cuda. [default: auto]");
  app.add_option("--engine", opening.where.engine, "Engine: auto, fused, ort or trt. [default: auto]");
  app.add_flag("--trust-engines", opening.where.trust_engines,
               "Run TensorRT engines that are part of a bundle. They are native code: use only bundles that you trust. "
               "[default: only engines of tx-build]");
  app.add_option(
      "--lowering", opening.where.lowering,
      "For experts: decoder step graph: ort, scatter or tensorscatter. [default: the best for the installed library]");
  at_least(app.add_option("--threads", opening.threads, "Threads per batch. [default: number of cores / --workers]"),
           0);
  opening.workers = 0;
  at_least(app.add_option("--workers", opening.workers,
                          "Batches that run in parallel on the CPU. [default: one per core, at most 4]"),
           0);
  at_least(app.add_option("--batch", opening.batch, "Maximum batch size in lines. [default: the bundle's maximum]"), 1);
  at_least(
      app.add_option("--batch-tokens", opening.batch_tokens, "Maximum batch size in source tokens, including padding."),
      1)
      ->capture_default_str();
  at_least(app.add_option("--window", arguments.window, "Maximum number of lines to read ahead."), 1)
      ->capture_default_str();
  app.set_version_flag("--version", TXPORT_VERSION);
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): only if there is no memory to report an error
int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // NOLINT(cert-err33-c): write() reports it instead
  listen_for_interrupts();
  CLI::App app{"Translate lines of files or standard input with a bundle. Each input line gives one output line."};
  Arguments arguments;
  try {
    declare(app, arguments);
    app.parse(argc, argv);
    if (arguments.document && app.count("--window") > 0) {
      throw InputError("--window has no effect with --document: leave it out");
    }
    return translate(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const CheckFailed& error) {
    std::cerr << "txport-translate: " << printable(error.what()) << "\n";
    return 1;
  } catch (const InputError& error) {
    std::cerr << "txport-translate: " << printable(with_flags(error.what())) << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "txport-translate: " << printable(error.what()) << "\n";
    return 2;
  }
}
