"""Added tokens: parts of a text that become one id each, by the rules of Hugging Face's tokenizers (transformers 5)."""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple, Protocol

from txport.runtime.bundle.tokenizer_schema import AddedToken, AddedTokens
from txport.runtime.text.alignment import Span

# Characters of \w in Rust's regular expressions besides letters, marks, decimal digits and connectors: joiners, and
# letters in circles and squares.
_WORD = re.compile("[\u200c\u200d\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189]")
_WORD_CATEGORIES = ("Nd", "Nl", "Pc")
_RUN = re.compile(r"\s{2,}")
WORD = "\u2581"  # SentencePiece marks the beginning of a word by this character


class Normalised(NamedTuple):
    """A normalised text, and the index in the original text of each of its characters and of its end."""

    text: str
    offsets: Sequence[int]


class Inner(Protocol):
    """The tokenizer model of the source or the target, without added tokens."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""

    def locate(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the ids of a text, and the character span of each id."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""

    def decode_copied(self, ids: Sequence[int], copies: Mapping[int, str]) -> str:
        """Return the text of ids. `copies` replaces the ids at some positions by pieces."""

    def piece(self, token: int) -> str | None:
        """Return the piece of an id; None if it has none."""

    def split(self, text: str) -> list[str]:
        """Return the piece of each id of `encode`."""

    def split_without_prefix(self, text: str) -> list[str]:
        """Return the pieces of text that continues a word."""

    def locate_without_prefix(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the same as `locate` for text that continues a word."""

    def normalised(self, text: str) -> Normalised | None:
        """Return the text after the normalisation of the model; None if the model does not normalise."""

    def space(self) -> list[int]:
        """Return the ids of a space alone."""


class TextPart(NamedTuple):
    """A part of a text: a token, or the text between tokens.

    Attributes:
        text: the part; normalised if a token was found in the normalised text.
        offsets: the index in the whole text of each character of the part, and of its end.
        token: the token; None for the text between tokens.
    """

    text: str
    offsets: Sequence[int]
    token: AddedToken | None

    def sub_part(self, start: int, end: int, token: AddedToken | None) -> "TextPart":
        """Return a part of this part."""
        return TextPart(self.text[start:end], self.offsets[start : end + 1], token)

    def merged(self, other: "TextPart") -> "TextPart":
        """Return this part and the next one as one part without a token."""
        return TextPart(self.text + other.text, [*self.offsets[:-1], *other.offsets], None)


class WithAdded:
    """A side with added tokens.

    Args:
        inner: the model.
        added: the tokens.
        decodes: whether the vocabulary of the model itself contains the text of the tokens, for decoding.
    """

    def __init__(self, inner: Inner, added: AddedTokens, decodes: bool) -> None:
        self._inner = inner
        self._added = added
        self._decodes = decodes
        self._by_id = {token.id: token for token in added.tokens}
        library = added.rules == "tokenizers"
        self._raw_finder = _Finder([token for token in added.tokens if not (library and token.normalized)])
        # The library normalises these tokens and searches for them in the normalised text.
        normalised = [token for token in added.tokens if library and token.normalized]
        # For a model that does not normalise, white space other than " " is an ordinary character.
        if inner.normalised(" ") is None:
            self._spaces = " "
        else:
            self._spaces = "".join(filter(str.isspace, map(chr, range(0x3001))))
        self._normalised_finder = _Finder(normalised, [self._normalised_content(token.content) for token in normalised])

    def encode(self, text: str) -> list[int]:
        if self._may_contain_token(text):
            return self.locate(text)[0]
        return self._inner.encode(text)

    def locate(self, text: str) -> tuple[list[int], list[Span]]:
        ids: list[int] = []
        spans: list[Span] = []
        if self._may_contain_token(text):
            parts = list(self._parts(text))
        else:
            parts = [TextPart(text, range(len(text) + 1), None)]
        for part, following in zip_longest(parts, parts[1:]):
            part_ids, part_spans = self._locate_part(part, None if following is None else following.token)
            ids += part_ids
            spans += [(part.offsets[start], part.offsets[end]) for start, end in part_spans]
        return ids, spans

    def split(self, text: str) -> list[str]:
        if not self._may_contain_token(text):
            return self._inner.split(text)
        pieces: list[str] = []
        parts = list(self._parts(text))
        for part, following in zip_longest(parts, parts[1:]):
            if part.token is not None:
                pieces.append(part.token.content)
                continue
            if self._continues(part):
                pieces += self._inner.split_without_prefix(part.text)
            else:
                pieces += self._inner.split(part.text)
            token = following.token if following is not None else None
            pieces += [WORD] * len(self._space_after(part, token))
        return pieces

    def decode_copied(self, ids: Sequence[int], copies: Mapping[int, str]) -> str:
        if self._decodes:
            return self._inner.decode_copied(ids, copies)
        return self.decode(ids)

    def decode(self, ids: Sequence[int]) -> str:
        if self._decodes:
            return self._inner.decode(ids)
        text = ""
        run = list[int]()
        for token in ids:
            if (added := self._by_id.get(token)) is None:
                run.append(token)
            elif not added.special:
                text = text + self._inner.decode(run) + added.content
                run = []
        return text + self._inner.decode(run)

    def piece(self, token: int) -> str | None:
        added = self._by_id.get(token)
        if added is None:
            return self._inner.piece(token)
        return added.content

    def _may_contain_token(self, text: str) -> bool:
        """Return whether a text may contain a token."""
        return self._raw_finder.may_find(text) or bool(self._normalised_finder.tokens)

    def _normalised_content(self, content: str) -> str:
        normal = self._inner.normalised(content)
        if normal is None:
            return content
        return normal.text

    def _parts(self, text: str) -> Iterator[TextPart]:
        whole_part = TextPart(text, range(len(text) + 1), None)
        if self._added.rules == "python":
            yield from self._raw_finder.split_as_python(whole_part)
            return
        for part in self._raw_finder.split(whole_part):
            yield from [part] if part.token is not None else self._split_normalised(part)

    def _split_normalised(self, part: TextPart) -> list[TextPart]:
        """Return the tokens of the normalised text and the parts between them; the part itself if it has none."""
        if not self._normalised_finder.tokens:
            return [part]
        normal = self._inner.normalised(part.text)
        if normal is None:
            normalised_part = part
        else:
            normalised_part = TextPart(
                self._mark_spaces(normal, part.text), [part.offsets[offset] for offset in normal.offsets], None
            )
        parts = self._normalised_finder.split(normalised_part)
        if any(each.token is not None for each in parts):
            return [each._replace(text=each.text.replace(WORD, " ")) for each in parts]
        return [part]

    def _mark_spaces(self, normal: Normalised, text: str) -> str:
        """Return a normalised text in which runs of spaces may be replaced by word markers, which are not white space.

        The normaliser of SeamlessM4T's tokenizer.json does this, so that tokens do not take these spaces.

        Args:
            normal: the normalised text.
            text: the text before normalisation.
        """
        if self._added.spaces != "kept_before_normalized":
            return normal.text
        runs = {offset for match in _RUN.finditer(text) for offset in range(*match.span())}
        last = len(normal.text) - 1
        return "".join(
            WORD if letter == " " and i < last and normal.offsets[i] in runs else letter
            for i, letter in enumerate(normal.text)
        )

    def _locate_part(self, part: TextPart, following: AddedToken | None) -> tuple[list[int], list[Span]]:
        """Return the ids of a part, and the character span of each id in the part."""
        if part.token is not None:
            return [part.token.id], [(0, len(part.text))]
        ids, spans = (self._inner.locate_without_prefix if self._continues(part) else self._inner.locate)(part.text)
        space = self._space_after(part, following)
        return [*ids, *space], [*spans, *[(len(part.text.rstrip()), len(part.text))] * len(space)]

    def _continues(self, part: TextPart) -> bool:
        """Return whether a part is encoded without the space that the model adds before a text."""
        return self._added.prefix == "first" and part.offsets[0] > 0 and not part.text[0].isspace()

    def _space_after(self, part: TextPart, following: AddedToken | None) -> list[int]:
        """Return the ids of the space between a part and the following token; empty if the space is dropped."""
        keeps_space = self._added.spaces == "kept" or (
            self._added.spaces == "kept_before_normalized" and following is not None and following.normalized
        )
        if following is not None and keeps_space and part.text[-1] in self._spaces:
            return self._inner.space()
        return []


class _Finder:
    """A search for tokens in a text, for the longest one at each position.

    Args:
        tokens: the tokens.
        contents: the text of each token in the searched text; None for its content.
    """

    def __init__(self, tokens: Sequence[AddedToken], contents: Sequence[str] | None = None) -> None:
        texts = [token.content for token in tokens] if contents is None else contents
        self.tokens = {text: token for text, token in zip(texts, tokens, strict=True) if text}
        # The first alternative that matches wins in a regular expression, so longer tokens come first.
        longest_first = sorted(self.tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def may_find(self, text: str) -> bool:
        return self._pattern.search(text) is not None

    def split(self, part: TextPart) -> list[TextPart]:
        """Split as `AddedVocabulary` of the library `tokenizers` does."""
        text = part.text
        parts = list[TextPart]()
        position = 0
        for match in self._pattern.finditer(text):
            token, (start, end) = self.tokens[match[0]], match.span()
            if token.single_word and (is_word(text[start - 1 : start]) or is_word(text[end : end + 1])):
                continue
            while token.lstrip and start > position and text[start - 1].isspace():
                start -= 1
            while token.rstrip and end < len(text) and text[end].isspace():
                end += 1
            if position < start:
                parts.append(part.sub_part(position, start, None))
            parts.append(part.sub_part(start, end, token))
            position = end
        if position < len(text):
            return [*parts, part.sub_part(position, len(text), None)]
        return parts

    def split_as_python(self, part: TextPart) -> list[TextPart]:
        """Split as `PythonBackend.tokenize` of transformers does, in the same order of steps.

        Each token changes its neighbours in the list: it takes their white space, or is merged into them if it must not
        be a part of a word.
        """
        parts = list[TextPart]()
        position = 0
        for match in self._pattern.finditer(part.text):
            parts += [part.sub_part(position, match.start(), None), part.sub_part(*match.span(), None)]
            position = match.end()
        parts = [each for each in (*parts, part.sub_part(position, len(part.text), None)) if each.text]
        for i, each in enumerate(parts):
            if each.text in self.tokens:
                self._change_neighbours(parts, i, self.tokens[each.text])
        return [each._replace(token=self.tokens.get(each.text)) for each in parts if each.text]

    @staticmethod
    def _change_neighbours(parts: list[TextPart], i: int, token: AddedToken) -> None:
        current = parts[i]
        if i > 0:
            left = parts[i - 1].text
        else:
            left = ""
        if i + 1 < len(parts):
            right = parts[i + 1].text
        else:
            right = ""
        if token.rstrip and right:
            parts[i + 1] = parts[i + 1].sub_part(len(right) - len(right.lstrip()), len(right), None)
        if token.lstrip and left:
            parts[i - 1] = parts[i - 1].sub_part(0, len(left.rstrip()), None)
        if token.single_word and left and left[-1] != " ":
            parts[i - 1], parts[i] = parts[i - 1].merged(current), current.sub_part(0, 0, None)
        elif token.single_word and right and right[0] != " ":
            parts[i], parts[i + 1] = current.sub_part(0, 0, None), current.merged(parts[i + 1])


def is_word(character: str) -> bool:
    r"""Return whether a character matches \w in the library's regular expressions; False for an empty string."""
    if not character:
        return False
    category = unicodedata.category(character)
    return category[0] in "LM" or category in _WORD_CATEGORIES or _WORD.match(character) is not None
