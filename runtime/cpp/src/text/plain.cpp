#include "text/plain.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "errors.hpp"

namespace txport::core {

namespace {

using namespace std::string_view_literals;

// Endings of corpora that `tx-translate-corpus` reads, and of formats that cannot be read line by line.
constexpr std::array kCorpora{".jsonl"sv, ".ndjson"sv, ".parquet"sv, ".gz"sv, ".zst"sv, ".bz2"sv, ".xz"sv};
constexpr std::array kForeign{".json"sv,  ".csv"sv,     ".tsv"sv,    ".xml"sv, ".tmx"sv, ".xlf"sv,  ".xliff"sv,
                              ".html"sv,  ".htm"sv,     ".srt"sv,    ".vtt"sv, ".po"sv,  ".yaml"sv, ".yml"sv,
                              ".arrow"sv, ".feather"sv, ".avro"sv,   ".orc"sv, ".pdf"sv, ".docx"sv, ".xlsx"sv,
                              ".zip"sv,   ".tar"sv,     ".tgz"sv,    ".7z"sv,  ".rar"sv, ".lz4"sv,  ".br"sv,
                              ".z"sv,     ".lzma"sv,    ".sqlite"sv, ".npy"sv, ".npz"sv, ".pkl"sv,  ".pt"sv};
// First bytes of compressed files; those of bzip2 contain a digit, see `is_bzip2`.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kCompressions{{{"gz", "\x1f\x8b"},
                                                                                      {"zst", "\x28\xb5\x2f\xfd"},
                                                                                      {"xz",
                                                                                       "\xfd"
                                                                                       "7zXZ\0"sv}}};
// First bytes of other files that are not text.
constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kBinary{{{"PAR1\x15", "Parquet"},
                                                                                 {"PK\x03\x04", "a zip archive"},
                                                                                 {"%PDF-", "PDF"},
                                                                                 {"ARROW1\0"sv, "Arrow"},
                                                                                 {"Obj\x01", "Avro"},
                                                                                 {"7z\xbc\xaf", "a 7z archive"},
                                                                                 {"Rar!\x1a", "a RAR archive"},
                                                                                 {"\x04\x22\x4d\x18", "lz4"},
                                                                                 {"\xff\xfe", "UTF-16"},
                                                                                 {"\xfe\xff", "UTF-16"},
                                                                                 {"SQLite format 3\0"sv, "SQLite"}}};

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

bool is_bzip2(std::string_view first) {
  return starts_with(first, "BZh") && first.size() > 3 && '1' <= first[3] && first[3] <= '9' &&
         starts_with(first.substr(4), "1AY&SY");
}

std::string_view compression_of(std::string_view first) {
  if (is_bzip2(first)) return "bz2";
  for (const auto& [name, magic] : kCompressions) {
    if (starts_with(first, magic)) return name;
  }
  return {};
}

// Return what a file with these first bytes is; empty for text. One byte of ten is NUL in no text.
std::string_view binary_kind(std::string_view first) {
  for (const auto& [magic, kind] : kBinary) {
    if (starts_with(first, magic)) return kind;
  }
  const auto zeros = static_cast<std::size_t>(std::count(first.begin(), first.end(), '\0'));
  return zeros > first.size() / 10 ? "a binary file"sv : std::string_view{};
}

// Return the ending of a file in lower case, as Python's `PurePath.suffix`: with its dot, not at either end of a name.
std::string ending_of(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos || dot == 0 || dot + 1 == name.size()) return {};
  std::string ending = name.substr(dot);
  for (char& letter : ending) {
    if ('A' <= letter && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return ending;
}

}  // namespace

void check_name(const std::string& path) {
  const std::string ending = ending_of(path);
  const std::string fault = path + " is " + ending + ", not lines of text: ";
  if (std::find(kCorpora.begin(), kCorpora.end(), ending) != kCorpora.end()) {
    throw InputError(fault + "tx-translate-corpus reads it, or give its lines by standard input");
  }
  if (std::find(kForeign.begin(), kForeign.end(), ending) != kForeign.end()) {
    throw InputError(fault + "convert it, or give its lines by standard input");
  }
}

void check_content(const std::string& path, std::string_view first) {
  if (const auto compression = compression_of(first); !compression.empty()) {
    throw InputError(path + " is packed by " + std::string(compression) + ", not lines of text: unpack it");
  }
  if (const auto kind = binary_kind(first); !kind.empty()) {
    throw InputError(path + " is " + std::string(kind) + ", not lines of text: convert it");
  }
}

}  // namespace txport::core
