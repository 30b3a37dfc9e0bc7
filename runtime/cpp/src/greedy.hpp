// Greedy search over any engine, with continuous batching.
//
// Rows are independent: one that finishes is refilled with the next waiting sentence while the others go on, so a batch
// never waits for its longest sentence. When none waits, the rows that are left move together once they are half of the
// batch. Caches start short and double, so that a short answer does not pay for the longest cache.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine.hpp"

namespace txport::core {

// The default for SearchOptions::batch_tokens.
inline constexpr std::int64_t kBatchTokens = 4096;

// One sentence to translate.
struct Request {
  Ids source_ids;                          // the encoder's input, eos included; 1 to Limits::source ids
  std::optional<std::int64_t> max_length;  // the most tokens to make, eos included; nothing is Limits::target
  std::int64_t min_length = 0;             // tokens to make before eos may be made
  Ids prefix;                              // target ids that the answer must begin with
};

// The answer to a request.
struct Result {
  std::size_t index = 0;                      // which request, counted from 0
  Ids ids;                                    // without bos; ends with eos unless the maximum length came first
  std::optional<std::vector<double>> scores;  // the natural logarithm of each id's probability, if requested
};

// One step of a stream: its id, its log-probability if requested, and whether it is the last.
struct Token {
  std::int64_t id = 0;
  std::optional<double> score;
  bool last = false;
};

struct SearchOptions {
  std::optional<std::int64_t> rows;          // the most rows of a batch; nothing is Limits::batch
  std::int64_t batch_tokens = kBatchTokens;  // the most source tokens, padding included, of a batch's rows
  bool scores = false;                       // compute Result::scores: the host then reads every step's logits
  // Threads that decode side by side. Each gets a share of the sentences, and of the rows and the tokens of a batch;
  // the engine must allow it, as engines on the CPU do.
  std::int64_t workers = 1;
};

// Answer all requests, the longest sources first; the results are in the order of the requests.
// Throws InputError: a source is empty or longer than the engine takes, or a length is not positive.
std::vector<Result> decode_all(const Engine& engine, const std::vector<Request>& requests,
                               const SearchOptions& options);

// Answers one request token by token, eos too. Throws as `decode_all`. The engine must outlive it.
class TokenStream {
 public:
  TokenStream(const Engine& engine, Request request, bool scores);
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
  bool scores_;
  bool ended_ = false;
};

}  // namespace txport::core
