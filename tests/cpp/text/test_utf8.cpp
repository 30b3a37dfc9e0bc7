#include <doctest/doctest.h>

#include <string>

#include "utf8.hpp"

using namespace txport::core;

TEST_CASE("the first byte that is not UTF-8, as Python's decoder names it") {
  CHECK_FALSE(utf8_fault(""));
  CHECK_FALSE(utf8_fault("caf\xC3\xA9 \xE6\xBC\xA2 \xF0\x9F\x99\x82 \xF4\x8F\xBF\xBF \xED\x9F\xBF"));
  CHECK_FALSE(utf8_fault(std::string("a\0b", 3)));
  CHECK(utf8_fault("ab\xFF") == 2);
  CHECK(utf8_fault("\x80") == 0);
  CHECK(utf8_fault("a\xC3") == 1);
  CHECK(utf8_fault("a\xC3(") == 1);
  CHECK(utf8_fault("\xC0\xAF") == 0);          // overlong
  CHECK(utf8_fault("\xE0\x80\xAF") == 0);      // overlong
  CHECK(utf8_fault("\xED\xA0\x80") == 0);      // a surrogate
  CHECK(utf8_fault("\xF4\x90\x80\x80") == 0);  // beyond U+10FFFF
  CHECK(utf8_fault("xy\xF0\x9F\x99") == 2);
  CHECK(utf8_fault("\xE6\xBC\xA2\xE6\xBC") == 3);
}

TEST_CASE("what is wrong becomes U+FFFD, as in the Unicode standard's tables 3-8 to 3-11") {
#define FFFD "\xEF\xBF\xBD"
  CHECK(replace_faults("").empty());
  CHECK(replace_faults("caf\xC3\xA9") == "caf\xC3\xA9");
  CHECK(replace_faults("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41") == FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
  CHECK(replace_faults("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41") == FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
  CHECK(replace_faults("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42") == FFFD FFFD FFFD FFFD FFFD "A" FFFD FFFD "B");
  CHECK(replace_faults("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") == FFFD FFFD FFFD FFFD "A");
#undef FFFD
}

TEST_CASE("white space, as Python's str.isspace has it") {
  for (const char* text :
       {"", " ", "\t\n\r\v\f", "\x1C\x1D\x1E\x1F", "\xC2\x85\xC2\xA0", "\xE1\x9A\x80", "\xE2\x80\x80\xE2\x80\x8A",
        "\xE2\x80\xA8\xE2\x80\xA9\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"}) {
    CHECK(is_blank(text));
  }
  for (const char* text : {"a", " a", "\xE2\x80\x8B", "\xEF\xBB\xBF", "\xE1\xA0\x8E", "\x1B", "\x7F"}) {
    CHECK_FALSE(is_blank(text));
  }
}

TEST_CASE("replacement characters at the end are not certain") {
  CHECK(certain_length("") == 0);
  CHECK(certain_length("abc") == 3);
  CHECK(certain_length("ab\xEF\xBF\xBD\xEF\xBF\xBD") == 2);
  CHECK(certain_length("\xEF\xBF\xBD"
                       "a") == 4);
}
