// Checks of what a caller of the Translator gives: each throws InputError, with a sentence that begins with `what`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine.hpp"

namespace txport::core {

// Refuse numbers of sentences and of translations that differ.
void check_pairs(std::size_t sentences, std::size_t answers);

// Of models that read ids and are given vectors, and the reverse.
inline constexpr const char* kReadsIds =
    "this bundle reads text or ids, not feature vectors: use translate or translate_ids";
inline constexpr const char* kReadsFeatures =
    "this bundle reads feature vectors, not text or ids: use translate_features";

// Refuse vectors that are not `[1 to most, size]` of finite numbers.
void check_vectors(const FloatMatrix& vectors, std::int64_t size, std::int64_t most, const std::string& what);

// Refuse ids that are not of the vocabulary.
void check_ids(const Ids& ids, std::int64_t vocabulary, const std::string& what);

// As `check_ids`, of a whole sentence: at least one id that is not padding, at most `most` ids.
void check_sentence(const Ids& ids, std::int64_t vocabulary, std::int64_t most, std::int64_t pad,
                    const std::string& what);

// Refuse a number that is not from `low` to `high`; `why` explains the upper bound.
void check_between(const std::string& what, std::int64_t value, std::int64_t low, std::int64_t high,
                   const std::string& why);

// Refuse lengths beyond `most`, in tokens, and a prefix of `begun` tokens that leaves no room for more.
void check_lengths(const std::optional<std::int64_t>& max_length, std::int64_t min_length, std::size_t begun,
                   std::int64_t most);

}  // namespace txport::core
