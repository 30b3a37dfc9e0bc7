#include "text/added_tokens.hpp"

#include <algorithm>
#include <utility>

#include "text/letters.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

unsigned char byte_at(std::string_view text, std::size_t index) { return static_cast<unsigned char>(text[index]); }

// Return whether a word character is directly before `start` or at `end`.
bool is_in_word(std::string_view text, std::size_t start, std::size_t end) {
  if (start > 0 && is_word(character_at(text, character_before(text, start)).code)) return true;
  return end < text.size() && is_word(character_at(text, end).code);
}

}  // namespace

TokenFinder::TokenFinder(std::vector<AddedToken> tokens) {
  for (AddedToken& token : tokens) {
    if (!token.content.empty()) tokens_[byte_at(token.content, 0)].push_back(std::move(token));
  }
  const auto longer = [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); };
  for (std::vector<AddedToken>& group : tokens_) std::stable_sort(group.begin(), group.end(), longer);
}

bool TokenFinder::empty() const {
  return std::all_of(tokens_.begin(), tokens_.end(), [](const auto& group) { return group.empty(); });
}

const AddedToken* TokenFinder::find(std::string_view text, std::size_t start) const {
  for (const AddedToken& token : tokens_[byte_at(text, start)]) {
    if (text.compare(start, token.content.size(), token.content) == 0) return &token;
  }
  return nullptr;
}

const AddedToken* TokenFinder::equal(std::string_view text) const {
  const AddedToken* const token = text.empty() ? nullptr : find(text, 0);
  return token != nullptr && token->content.size() == text.size() ? token : nullptr;
}

bool TokenFinder::may_find(std::string_view text) const {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (find(text, at) != nullptr) return true;
  }
  return false;
}

void TokenFinder::split(std::string_view text, const Take& take) const {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* token = find(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t start = at;
    std::size_t end = at += token->content.size();
    if (token->single_word && is_in_word(text, start, end)) continue;
    if (token->lstrip) start = std::max(before_space(text, start), done);
    if (token->rstrip) end = after_space(text, end);
    if (done < start) take({done, start}, nullptr);
    take({start, end}, token);
    done = end;
  }
  if (done < text.size()) take({done, text.size()}, nullptr);
}

void TokenFinder::split_at_all(std::string_view text, const std::function<void(const Span&)>& take) const {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* token = find(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    if (done < at) take({done, at});
    take({at, at + token->content.size()});
    done = at += token->content.size();
  }
  if (done < text.size()) take({done, text.size()});
}

}  // namespace txport::core
