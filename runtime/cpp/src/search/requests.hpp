// Requests and results of a search.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine.hpp"
#include "search/settings.hpp"

namespace txport::core {

// One sentence to translate.
struct Request {
  Ids source_ids;                          // encoder input, including eos; 1 to Limits::source ids
  std::optional<std::int64_t> max_length;  // maximum number of target tokens, including eos; no value: Limits::target
  std::int64_t min_length = 0;             // minimum number of target tokens
  Ids prefix;                              // target ids that the translation must begin with
  bool scores = false;                     // compute Hypothesis::scores
  // Number of leading ids of `prefix` that the model forces. They count towards the length of a hypothesis; the other
  // ids do not. The same holds for Hugging Face's `forced_bos_token_id` and `decoder_input_ids`.
  std::size_t forced = 0;
  std::uint64_t key = 0;  // index of the sentence, part of the random key of sampling
  Search search = {};     // search settings; the same for all requests of one scheduler
  // Allowed target ids, ascending; null if the search has no shortlist.
  std::shared_ptr<const Ids> words = nullptr;
  std::shared_ptr<const FloatMatrix> vectors = nullptr;  // instead of source ids, of a model that reads vectors

  // Check the request. Throws InputError: the source is empty or longer than the engine supports, or a length is not
  // positive.
  void check(const Limits& limits) const;
  // Return the maximum number of target tokens on an engine with these limits, including eos.
  std::int64_t limit(const Limits& limits) const;
  EncoderInput source() const { return {source_ids, vectors}; }
  std::int64_t source_length() const {
    return static_cast<std::int64_t>(vectors != nullptr ? vectors->rows : source_ids.size());
  }
  // Return whether a rule may change tokens after the prefix, so that the host must process each step.
  bool ruled() const { return min_length > 0 || search.rules.change_scores(); }
};

// One translation of a request.
struct Hypothesis {
  Ids ids;  // target ids with prefix and without bos; the last is eos unless the maximum length was reached
  // Natural log-probability of each id, if requested. In beam search, after the rules were applied, and 0 for ids of
  // the prefix.
  std::optional<std::vector<double>> scores;
  std::optional<double> score;  // beam search: log-probability with Search::length_penalty applied
};

// The translations of a request.
struct Result {
  std::size_t index = 0;               // index of the request in the order of submission, from 0
  std::vector<Hypothesis> hypotheses;  // up to Search::n_best, the best first

  // Ids and scores of the best hypothesis.
  const Ids& ids() const { return hypotheses.front().ids; }
  const std::optional<std::vector<double>>& scores() const { return hypotheses.front().scores; }
};

// One token of a stream.
struct Token {
  std::int64_t id = 0;
  std::optional<double> score;  // log-probability, if requested
  bool last = false;
};

// A request that is being decoded, in one row or in the Policy::rows rows of its search.
struct Slot {
  std::size_t index;
  Request request;
  std::int64_t limit;       // maximum number of target tokens
  std::int64_t length = 0;  // number of tokens generated so far
  Ids ids;                  // tokens generated so far, including the prefix
  std::vector<double> scores;
  bool done = false;
  bool cancelled = false;     // its result is not needed: its rows become free as soon as the host may change the state
  bool ruled;                 // see Request::ruled
  std::int64_t single_steps;  // up to this length, the host must process each step before the next one

  Slot(std::size_t index, Request request, std::int64_t limit);
  virtual ~Slot() = default;
  Slot(const Slot&) = default;
  Slot(Slot&&) = default;
  Slot& operator=(const Slot&) = default;
  Slot& operator=(Slot&&) = default;

  // Append a token. The translation ends if `is_end` and the token is not part of the prefix.
  void extend(std::int64_t token, bool is_end);
  // Move out and return the result.
  virtual Result result();
  Hypothesis hypothesis();
};

}  // namespace txport::core
