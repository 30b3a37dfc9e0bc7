#include "text/with_added.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "text/added_tokens.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

// A part of a text: a token or the text between tokens. It is normalised if the normalised text contains a token.
struct Part {
  std::string text;
  std::vector<std::size_t> positions;  // byte offset in the whole text of each byte, and of the end
  const AddedToken* token = nullptr;

  Part cut(std::size_t start, std::size_t end, const AddedToken* tokens) const {
    const auto at = [&](std::size_t position) { return positions.begin() + static_cast<std::ptrdiff_t>(position); };
    return {text.substr(start, end - start), {at(start), at(end + 1)}, tokens};
  }

  // Return this part and the next one, joined as text.
  Part joined(const Part& next) const {
    Part whole{text + next.text, positions, nullptr};
    whole.positions.pop_back();
    whole.positions.insert(whole.positions.end(), next.positions.begin(), next.positions.end());
    return whole;
  }
};

using Parts = std::vector<Part>;

Part whole_of(std::string_view text) {
  Part part{std::string(text), std::vector<std::size_t>(text.size() + 1), nullptr};
  std::iota(part.positions.begin(), part.positions.end(), std::size_t{0});
  return part;
}

// The letter that stands for several spaces in a row, which tokens of SeamlessM4T's do not take: the normaliser of its
// tokenizer.json makes marks of words of them, which are not white space.
constexpr char kRun = '\xff';  // no byte of UTF-8

// Put that letter into a normalised text; `text` is the text before normalisation.
void mark_runs(Part& normal, std::string_view text) {
  std::vector<bool> runs(text.size() + 1);
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::size_t end = after_space(text, at);
    const bool several = count_characters(text.substr(at, end - at)) > 1;
    std::fill_n(runs.begin() + static_cast<std::ptrdiff_t>(at), end - at, several);
    at = end;  // which is not a space
  }
  for (std::size_t i = 0; i + 1 < normal.text.size(); ++i) {
    if (normal.text[i] == ' ' && runs[normal.positions[i]]) normal.text[i] = kRun;
  }
}

bool ends_with_space(std::string_view text) { return before_space(text, text.size()) < text.size(); }

// Change the neighbours of a token as PythonBackend.tokenize of transformers does: the token strips their white space.
// A single_word token that is part of a word becomes part of its neighbour's text.
void change_neighbours(Parts& parts, std::size_t i, const AddedToken& token) {
  Part& part = parts[i];
  const std::string left = i > 0 ? parts[i - 1].text : "";
  const std::string right = i + 1 < parts.size() ? parts[i + 1].text : "";
  if (token.rstrip && !right.empty()) parts[i + 1] = parts[i + 1].cut(after_space(right, 0), right.size(), nullptr);
  if (token.lstrip && !left.empty()) parts[i - 1] = parts[i - 1].cut(0, before_space(left, left.size()), nullptr);
  if (!token.single_word) return;
  if (!left.empty() && left.back() != ' ') {
    parts[i - 1] = parts[i - 1].joined(part);
    part = part.cut(0, 0, nullptr);
  } else if (!right.empty() && right.front() != ' ') {
    parts[i + 1] = part.joined(parts[i + 1]);
    part = part.cut(0, 0, nullptr);
  }
}

class WithAdded : public Side {
 public:
  WithAdded(std::shared_ptr<const Inner> inner, const AddedTokens& added, bool decodes)
      : inner_(std::move(inner)), added_(added), decodes_(decodes), normalises_(inner_->normalised(" ").has_value()) {
    std::vector<AddedToken> raw;
    std::vector<AddedToken> normalised;
    for (AddedToken token : added.tokens) {
      by_id_[token.id] = token;
      if (added.rules == "python" || !token.normalized) {
        raw.push_back(std::move(token));
      } else {  // the library also normalises these
        if (auto normal = inner_->normalised(token.content)) token.content = std::move(normal->text);
        normalised.push_back(std::move(token));
      }
    }
    raw_.emplace(std::move(raw));
    normalised_.emplace(std::move(normalised));
  }

  Ids encode(std::string_view text) const override {
    if (!may_have(text)) return inner_->encode(text);
    std::vector<Span> spans;
    return locate(text, spans);
  }

  Ids locate(std::string_view text, std::vector<Span>& spans) const override {
    if (!may_have(text)) return inner_->locate(text, spans);
    Ids ids;
    const Parts parts = this->parts(text);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::vector<Span> tokens;
      const Ids more = located(parts[i], i + 1 < parts.size() ? parts[i + 1].token : nullptr, tokens);
      ids.insert(ids.end(), more.begin(), more.end());
      for (const Span& span : tokens) spans.push_back({parts[i].positions[span.start], parts[i].positions[span.end]});
    }
    return ids;
  }

  std::vector<std::string> split(std::string_view text) const override {
    if (!may_have(text)) return inner_->split(text);
    std::vector<std::string> pieces;
    const Parts parts = this->parts(text);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      if (part.token != nullptr) {
        pieces.push_back(by_id_.at(part.token->id).content);
        continue;
      }
      const auto more = is_inside(part) ? inner_->split_inside(part.text) : inner_->split(part.text);
      pieces.insert(pieces.end(), more.begin(), more.end());
      const std::size_t spaces = space_after(part, i + 1 < parts.size() ? parts[i + 1].token : nullptr).size();
      pieces.insert(pieces.end(), spaces, "\xE2\x96\x81");
    }
    return pieces;
  }

  std::string piece(std::int64_t id) const override {
    const auto token = by_id_.find(id);
    return token == by_id_.end() ? inner_->piece(id) : token->second.content;
  }

  std::string decode_copied(const Ids& ids, const Copies& copies) const override {
    return decodes_ ? inner_->decode_copied(ids, copies) : decode(ids);
  }

  std::string decode(const Ids& ids) const override {
    if (decodes_) return inner_->decode(ids);
    std::string text;
    Ids run;
    for (const std::int64_t id : ids) {
      const auto token = by_id_.find(id);
      if (token == by_id_.end()) {
        run.push_back(id);
      } else if (!token->second.special) {
        text += inner_->decode(run) + token->second.content;
        run.clear();
      }
    }
    return text + inner_->decode(run);
  }

 private:
  std::shared_ptr<const Inner> inner_;
  const AddedTokens added_;
  const bool decodes_;
  const bool normalises_;  // without normalisation, only U+0020 counts as a space
  std::unordered_map<std::int64_t, AddedToken> by_id_;
  std::optional<TokenFinder> raw_;
  std::optional<TokenFinder> normalised_;  // tokens to find in the normalised text

  bool may_have(std::string_view text) const { return !normalised_->empty() || raw_->may_find(text); }

  Parts parts(std::string_view text) const {
    const Part whole_part = whole_of(text);
    if (added_.rules == "python") return split_as_python(whole_part);
    Parts parts;
    raw_->split(text, [&](const Span& span, const AddedToken* token) {
      Part part = whole_part.cut(span.start, span.end, token);
      if (token != nullptr || !add_normalised(part, parts)) parts.push_back(std::move(part));
    });
    return parts;
  }

  // Normalise a part and add its tokens and the text between them. Return false if it contains no tokens.
  bool add_normalised(const Part& part, Parts& parts) const {
    if (normalised_->empty()) return false;
    Part normalised_part = part;
    if (auto normal = inner_->normalised(part.text)) {
      normalised_part = {std::move(normal->text), std::move(normal->positions), nullptr};
      if (added_.spaces == "kept_before_normalized") mark_runs(normalised_part, part.text);
      for (std::size_t& position : normalised_part.positions) position = part.positions[position];
    }
    Parts tokens;
    normalised_->split(normalised_part.text, [&](const Span& span, const AddedToken* token) {
      tokens.push_back(normalised_part.cut(span.start, span.end, token));
    });
    for (Part& each : tokens) std::replace(each.text.begin(), each.text.end(), kRun, ' ');
    const bool any = std::any_of(tokens.begin(), tokens.end(), [](const Part& each) { return each.token != nullptr; });
    if (any) std::move(tokens.begin(), tokens.end(), std::back_inserter(parts));
    return any;
  }

  Parts split_as_python(const Part& whole) const {
    Parts parts;
    raw_->split_at_all(whole.text,
                       [&](const Span& span) { parts.push_back(whole.cut(span.start, span.end, nullptr)); });
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (const AddedToken* token = raw_->equal(parts[i].text)) change_neighbours(parts, i, *token);
    }
    parts.erase(std::remove_if(parts.begin(), parts.end(), [](const Part& part) { return part.text.empty(); }),
                parts.end());
    for (Part& part : parts) part.token = raw_->equal(part.text);
    return parts;
  }

  // Return the ids of a part, and the byte range of each in the part.
  Ids located(const Part& part, const AddedToken* next, std::vector<Span>& spans) const {
    const std::string& text = part.text;
    if (part.token != nullptr) {
      spans.push_back({0, text.size()});
      return {part.token->id};
    }
    Ids ids = is_inside(part) ? inner_->locate_inside(text, spans) : inner_->locate(text, spans);
    for (const std::int64_t id : space_after(part, next)) {
      ids.push_back(id);
      spans.push_back({before_space(text, text.size()), text.size()});
    }
    return ids;
  }

  // Return whether a part is encoded without the space that the model adds at the beginning of a text.
  bool is_inside(const Part& part) const {
    return added_.prefix == "first" && part.positions.front() > 0 && after_space(part.text, 0) == 0;
  }

  // Return the ids of the space between a part and the next token, if it is kept.
  Ids space_after(const Part& part, const AddedToken* next) const {
    const bool keeps = next != nullptr && (added_.spaces == "kept" || (added_.spaces != "dropped" && next->normalized));
    return keeps && (normalises_ ? ends_with_space(part.text) : part.text.back() == ' ') ? inner_->space() : Ids{};
  }
};

}  // namespace

std::shared_ptr<const Side> with_added(std::shared_ptr<const Inner> inner, const AddedTokens& added, bool decodes) {
  return std::make_shared<WithAdded>(std::move(inner), added, decodes);
}

}  // namespace txport::core
