// Rules on the next token of an answer, with the meaning of Hugging Face's generation/logits_process.py.
#pragma once

#include <optional>
#include <vector>

#include "search/requests.hpp"

namespace txport::core {

// The only id that may come next, or nothing.
std::optional<std::int64_t> forced_token(const Slot& slot);

// The rules of a search, applied to one hypothesis at a time.
class Constraints {
 public:
  Constraints(const Rules& rules, const SpecialTokens& tokens);

  // Whether there is a rule that changes the scores of most ids that were made.
  bool penalises() const { return penalty_ != 1; }
  // How many ids end an answer, and whether this one does.
  std::size_t ends() const { return ends_.size(); }
  bool is_end(std::int64_t token) const;

  // Whether the rules may choose another token than `token`, the best one, after the ids `made` so far, prefix included
  // and bos not.
  bool may_change(std::int64_t token, const Ids& made, const Request& request) const;

  // The ids whose scores the rules change after `made`, ascending; most are banned.
  Ids changed(const Ids& made, const Request& request) const;
  // Change these scores, of float or double, `scores[i]` that of the id `ids[i]`: -inf where the token must not come.
  template <typename Number>
  void change(const Ids& ids, std::vector<Number>& scores, const Ids& made, const Request& request) const;
  // Change the scores `[vocabulary]` of all tokens in that way. If none may come, eos does, with the score 0.
  template <typename Number>
  void apply(std::vector<Number>& scores, const Ids& made, const Request& request) const;

 private:
  std::int64_t bos_;
  std::int64_t eos_;
  double penalty_;
  std::size_t no_repeat_;
  Ids ends_;
  Ids never_;
  Ids begin_suppress_;
  std::vector<Ids> phrases_;  // bad words of two ids or more

  Ids seen(const Ids& made) const;
  Ids banned(const Ids& made, const Request& request) const;
};

}  // namespace txport::core
