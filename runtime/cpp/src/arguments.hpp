// Checks of arguments of the Translator. Each throws InputError with a message that begins with `what`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ids.hpp"

namespace txport::core {

// Refuse different numbers of sentences and translations.
void check_pairs(std::size_t sentences, std::size_t translations);

// Messages for models that read ids and get vectors, and the reverse.
inline constexpr const char* kReadsIds =
    "this bundle reads text or ids, not feature vectors: use translate or translate_ids";
inline constexpr const char* kReadsFeatures =
    "this bundle reads feature vectors, not text or ids: use translate_features";

// Refuse vectors that are not `[1 to max_count, size]` of finite numbers.
void check_vectors(const FloatMatrix& vectors, std::int64_t size, std::int64_t max_count, const std::string& what);

// Refuse ids outside the vocabulary.
void check_ids(const Ids& ids, std::int64_t vocabulary, const std::string& what);

// Like `check_ids`, for a complete sentence: it needs at least one id other than padding, and at most `limit` ids.
void check_sentence(const Ids& ids, std::int64_t vocabulary, std::int64_t limit, std::int64_t pad,
                    const std::string& what);

// Refuse a number outside [low, high]. `why` explains the upper bound.
void check_between(const std::string& what, std::int64_t value, std::int64_t low, std::int64_t high,
                   const std::string& why);

// Refuse lengths above `limit` tokens, and a prefix of `prefix` tokens that leaves no room for more tokens.
void check_lengths(const std::optional<std::int64_t>& max_length, std::int64_t min_length, std::size_t prefix,
                   std::int64_t limit);

}  // namespace txport::core
