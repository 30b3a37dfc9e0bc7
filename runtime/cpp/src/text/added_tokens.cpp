#include "text/added_tokens.hpp"

#include <algorithm>
#include <utility>

#include "text/utf8.hpp"

namespace txport::core {

namespace {

unsigned char byte_at(std::string_view text, std::size_t index) { return static_cast<unsigned char>(text[index]); }

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) {
  for (AddedToken& token : tokens) {
    if (!token.content.empty()) tokens_[byte_at(token.content, 0)].push_back(std::move(token));
  }
  const auto longer = [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); };
  for (std::vector<AddedToken>& group : tokens_) std::stable_sort(group.begin(), group.end(), longer);
}

const AddedToken* AddedTokens::find(std::string_view text, std::size_t start) const {
  for (const AddedToken& token : tokens_[byte_at(text, start)]) {
    if (text.compare(start, token.content.size(), token.content) == 0) return &token;
  }
  return nullptr;
}

void AddedTokens::split(std::string_view text,
                        const std::function<void(const Span&, std::optional<std::int64_t>)>& take) const {
  std::size_t given = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* token = find(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t start = at;
    std::size_t end = at += token->content.size();
    if (token->takes_space_before) start = std::max(before_space(text, start), given);
    if (token->takes_space_after) end = after_space(text, end);
    if (given < start) take({given, start}, std::nullopt);
    take({start, end}, token->id);
    given = end;
  }
  if (given < text.size()) take({given, text.size()}, std::nullopt);
}

}  // namespace txport::core
