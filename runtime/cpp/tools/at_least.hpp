// Bounds of a number on the command line, in words.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace txport::tools {

// Refuse less than `least`, and add the bound to the help.
inline CLI::Option* at_least(CLI::Option* option, std::int64_t least) {
  const std::string words = "at least " + std::to_string(least);
  const CLI::Validator bound(
      [words, least](const std::string& text) {
        std::int64_t value = 0;
        const bool fits = CLI::detail::lexical_cast(text, value) && value >= least;
        return fits ? std::string() : text + " is not a whole number, " + words;
      },
      "");
  return option->check(bound)->type_name("INT " + words);
}

}  // namespace txport::tools
