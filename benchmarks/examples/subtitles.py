"""Translate a subtitle file in SRT format: numbers and times stay unchanged.

python subtitles.py BUNDLE movie.en.srt movie.de.srt
"""

import re
import sys
from pathlib import Path

from txport.runtime import Translator

# The number, the time line, and the text up to the next empty line.
CUE = re.compile(r"(\d+\n[\d:,.]+ --> [^\n]+\n)(.*?)(?=\n\n|\n?\Z)", re.DOTALL)
TAG = re.compile(r"</?[biu]>|<font[^>]*>|</font>|\{\\an\d\}")
WIDTH = 42


def wrap(text: str) -> str:
    """Break a text of more than 42 characters into two lines, near the middle."""
    if len(text) <= WIDTH:
        return text
    spaces = [match.start() for match in re.finditer(" ", text)]
    if not spaces:
        return text
    middle = min(spaces, key=lambda position: abs(position - len(text) // 2))
    return f"{text[:middle]}\n{text[middle + 1 :]}"


def translate_subtitles(translator: Translator, text: str) -> str:
    """Return the file with the translated text of each cue."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    cues = CUE.findall(text)
    sentences = [" ".join(TAG.sub("", words).split()) for _, words in cues]
    results = translator.translate(sentences)  # all cues at once: sorted by length, decoded in batches
    blocks = [header + wrap(result.text) for (header, _), result in zip(cues, results, strict=True)]
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    bundle, source, target = sys.argv[1:]
    translated = translate_subtitles(Translator(bundle), Path(source).read_text(encoding="utf-8"))
    Path(target).write_text(translated, encoding="utf-8")
