// Answers to requests, by the policy of their search.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine.hpp"
#include "search/requests.hpp"
#include "search/scheduler.hpp"

namespace txport::core {

// The policy of a search. Throws InputError: the engine cannot restrict rows to a shortlist.
std::unique_ptr<const Policy> policy_of(const Engine& engine, const Search& search);

// Answer all requests, which are of one search, the longest sources first; the results are in the order of the
// requests. Throws InputError: a source is empty or longer than the engine takes, a length is not positive, the bundle
// runs fewer rows than a sentence needs, or the engine has no shortlists.
std::vector<Result> decode_all(const Engine& engine, std::vector<Request> requests, const SearchOptions& options);

// Throws InputError: the search has several answers, or finds its tokens later.
void check_streams(const Search& search);

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

}  // namespace txport::core
