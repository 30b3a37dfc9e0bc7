// Greedy search: each token is the most probable one, which the device chooses, unless a constraint overrides it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine.hpp"
#include "search/requests.hpp"
#include "search/scheduler.hpp"

namespace txport::core {

// Answer all requests, the longest sources first; the results are in the order of the requests.
// Throws InputError: a source is empty or longer than the engine takes, or a length is not positive.
std::vector<Result> decode_all(const Engine& engine, std::vector<Request> requests, const SearchOptions& options);

// Answers one request token by token, eos too. Throws as `decode_all`. The engine must outlive it.
class TokenStream {
 public:
  TokenStream(const Engine& engine, Request request);
  ~TokenStream();
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;
  TokenStream(TokenStream&& other) noexcept;
  TokenStream& operator=(TokenStream&& other) noexcept;

  // The next token, or nothing after the last.
  std::optional<Token> next();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
  bool ended_ = false;
};

// The policy of greedy search.
class Greedy : public Policy {
 public:
  explicit Greedy(const SpecialTokens& tokens) : tokens_(tokens) {}

  bool needs_logits(const Request& request) const override;
  bool stepwise(const Slots& slots) const override;
  void choose(DecoderState& state, const Slots& slots, const Ids& token_ids, bool stepwise) const override;

 private:
  const SpecialTokens tokens_;

  void choose_one(DecoderState& state, const Slots& slots, const Ids& token_ids) const;
};

}  // namespace txport::core
