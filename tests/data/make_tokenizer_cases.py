"""Makes `tests/data/tokenizer`: tiny SentencePiece models, a vocabulary in another order, and cases for runtimes.

What must come out is said by Hugging Face's MarianTokenizer on the same files, so this needs `transformers`, and for
words and characters by plain Python; reading the cases needs neither. `index.json` holds

* `tokenizers`: by name, the field `tokenizer` of a manifest, whose files lie here;
* `unk`, `vocabulary`: the id of unknown pieces, and the number of ids of each side;
* `encode`: text and options, and the source ids and forced target ids that they give, or words of the error;
* `prefix`: text and its ids on the target side; `decode`: target ids and their text.

Write them again with `python tests/data/make_tokenizer_cases.py`.
"""

import io
import json
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import sentencepiece

DIRECTORY = Path(__file__).parents[1] / "data" / "tokenizer"
EOS, UNK = 0, 1
LANGUAGES = ("fra", "deu", "por_BR")
SOURCE_WORDS = "the a cat dog bird tree sees likes hears big small red blue and or not one two café naïve it's".split()
TARGET_WORDS = "le la un chat chien oiseau arbre voit aime grand petit rouge bleu et ou pas deux été garçon".split()
TEXTS = [
    "the cat sees a bird",
    "  two   spaces\tand a tab ",
    "café naïve",
    "A CAT",
    "🙂 and 漢字",
    "zebra",
    "x",
    "the cat <s> sees",
    "a\u2581b",
    "> > not a marker <<",
    " >>fra<< the cat",
    ">fra<< the cat",
    ">>fra the cat",
    "the cat >>fra<<",
]
MARKED = [
    ">>fra<< the cat",
    ">>fra<<the cat",
    ">>deu<<   the  cat",
    ">>por_BR<< a dog",
    ">>fra<< >>deu<< the cat",
    ">>FRA<< the cat",
    ">>fra <<the cat",
    ">>unknown language<< the cat",
    ">>>>fra<< the cat",
    ">><< the cat",
    ">>a > b << c<< the cat",
]


def train(words: list[str]) -> bytes:
    lines = [" ".join(words[(i * step) % len(words)] for i in range(12)) for step in range(1, 60)]
    lines += list("abcdefghijklmnopqrstuvwxyz<>_") * 3
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=out,
        vocab_size=80,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
    )
    return out.getvalue()


# What algorithms word and char make of these, most frequent first: the ids are the places in the lists.
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
WORDS = [*SPECIAL, *". ! , ? go i'm home va".split()]
LETTERS = [*SPECIAL, "▁", *"aeioghmv'é"]
SENTENCES = ["Go.", "  GO  !", "I'm home, go!?", "va!", "I'm gone.", "He's home...", ",", "", "me!", "go.home", "x y"]


def train_by(algorithm: str, pieces: list[str], rules: str) -> bytes:
    """A model of exactly these pieces.

    Args:
        algorithm: word or char.
        pieces: earlier ones are made more frequent.
        rules: of the normalisation, as `txport.models.normalisation` writes them.
    """
    from txport.models.importers.tokenizers.pieces import without_rule_file

    lines = [" ".join(pieces[:size]) for size in range(1, len(pieces) + 1)]
    out = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        file.write(rules)
        file.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=out,
            model_type=algorithm,
            vocab_size=len(SPECIAL) + len(pieces) + (algorithm == "char"),
            **dict(zip(("pad_id", "unk_id", "bos_id", "eos_id"), range(4), strict=True)),
            **({"normalization_rule_tsv": file.name} if rules else {"normalization_rule_name": "identity"}),
            hard_vocab_limit=False,
            minloglevel=2,
            num_threads=1,
        )
    return without_rule_file(out.getvalue())


def split_models() -> dict[str, bytes]:
    """Of algorithm word, with the rules for ASCII, which fold case and write spaces before marks; and of char."""
    from txport.models.normalisation import spacing_rules

    rules = "".join(line for line in spacing_rules(lower_case=True).splitlines(keepends=True) if line[2] == "\t")
    return {"words": train_by("word", WORDS[4:], rules), "letters": train_by("char", LETTERS[5:], "")}


def split_cases() -> dict[str, list[dict[str, Any]]]:
    """By plain Python."""

    def words(text: str) -> list[str]:
        return re.sub("([,.!?])", r" \1", text.lower()).split()

    def letters(text: str) -> str:
        return "".join(f"▁{word}" for word in text.split())

    cases: dict[str, list[dict[str, Any]]] = {"encode": [], "prefix": [], "decode": []}
    kinds: tuple[tuple[str, list[str], Any], ...] = (("words", WORDS, words), ("letters", LETTERS, letters))
    for name, pieces, parts in kinds:
        for text in SENTENCES:
            ids = [pieces.index(part) if part in pieces else UNK for part in parts(text)]
            # SentencePiece makes one unknown piece of those that follow each other, whatever the algorithm.
            ids = [i for at, i in enumerate(ids) if i != UNK or at == 0 or ids[at - 1] != UNK]
            none = {"source_language": None, "target_language": None, "target_prefix": []}
            cases["encode"].append({"tokenizer": name, "text": text, **none, "ids": [*ids, 3]})
            cases["prefix"].append({"tokenizer": name, "text": text, "ids": ids})
            if UNK not in ids:
                plain = " ".join(words(text)) if name == "words" else " ".join(text.split())
                cases["decode"].append({"tokenizer": name, "ids": [2, *ids, 0, 3, 500], "text": plain})
    return cases


def vocabulary(models: list[bytes]) -> tuple[list[str], list[str | None]]:
    """All tokens by id, and what vocabulary.json has of them: pieces of both models in an order of their own."""
    pieces: set[str] = set()
    for model in models:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces |= {processor.id_to_piece(i) for i in range(3, processor.get_piece_size())}
    # Every seventh piece is one that the model was never taught.
    kept = [piece for i, piece in enumerate(sorted(pieces, reverse=True)) if i % 7]
    half = len(kept) // 2
    languages = [f">>{name}<<" for name in LANGUAGES]
    tokens = ["</s>", "<unk>", *kept[:half], *languages, *kept[half:], "<pad>"]
    return tokens, [None if token not in pieces else token for token in tokens]


def descriptions(tokens: list[str]) -> dict[str, dict[str, Any]]:
    target = {name: tokens.index(f">>{name}<<") for name in LANGUAGES}
    files = {side: {"model": f"{side}.model", "vocabulary": "vocabulary.json"} for side in ("source", "target")}
    own = {side: {"model": "source.model", "vocabulary": None} for side in ("source", "target")}
    chosen = {"source": {}, "target": target, "source_default": None, "target_default": None, "in_text": True}
    both = {"source": {"eng": 40, "ita": 41}, "target": target, "source_default": "eng", "target_default": None}
    none = {"source_prefix": [], "source_suffix": [EOS], "target_prefix": [], "languages": None}
    marian = {**none, "source_prefix": ["target_language"], "languages": chosen}
    forced: dict[str, Any] = {
        "source_prefix": ["source_language"],
        "source_suffix": [EOS, 5],
        "target_prefix": ["target_language", 7],
        "languages": {**both, "in_text": False},
    }
    split = {
        name: {
            "kind": "sentencepiece",
            **{side: {"model": f"{name}.model", "vocabulary": None} for side in ("source", "target")},
            **none,
            "source_suffix": [3],
        }
        for name in ("words", "letters")
    }
    return {
        **split,
        "plain": {"kind": "sentencepiece", **own, **none, "source_suffix": [2]},
        "mapped": {"kind": "sentencepiece", **files, **none},
        "marian": {"kind": "sentencepiece", **files, **marian},
        "marian_fra": {"kind": "sentencepiece", **files, **marian, "languages": {**chosen, "target_default": "fra"}},
        "forced": {"kind": "sentencepiece", **files, **forced},
    }


class Oracle:
    """MarianTokenizer on the files, and SentencePiece itself where the ids are its own."""

    def __init__(self, directory: Path, tokens: list[str]) -> None:
        from transformers import MarianTokenizer

        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "vocab.json"
            file.write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
            models = str(directory / "source.model"), str(directory / "target.model")
            self._marian = MarianTokenizer(*models, str(file))
        self._own = sentencepiece.SentencePieceProcessor(model_file=models[0])

    def encode(self, text: str) -> list[int]:
        return list(self._marian(text).input_ids)

    def own(self, text: str) -> list[int]:
        return [*self._own.encode(text), 2]

    def prefix(self, text: str) -> list[int]:
        return list(self._marian(text_target=text).input_ids[:-1])

    def decode(self, ids: list[int]) -> str:
        return str(self._marian.decode(ids, skip_special_tokens=True, use_source_tokenizer=False))


def encode_cases(oracle: Oracle, languages: dict[str, int]) -> list[dict[str, Any]]:
    def case(tokenizer: str, text: str, ids: list[int], forced: list[int] | None = None, **options: str) -> Any:
        chosen = {"source_language": None, "target_language": None, **options}
        return {"tokenizer": tokenizer, "text": text, **chosen, "ids": ids, "target_prefix": forced or []}

    cases = [case("plain", text, oracle.own(text)) for text in TEXTS + MARKED]
    for text in TEXTS:
        ids = oracle.encode(text)
        cases += [case("mapped", text, ids), case("marian", text, ids)]
        for name in LANGUAGES:
            marked = oracle.encode(f">>{name}<<{text}")
            cases.append(case("marian", text, marked, target_language=name))
            forced = [languages[name], 7]
            cases.append(case("forced", text, [40, *ids, 5], forced, target_language=name))
        cases.append(case("marian_fra", text, oracle.encode(f">>fra<<{text}")))
    for text in MARKED:
        ids = oracle.encode(text)
        # The text's own choice comes before that of the call, and before the default.
        cases += [case("marian", text, ids), case("marian", text, ids, target_language="deu")]
        cases.append(case("marian_fra", text, ids))
    forced = {"source_language": "ita", "target_language": "deu"}
    cases.append(case("forced", "x", [41, *oracle.encode("x"), 5], [languages["deu"], 7], **forced))
    return cases


def error_cases() -> list[dict[str, Any]]:
    def case(tokenizer: str, words: str, **options: str) -> Any:
        chosen = {"source_language": None, "target_language": None, **options}
        return {"tokenizer": tokenizer, "text": "the cat", **chosen, "error": words}

    return [
        case("forced", "--target-language"),
        case("forced", "fra", target_language="FRA"),
        case("forced", "ita", source_language="fra", target_language="fra"),
        case("forced", "fra", target_language=""),
        case("marian", "por_BR", target_language=">>fra<<"),
        case("marian", "source language", source_language="eng"),
        case("mapped", "target language", target_language="fra"),
        case("plain", "source language", source_language="eng"),
    ]


def decode_cases(oracle: Oracle, pieces: list[str | None]) -> list[dict[str, Any]]:
    draw = random.Random(0)
    ids = [oracle.prefix(text) for text in ("le chat voit un oiseau", "été 🙂garçon", "the cat", "")]
    while len(ids) < 60:
        given = [draw.randrange(len(pieces)) for _ in range(draw.randrange(1, 12))]
        text = [piece for piece in (pieces[token] for token in given) if piece is not None]
        # Hugging Face strips blanks from both ends, SentencePiece does not.
        if text and text[0] != "▁" and not text[-1].endswith("▁"):
            ids.append(given)
    special = {token for token, piece in enumerate(pieces) if piece is None}
    cases = []
    for given in ids:
        text = oracle.decode([token for token in given if token not in special])
        noise = [token for token in given for token in (token, *draw.sample([-1, len(pieces), 10**6, EOS], 1))]
        cases += [{"ids": given, "text": text}, {"ids": noise, "text": text}]
    return cases


def write(directory: Path) -> None:
    """Write all files."""
    from txport.models.importers.tokenizers.pieces import completed, pieces_of

    models = {"source": train(SOURCE_WORDS), "target": train(TARGET_WORDS)}
    directory.mkdir(parents=True, exist_ok=True)
    for side, model in {**models, **split_models()}.items():
        (directory / f"{side}.model").write_bytes(model)
    tokens, pieces = vocabulary(list(models.values()))
    text = json.dumps({"format_version": 1, "pieces": pieces}, ensure_ascii=False)
    (directory / "vocabulary.json").write_text(text + "\n", encoding="utf-8")
    oracle, described = Oracle(directory, tokens), descriptions(tokens)
    # Pieces that only the source side knows, as an import completes them; the oracle has the model as it was trained.
    known = pieces_of(models["target"], "target.model")
    whole = completed(models["target"], known, [piece for piece in pieces if piece is not None])
    (directory / "target.model").write_bytes(whole)
    split = split_cases()
    index = {
        "tokenizers": described,
        "unk": UNK,
        "vocabulary": len(tokens),
        "encode": encode_cases(oracle, described["marian"]["languages"]["target"]) + error_cases() + split["encode"],
        "prefix": [{"tokenizer": "marian", "text": t, "ids": oracle.prefix(t)} for t in ("le chat", "x 🙂", "")]
        + split["prefix"],
        "decode": [{"tokenizer": "marian", **case} for case in decode_cases(oracle, pieces)] + split["decode"],
    }
    lines = json.dumps(index, ensure_ascii=False, indent=None, separators=(",", ":")).replace('},{"tok', '},\n{"tok')
    (directory / "index.json").write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(DIRECTORY)
