// What a search is asked for and what it answers.
#pragma once

#include <optional>
#include <vector>

#include "engine.hpp"

namespace txport::core {

// One sentence to translate.
struct Request {
  Ids source_ids;                          // the encoder's input, eos included; 1 to Limits::source ids
  std::optional<std::int64_t> max_length;  // the most tokens to make, eos included; nothing is Limits::target
  std::int64_t min_length = 0;             // tokens to make before eos may be made
  Ids prefix;                              // target ids that the answer must begin with
  bool scores = false;                     // compute Result::scores

  // Throws InputError: the source is empty or longer than the engine takes, or a length is not positive.
  void check(const Limits& limits) const;
  // The most tokens that an engine makes for it, eos included.
  std::int64_t limit(const Limits& limits) const;
  std::int64_t width() const { return static_cast<std::int64_t>(source_ids.size()); }
};

// The answer to a request.
struct Result {
  std::size_t index = 0;                      // which request, in the order of submission, counted from 0
  Ids ids;                                    // without bos; ends with eos unless the maximum length came first
  std::optional<std::vector<double>> scores;  // the natural logarithm of each id's probability, if requested
};

// One step of a stream: its id, its log-probability if requested, and whether it is the last.
struct Token {
  std::int64_t id = 0;
  std::optional<double> score;
  bool last = false;
};

// A request that a row works on.
struct Slot {
  std::size_t index = 0;
  Request request;
  std::int64_t limit = 0;  // the most tokens of its answer
  Ids ids = {};
  std::vector<double> scores = {};
  bool done = false;

  std::int64_t length() const { return static_cast<std::int64_t>(ids.size()); }
  // Append a token, which may be the last.
  void add(std::int64_t token, std::int64_t eos);
  // The answer, which is moved out.
  Result result();
};

}  // namespace txport::core
