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
  Ids source_ids;                          // the encoder's input, eos included; 1 to Limits::source ids
  std::optional<std::int64_t> max_length;  // maximum number of target tokens, including eos; nothing is Limits::target
  std::int64_t min_length = 0;             // tokens to make before the answer may end
  Ids prefix;                              // target ids that the answer must begin with
  bool scores = false;                     // compute Hypothesis::scores
  // How many of `prefix` the model itself forces. Those count in the length of a hypothesis, the others do not, as with
  // Hugging Face's `forced_bos_token_id` and `decoder_input_ids`.
  std::size_t forced = 0;
  std::uint64_t key = 0;  // number that sampling draws by, besides the seed
  Search search = {};     // how to search; the same for all requests of one scheduler
  // Ascending: the ids among which the answer is chosen; none if the search has no shortlist.
  std::shared_ptr<const Ids> words = nullptr;
  std::shared_ptr<const FloatMatrix> vectors = nullptr;  // instead of source ids, of a model that reads vectors

  // Throws InputError: the source is empty or longer than the engine takes, or a length is not positive.
  void check(const Limits& limits) const;
  // Maximum number of tokens that an engine makes for it, eos included.
  std::int64_t limit(const Limits& limits) const;
  EncoderInput source() const { return {source_ids, vectors}; }
  std::int64_t width() const {
    return static_cast<std::int64_t>(vectors != nullptr ? vectors->rows : source_ids.size());
  }
  // Whether a rule may change what comes after the prefix, so that the host must see each step.
  bool ruled() const { return min_length > 0 || search.rules.change_scores(); }
};

// One answer to a request.
struct Hypothesis {
  Ids ids;  // prefix included, without bos; ends with eos unless the maximum length came first
  // The natural logarithm of each id's probability, if requested. With beams, as the rules have left it, and 0 for
  // those of the prefix.
  std::optional<std::vector<double>> scores;
  std::optional<double> score;  // what a beam search ranks by (Search::length_penalty); other searches have none
};

// The answers to a request.
struct Result {
  std::size_t index = 0;               // which request, in the order of submission, counted from 0
  std::vector<Hypothesis> hypotheses;  // Search::n_best of them, the best first; fewer if there are no more

  // Of the best answer.
  const Ids& ids() const { return hypotheses.front().ids; }
  const std::optional<std::vector<double>>& scores() const { return hypotheses.front().scores; }
};

// One step of a stream: its id, its log-probability if requested, and whether it is the last.
struct Token {
  std::int64_t id = 0;
  std::optional<double> score;
  bool last = false;
};

// A request that a row works on, or the rows of a search that takes several.
struct Slot {
  std::size_t index;
  Request request;
  std::int64_t limit;       // the maximum number of tokens of its answer
  std::int64_t length = 0;  // tokens made so far
  Ids ids;                  // the tokens of its answer so far
  std::vector<double> scores;
  bool done = false;
  bool cancelled = false;     // its answer is not needed: its rows are free as soon as the host may write to them
  bool ruled;                 // see Request::ruled
  std::int64_t single_steps;  // the length to which the host must see each step before the next

  Slot(std::size_t index, Request request, std::int64_t limit);
  virtual ~Slot() = default;
  Slot(const Slot&) = default;
  Slot(Slot&&) = default;
  Slot& operator=(const Slot&) = default;
  Slot& operator=(Slot&&) = default;

  // Append a token, which ends the answer if it is an end, and not of the prefix.
  void extend(std::int64_t token, bool is_end);
  // The answers so far, which are moved out.
  virtual Result result();
  Hypothesis hypothesis();
};

}  // namespace txport::core
