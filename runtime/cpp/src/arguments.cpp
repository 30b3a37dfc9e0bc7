#include "arguments.hpp"

#include <algorithm>
#include <cmath>

#include "errors.hpp"

namespace txport::core {

void check_pairs(std::size_t sentences, std::size_t translations) {
  if (sentences != translations) {
    throw InputError("there are " + std::to_string(sentences) + " sentences and " + std::to_string(translations) +
                     " translations: give one for each");
  }
}

void check_vectors(const FloatMatrix& vectors, std::int64_t size, std::int64_t maximum, const std::string& what) {
  if (vectors.columns != static_cast<std::size_t>(size)) {
    throw InputError(what + " has the shape [" + std::to_string(vectors.rows) + ", " + std::to_string(vectors.columns) +
                     "]: this bundle reads [vectors, " + std::to_string(size) + "]");
  }
  if (vectors.rows < 1 || vectors.rows > static_cast<std::size_t>(maximum)) {
    throw InputError(what + " has " + std::to_string(vectors.rows) + " vectors: give 1 to " + std::to_string(maximum) +
                     ", as many as this bundle takes");
  }
  for (std::size_t i = 0; i < vectors.values.size(); ++i) {
    if (std::isfinite(vectors.values[i])) continue;
    throw InputError(what + " has NaN or infinity in vector " + std::to_string(i / vectors.columns) +
                     ", counted from 0: give finite numbers");
  }
}

void check_ids(const Ids& ids, std::int64_t vocabulary, const std::string& what) {
  for (const std::int64_t token : ids) {
    if (token < 0 || token >= vocabulary) {
      throw InputError(what + " has the id " + std::to_string(token) + ", which is not between 0 and " +
                       std::to_string(vocabulary - 1));
    }
  }
}

void check_sentence(const Ids& ids, std::int64_t vocabulary, std::int64_t limit, std::int64_t pad,
                    const std::string& what) {
  check_ids(ids, vocabulary, what);
  if (std::all_of(ids.begin(), ids.end(), [pad](std::int64_t id) { return id == pad; })) {
    throw InputError(what + " has no ids except padding: give at least one");
  }
  if (ids.size() > static_cast<std::size_t>(limit)) {
    throw InputError(what + " has " + std::to_string(ids.size()) + " tokens, more than the " + std::to_string(limit) +
                     " that this bundle supports: shorten it");
  }
}

void check_between(const std::string& what, std::int64_t value, std::int64_t low, std::int64_t high,
                   const std::string& why) {
  if (value < low || value > high) {
    throw InputError("the " + what + " " + std::to_string(value) + " is not between " + std::to_string(low) + " and " +
                     std::to_string(high) + ", " + why);
  }
}

void check_lengths(const std::optional<std::int64_t>& max_length, std::int64_t min_length, std::size_t prefix,
                   std::int64_t limit) {
  if (max_length) check_between("maximum length", *max_length, 1, limit, "the maximum of this model");
  limit = max_length.value_or(limit);
  check_between("minimum length", min_length, 0, limit, "the maximum length");
  if (static_cast<std::int64_t>(prefix) >= limit) {
    throw InputError("a prefix of " + std::to_string(prefix) +
                     " tokens leaves no room for more: the maximum length is " + std::to_string(limit));
  }
}

}  // namespace txport::core
