// Decoding of requests with the policy of their search.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine.hpp"
#include "search/requests.hpp"
#include "search/scheduler.hpp"

namespace txport::core {

// Return the policy of a search. Throws InputError: the engine cannot restrict rows to a shortlist.
std::unique_ptr<const Policy> policy_of(const Engine& engine, const Search& search);

// Decode requests with the same search, the longest sources first. Return results in the order of the requests. Throws
// InputError: a source is empty or longer than the engine supports, a length is not positive, a sentence needs more
// rows than the bundle supports, or the engine does not support shortlists.
std::vector<Result> decode_all(const Engine& engine, std::vector<Request> requests, const SearchOptions& options);

// Throw InputError unless the search is greedy. Other searches have several translations or choose tokens later.
void check_streams(const Search& search);

// Decodes one request token by token, including eos. Throws the errors of `decode_all`. The engine must outlive it.
class TokenStream {
 public:
  TokenStream(const Engine& engine, Request request);
  ~TokenStream();
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;
  TokenStream(TokenStream&& other) noexcept;
  TokenStream& operator=(TokenStream&& other) noexcept;

  // Return the next token, or no value after the last one.
  std::optional<Token> next();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
  bool ended_ = false;
};

}  // namespace txport::core
