// Search settings of a call, from its options and the model's generation settings.
#pragma once

#include "bundle/manifest.hpp"
#include "engine.hpp"
#include "options.hpp"
#include "search/settings.hpp"
#include "text/tokenizer.hpp"

namespace txport::core {

// With generation "model", fill unset options with the model's generation settings. Throws InputError: the model has a
// setting that is not supported.
Options with_settings(Options options, const Generation& generation, const Limits& limits);

// Throw InputError if an option of the call has no effect. `filled` are the options filled with the model's settings.
void check_effect(const Options& options, const Options& filled);

// Refuse options that change tokens that a stream has already sent. Throws InputError.
void check_pieces(const Options& options);

// Return the search settings of options. Throws InputError: options contradict each other, an id is outside the
// vocabulary, or a search needs more rows than the bundle supports.
Search search_of(const Options& options, const Manifest& manifest, const Limits& limits, const Tokenizer& tokenizer);

}  // namespace txport::core
