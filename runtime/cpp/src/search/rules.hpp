// Rules on the next token of a translation, with the meaning of Hugging Face's generation/logits_process.py.
#pragma once

#include <optional>
#include <vector>

#include "search/requests.hpp"

namespace txport::core {

// Return the id that is forced at the next position, if any.
std::optional<std::int64_t> forced_token(const Slot& slot);

// The rules of a search, applied to one hypothesis at a time.
class Constraints {
 public:
  Constraints(const Rules& rules, const SpecialTokens& tokens);

  // Return whether there is a repetition penalty, which changes the scores of all generated ids.
  bool penalises() const { return penalty_ != 1; }
  // Return the number of ids that end a translation.
  std::size_t ends() const { return ends_.size(); }
  // Return whether this id ends a translation.
  bool is_end(std::int64_t token) const;

  // Return whether the rules may choose another token than `token`, which has the best score. `generated` contains the
  // ids so far, with the prefix and without bos.
  bool may_change(std::int64_t token, const Ids& generated, const Request& request) const;

  // Return the ids whose scores the rules change after `generated`, ascending. Most of them are banned.
  Ids affected_ids(const Ids& generated, const Request& request) const;
  // Apply the rules to some scores, float or double: `scores[i]` is the score of `ids[i]`. Banned ids get -inf.
  template <typename Number>
  void change(const Ids& ids, std::vector<Number>& scores, const Ids& generated, const Request& request) const;
  // Apply the rules to the scores `[vocabulary]` of all tokens. If all tokens are banned, eos gets the score 0.
  template <typename Number>
  void apply(std::vector<Number>& scores, const Ids& generated, const Request& request) const;

 private:
  std::int64_t bos_;
  std::int64_t eos_;
  double penalty_;
  std::size_t no_repeat_;
  Ids ends_;
  Ids never_;
  Ids begin_suppress_;
  std::vector<Ids> phrases_;  // bad words of at least two ids

  Ids seen_ids(const Ids& generated) const;
  Ids banned_ids(const Ids& generated, const Request& request) const;
};

}  // namespace txport::core
