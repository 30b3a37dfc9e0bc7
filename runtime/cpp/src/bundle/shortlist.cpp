#include "bundle/shortlist.hpp"

#include <algorithm>
#include <functional>
#include <string>

#include "errors.hpp"

namespace txport::core {

namespace {

constexpr std::int32_t kMagic = 'T' | 'X' << 8 | 'S' << 16 | 'L' << 24;
constexpr std::int32_t kVersion = 1;
// Magic number, version, source vocabulary, target vocabulary, number of ids in every list, number of candidates.
constexpr std::size_t kHeader = 6;
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

using Numbers = std::vector<std::int32_t>;

Numbers numbers_of(std::string_view data) {
  Numbers numbers(data.size() / 4);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    std::uint32_t value = 0;
    for (std::size_t byte = 0; byte < 4; ++byte) {
      value |= std::uint32_t{static_cast<unsigned char>(data[4 * i + byte])} << 8 * byte;
    }
    numbers[i] = static_cast<std::int32_t>(value);
  }
  return numbers;
}

// Return a message if an id is outside the vocabulary, or if ids of a list are not ascending; otherwise an empty text.
std::string fault_of(const Numbers& words, const Numbers& starts, std::int64_t vocabulary) {
  const auto outside = std::find_if(words.begin(), words.end(), [=](auto id) { return id < 0 || id >= vocabulary; });
  if (outside != words.end()) {
    return "has the word " + std::to_string(*outside) + ", outside the vocabulary of " + std::to_string(vocabulary);
  }
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] <= words[i - 1] && !std::binary_search(starts.begin(), starts.end(), i)) {
      return "has words that are not in ascending order";
    }
  }
  return "";
}

}  // namespace

Shortlist::Shortlist(const Bundle& bundle, const std::string& file, const ModelSizes& model, std::int64_t eos) {
  const std::string fault = read(bundle.read(file, kMaxBytes), model, eos);
  if (!fault.empty()) throw BundleError(bundle.name(file) + " " + fault + ": make it again with tx-shortlist");
}

std::string Shortlist::read(std::string_view data, const ModelSizes& model, std::int64_t eos) {
  const Numbers numbers = numbers_of(data);
  if (numbers.size() < kHeader || numbers[0] != kMagic) return "is not a shortlist";
  if (numbers[1] != kVersion) {
    return "is of version " + std::to_string(numbers[1]) + ", and this txport reads version " +
           std::to_string(kVersion);
  }
  const std::int64_t sources = numbers[2];
  const std::int64_t targets = numbers[3];
  const std::int64_t always = numbers[4];
  const std::int64_t count = numbers[5];
  if (sources != model.source_vocabulary || targets != model.target_vocabulary) {
    return "is for vocabularies of " + std::to_string(sources) + " and " + std::to_string(targets) +
           " ids, but the model has " + std::to_string(model.source_vocabulary) + " and " +
           std::to_string(model.target_vocabulary);
  }
  if (always > targets) {
    return "has " + std::to_string(always) + " words in every list, more than the vocabulary of " +
           std::to_string(targets);
  }
  const std::int64_t size = 4 * (static_cast<std::int64_t>(kHeader) + always + sources + 1 + count);
  if (std::min(always, count) < 0 || static_cast<std::int64_t>(data.size()) != size) {
    return "has " + std::to_string(data.size()) + " bytes, which differs from its header";
  }
  const auto first = numbers.begin() + kHeader;
  always_.assign(first, first + always);
  starts_.assign(first + always, first + always + sources + 1);
  candidates_.assign(first + always + sources + 1, numbers.end());
  if (starts_.front() != 0 || starts_.back() != count || !std::is_sorted(starts_.begin(), starts_.end())) {
    return "has word ranges that are not consecutive";
  }
  for (const auto& [words, starts] : {std::pair(&always_, Numbers()), std::pair(&candidates_, starts_)}) {
    if (std::string fault = fault_of(*words, starts, targets); !fault.empty()) return fault;
  }
  if (!std::binary_search(always_.begin(), always_.end(), eos)) {
    return "lacks the end of sequence, " + std::to_string(eos) + ", among the words of every list";
  }
  return "";
}

std::shared_ptr<const Ids> Shortlist::words(const Ids& source_ids, const Ids& more) const {
  auto words = std::make_shared<Ids>(always_.begin(), always_.end());
  words->insert(words->end(), more.begin(), more.end());
  for (const std::int64_t id : source_ids) {
    const auto at = starts_.begin() + static_cast<std::ptrdiff_t>(id);
    words->insert(words->end(), candidates_.begin() + at[0], candidates_.begin() + at[1]);
  }
  std::sort(words->begin(), words->end());
  words->erase(std::unique(words->begin(), words->end()), words->end());
  return words;
}

std::unique_ptr<const Shortlist> open_shortlist(const Bundle& bundle, const Manifest& manifest) {
  if (!manifest.shortlist) return nullptr;
  return std::make_unique<const Shortlist>(bundle, *manifest.shortlist, manifest.model, manifest.tokens.eos);
}

}  // namespace txport::core
