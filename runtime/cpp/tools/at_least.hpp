// Lower bounds of numbers on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace txport::tools {

// Refuse values below `minimum`, and add the bound to the help.
inline CLI::Option* at_least(CLI::Option* option, std::int64_t minimum) {
  const std::string words = "at least " + std::to_string(minimum);
  const CLI::Validator bound(
      [words, minimum](const std::string& text) {
        std::int64_t value = 0;
        const bool fits = CLI::detail::lexical_cast(text, value) && value >= minimum;
        return fits ? std::string() : text + " is not a whole number, " + words;
      },
      "");
  return option->check(bound)->type_name("INT " + words);
}

}  // namespace txport::tools
