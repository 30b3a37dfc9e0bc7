// The search of a call, from its options and the model's own settings.
#pragma once

#include "bundle/manifest.hpp"
#include "engine.hpp"
#include "options.hpp"
#include "search/settings.hpp"
#include "text/tokenizer.hpp"

namespace txport::core {

// Fill what the options leave open with the model's own settings, if they ask for these. Throws InputError: the model
// has a setting that this search does not have.
Options with_settings(Options options, const Generation& generation, const Limits& limits);

// Refuse options that change nothing: `asked` are those of the call, `filled` those with the model's own settings.
// Throws InputError.
void check_effect(const Options& asked, const Options& filled);

// Refuse options that change tokens which a stream has already sent. Throws InputError.
void check_pieces(const Options& options);

// The search that options ask for. Throws InputError: options contradict one another, an id is outside the vocabulary,
// or a beam has no room.
Search search_of(const Options& options, const Manifest& manifest, const Limits& limits, const Tokenizer& tokenizer);

}  // namespace txport::core
