"""Text in, text out: order, odd input, limits, files; on the toy bundle, and what needs a real one on that."""

import gc
import itertools
import json
import logging
import multiprocessing
import pickle
import re
import tracemalloc
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import patches
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import BUNDLE, LIMIT, SOURCE, TOKENS, answer, default_limit
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.tokenizer_schema import ids_only
from txport.runtime.engines.native import missing
from txport.runtime.errors import BundleError, InputError, TxportError
from txport.runtime.open_bundle import shares
from txport.runtime.options import Options
from txport.runtime.results import Translation, looped
from txport.runtime.translator import Translator

TEXTS = ["the cat sees a bird", "one", "a big red dog", "not two or three", "zebra crossing", "a a a a a a a"]


def expected(toy: Translator, text: str, limit: int | None = None) -> Translation:
    """By arithmetic; the tokenizer is checked elsewhere."""
    if not text.strip():
        return Translation("", [], None, truncated=False, finished=True)
    ids = toy.tokenizer.encode(text)
    cut = [*ids[: SOURCE - 1], TOKENS.eos] if len(ids) > SOURCE else ids
    made = answer(cut, limit or default_limit(cut))[0]
    finished = made[-1] == TOKENS.eos
    loops = looped(made[:-1] if finished else made)
    return Translation(toy.tokenizer.decode(made), made, None, len(ids) > SOURCE, finished, looped=loops)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(TEXTS) | st.sampled_from(["", " ", "\t \u3000"]), max_size=30))
def test_results_are_in_order(toy: Translator, texts: list[str]) -> None:
    assert toy.translate(texts) == [expected(toy, text) for text in texts]


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=40))
def test_any_text(toy: Translator, text: str) -> None:
    (result,) = toy.translate([text])
    if text.strip() == "":
        assert result == Translation("", [], None, truncated=False, finished=True)
    elif result.ids:
        assert result == expected(toy, text)
    assert "".join(piece.text for piece in toy.stream(text)) == result.text


def test_one_string_is_not_a_list(toy: Translator) -> None:
    with pytest.raises(InputError, match="put the one sentence in a list"):
        toy.translate("the cat")
    with pytest.raises(InputError, match="put the one sentence in a list"):
        list(toy.translate_windows(["the cat"]))


def test_sentences_may_come_from_anywhere(toy: Translator) -> None:
    assert toy.translate(text for text in TEXTS) == toy.translate(TEXTS)
    ids = [toy.tokenizer.encode(text) for text in TEXTS]
    for listed in ((iter(source) for source in ids), map(np.array, ids)):
        assert toy.translate_ids(listed) == toy.translate_ids(ids)
    assert toy.translate(["one"], prefix=np.array([5, 6])) == toy.translate(["one"], prefix=[5, 6])
    assert toy.translate(["one"], max_length=np.int64(5)) == toy.translate(["one"], max_length=5)


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        ("translate", [None], "come as a list, and this is of type NoneType"),
        ("translate_ids", [5], "come as a list, and this is of type int"),
        ("translate_ids", [[5, 3]], "sentence 1 is not a list of ids"),
        ("translate_ids", [[[5, 3], "one"]], "sentence 2 is not a list of ids"),
        ("translate_ids", [[[5.5, 3]]], "sentence 1 is not a list of ids"),
        ("translate", [["one"], {"max_length": 5}], r"options are of type dict: give Options"),
    ],
)
def test_arguments_of_other_kinds(toy: Translator, method: str, arguments: list[object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        getattr(toy, method)(*arguments)


def test_a_bundle_that_is_no_path() -> None:
    with pytest.raises(InputError, match="the bundle is of type NoneType: give its path, or the bytes of its file"):
        Translator(None)  # type: ignore[arg-type]


def test_its_name_says_what_runs() -> None:
    with Translator(BUNDLE, "cpu", lowering="scatter") as translator:
        assert repr(translator) == f"<Translator of {BUNDLE}: {translator.engine.name}>"
    assert repr(translator) == f"<Translator of {BUNDLE}: closed>"


def test_an_answer_is_as_long_as_its_source_allows(toy: Translator) -> None:
    """Twice the source and 20, beyond what it must have; more only if that is asked for."""
    sources = ([token, TOKENS.eos] for token in range(4, 96))
    source = next(source for source in sources if TOKENS.eos not in answer(source)[0])
    lengths = [({}, 24), ({"prefix": [9, 8]}, 26), ({"min_length": 7, "prefix": [9, 8]}, 31), ({"max_length": 30}, 30)]
    for options, length in [*lengths, ({"full_length": True}, LIMIT)]:
        (result,) = toy.translate_ids([source], **options)
        ids, _ = answer(source, length, options.get("min_length", 0), options.get("prefix", ()))
        assert result.ids == ids and (len(ids) == length or ids[-1] == TOKENS.eos), options
    (whole,) = toy.translate_ids([source], full_length=True)
    assert len(whole.ids) == LIMIT


def test_a_translation_says_how_it_ended(toy: Translator) -> None:
    sources = [[token, TOKENS.eos] for token in range(4, 96)]
    ended = [source for source in sources if answer(source, default_limit(source))[0][-1] == TOKENS.eos]
    assert ended and len(ended) < len(sources)
    for source, result in zip(sources, toy.translate_ids(sources), strict=True):
        assert result.finished == (source in ended) and not result.truncated
    for source in ended:
        length = len(answer(source)[0])
        exact = toy.translate_ids([source], max_length=length)[0]
        short = toy.translate_ids([source], max_length=length - 1)[0] if length > 1 else None
        assert exact.finished and (short is None or not short.finished)


def test_options_reach_the_search(toy: Translator) -> None:
    source = toy.tokenizer.encode("one")
    prefix = toy.tokenizer.encode_prefix("the cat")
    (result,) = toy.translate(["one"], max_length=9, min_length=2, prefix="the cat", scores=True)
    ids, scores = answer(source, 9, 2, prefix)
    assert result.ids == ids and result.scores == pytest.approx(scores, rel=1e-4)
    assert result.text.startswith("the cat")
    assert [piece.id for piece in toy.stream("one", max_length=9, min_length=2, prefix="the cat")] == ids


def test_scores_of_an_empty_line(toy: Translator) -> None:
    assert toy.translate([" "], scores=True) == [Translation("", [], [], truncated=False, finished=True)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_length": 0}, "maximum length 0"),
        ({"max_length": LIMIT + 1}, f"not between 1 and {LIMIT}"),
        ({"min_length": -1}, "minimum length -1"),
        ({"min_length": 10, "max_length": 9}, "minimum length 10"),
        ({"prefix": "one two three four", "max_length": 4}, "no room"),
        ({"max_length": "5"}, "max_length '5' is not a whole number"),
        ({"max_length": 2.5}, r"max_length 2\.5 is not a whole number"),
        ({"max_length": True}, "max_length True is not a whole number"),
        ({"min_length": None}, "min_length None is not a whole number"),
        ({"beam": 0}, "beam 0 is not 1 or more"),
        ({"beam": 2, "n_best": 3}, "n_best 3 is more than the beam of 2: raise beam, or lower n_best"),
        ({"beam": 9}, "beam 9 is too large: this bundle supports at most 8 rows"),
        ({"sample": True, "n_best": 9}, "n_best 9 is too large"),
        ({"beam": 2, "sample": True}, "beam excludes sample: leave out one of them"),
        ({"beam": 2, "patience": 2.0}, "patience has no effect without early_stopping true"),
        ({"length_penalty": float("nan")}, "length_penalty nan is not a number"),
        ({"repetition_penalty": 0}, "repetition_penalty 0 is not a number above 0"),
        ({"top_p": 1.5}, "top_p 1.5 is not a number above 0, at most 1"),
        ({"early_stopping": "sometimes"}, "early_stopping 'sometimes' is not one of True, False, 'never'"),
        ({"sample": True, "seed": 2**63}, "seed 9223372036854775808 is not at most 9223372036854775807"),
        ({"no_repeat_ngram": 0}, "no_repeat_ngram 0 is not 1 or more"),
        ({"suppress": range(96)}, "suppress contains all 96 ids: leave out"),
        ({"suppress": [96]}, "suppress has the id 96"),
        ({"forced_end": 96}, "forced_end has the id 96"),
        ({"bad_words": [""]}, "bad_words has '', which has no tokens"),
        ({"generation": "best"}, "generation 'best' is not one of 'greedy', 'model'"),
        ({"prefix": 5}, "the prefix is not a list of ids"),
        ({"prefix": ["a"]}, "the prefix is not a list of ids"),
        ({"prefix": "\ud800"}, "the prefix is not valid text"),
    ],
)
def test_options_that_cannot_be(toy: Translator, options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        toy.translate(["one"], **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=words):
        list(toy.stream("one", **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "advice"), [("max_lenght", "did you mean max_length?"), ("quality", "there are max_length, full_length, ")]
)
def test_unknown_options(toy: Translator, name: str, advice: str) -> None:
    for call in (toy.translate, toy.translate_ids):
        with pytest.raises(InputError, match=f"there is no option '{name}': {re.escape(advice)}"):
            call([], **{name: 1})


def test_options_as_an_object_and_by_name_are_one(toy: Translator) -> None:
    options = Options(max_length=9, min_length=2, prefix="the cat", scores=True)
    assert toy.translate(["one"], options) == toy.translate(
        ["one"], max_length=9, min_length=2, prefix="the cat", scores=True
    )
    assert toy.translate(["one"], options, max_length=5) == toy.translate(["one"], replace(options, max_length=5))


def test_a_prefix_is_text_or_ids(toy: Translator) -> None:
    ids = toy.tokenizer.encode_prefix("the cat")
    source = toy.tokenizer.encode("one")
    assert toy.translate(["one"], prefix=ids) == toy.translate(["one"], prefix="the cat")
    assert toy.translate_ids([source], prefix="the cat") == toy.translate_ids([source], prefix=ids)
    with pytest.raises(InputError, match="the prefix has the id 96"):
        toy.translate(["one"], prefix=[96])


def test_long_sentences_are_cut_with_a_warning(toy: Translator, caplog: pytest.LogCaptureFixture) -> None:
    long = "one two " * 40
    with caplog.at_level(logging.WARNING, "txport"):
        results = toy.translate(["one", long])
    assert results == [expected(toy, "one"), expected(toy, long)]
    assert results[1].truncated
    (record,) = caplog.records
    assert "sentence 2 has" in record.message and f"more than the {SOURCE}" in record.message


def test_or_refused(toy: Translator) -> None:
    with pytest.raises(InputError, match=r"sentence 2 has \d+ tokens, more than the 24"):
        toy.translate(["one", "one two " * 40], strict=True)
    with pytest.raises(InputError, match="line 4 has"):
        list(toy.translate_windows([["one", "two"], ["a", "one two " * 40]], Options(strict=True)))
    exact = next(text for n in range(1, 60) if len(toy.tokenizer.encode(text := "one " * n)) >= SOURCE)
    assert len(toy.tokenizer.encode(exact)) == SOURCE, "the longest that fits"
    toy.translate([exact], strict=True)


# Unknown characters that are alike are fewer: SentencePiece takes the square of their number, minutes for a million.
@pytest.mark.parametrize("text", ["x" * 1_000_000, "the cat " * 125_000, "🙂" * 50_000, "\0" * 50_000])
def test_very_long_lines(toy: Translator, text: str) -> None:
    (result,) = toy.translate([text], max_length=4)
    assert len(result.ids) <= 4


def test_ids(toy: Translator) -> None:
    sources = [[5, 7, 3], [11, 3], [5, 7, 3]]
    assert [result.ids for result in toy.translate_ids(sources)] == [
        answer(source, default_limit(source))[0] for source in sources
    ]
    (result,) = toy.translate_ids([[5, 7, 3]], max_length=7, min_length=2, prefix=[9, 8], scores=True)
    ids, scores = answer([5, 7, 3], 7, 2, [9, 8])
    assert result.ids == ids and result.scores == pytest.approx(scores, rel=1e-4)
    for bad in ([], [5] * 25, [96], [-1]):
        with pytest.raises(InputError, match="sentence 2 has "):
            toy.translate_ids([[5, 3], bad])
    with pytest.raises(InputError, match="the prefix has the id 96"):
        toy.translate_ids([[5, 3]], prefix=[96])


@pytest.mark.parametrize(
    ("sentence", "words"),
    [(3, "of type int"), (None, "of type NoneType"), (b"one", "of type bytes"), ("\ud800", "surrogates not allowed")],
)
def test_sentences_that_are_not_text(toy: Translator, sentence: object, words: str) -> None:
    with pytest.raises(InputError, match=f"sentence 2 .*{words}"):
        toy.translate(["one", sentence])  # type: ignore[list-item]
    with pytest.raises(InputError, match=words):
        list(toy.stream(sentence))  # type: ignore[arg-type]


def test_a_closed_translator() -> None:
    with Translator(BUNDLE, threads=1) as translator:
        assert translator.translate(["one"])
    translator.close()
    with pytest.raises(InputError, match="was closed"):
        translator.translate(["one"])


def test_a_translator_says_that_it_cannot_be_pickled(toy: Translator) -> None:
    with pytest.raises(InputError, match="open the bundle in each process"):
        pickle.dumps(toy)


@pytest.mark.parametrize(
    "arguments",
    [{"threads": -1}, {"workers": -1}, {"batch": 0}, {"batch_tokens": 0}, {"threads": "2"}, {"batch": 2.5}],
    ids=str,
)
def test_arguments_that_cannot_be(arguments: dict[str, object]) -> None:
    with pytest.raises(InputError, match="must be"):
        Translator(BUNDLE, **arguments)  # type: ignore[arg-type]


def test_a_batch_is_within_the_bundles(toy: Translator) -> None:
    with pytest.raises(InputError, match="the batch 9 is not between 1 and 8, the maximum of this bundle"):
        Translator(BUNDLE, batch=9)
    assert Translator(BUNDLE, batch=8).translate(TEXTS) == toy.translate(TEXTS)


@pytest.mark.parametrize("device", ["tpu", ""])
def test_devices_of_later_versions(device: str) -> None:
    with pytest.raises(InputError, match="not supported by this version of txport: use auto, cpu, cuda"):
        Translator(BUNDLE, device=device)


@pytest.mark.parametrize(("batch", "batch_tokens"), [(1, 4096), (3, 4096), (None, 1), (None, 50)])
def test_the_batch_changes_nothing(toy: Translator, batch: int | None, batch_tokens: int) -> None:
    other = Translator(BUNDLE, batch=batch, batch_tokens=batch_tokens)
    assert other.translate(TEXTS * 5) == toy.translate(TEXTS * 5)


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_workers_change_nothing(toy: Translator, workers: int) -> None:
    other = Translator(BUNDLE, workers=workers)
    assert other.translate(TEXTS * 5) == toy.translate(TEXTS * 5)
    assert other.translate(TEXTS[:1]) == toy.translate(TEXTS[:1])
    assert other.translate([]) == []


@pytest.mark.parametrize(
    ("workers", "threads", "cores", "expected"),
    [
        (1, 0, 8, (1, 0)),  # a sentence at a time: ONNX Runtime's own choice
        (1, 3, 8, (1, 3)),
        (0, 0, 1, (1, 0)),
        (0, 0, 2, (2, 1)),
        (0, 0, 6, (4, 1)),
        (0, 0, 16, (4, 4)),
        (0, 4, 8, (2, 4)),
        (0, 16, 8, (1, 16)),
        (3, 0, 8, (3, 2)),
        (8, 0, 2, (8, 1)),
        (2, 5, 2, (2, 5)),
    ],
)
def test_workers_share_the_cores(workers: int, threads: int, cores: int, expected: tuple[int, int]) -> None:
    assert shares(workers, threads, cores) == expected


@pytest.mark.parametrize(("threads", "workers"), [(1, 1), (2, 1), (3, 2), (1, 4)])
def test_threads_change_no_ids(bundle: Path, threads: int, workers: int) -> None:
    """Of a model that was trained, whose products are large enough to be divided."""
    texts = [f"It cost ${n}.{n % 100:02}." for n in range(40)]
    expected_ids = [result.ids for result in Translator(bundle).translate(texts)]
    other = Translator(bundle, threads=threads, workers=workers)
    assert [result.ids for result in other.translate(texts)] == expected_ids


@pytest.mark.skipif(missing() is not None, reason=f"needs the fused engine's library: {missing()}")
@pytest.mark.parametrize("threads", [0, 1])
def test_calls_of_many_threads_share_a_batch_and_have_the_answers_of_one(bundle: Path, threads: int) -> None:
    """Scores too, bit by bit."""
    calls = [[f"It cost ${n}.{n % 100:02}.", f"{n} km"][: 1 + n % 2] for n in range(60)]
    with Translator(bundle, engine="fused", threads=threads) as translator, ThreadPoolExecutor(12) as pool:
        expected = [translator.translate(call, scores=True) for call in calls]
        assert list(pool.map(lambda call: translator.translate(call, scores=True), calls)) == expected


def test_processes_open_a_bundle_each(toy: Translator) -> None:
    """Processes that begin anew, two at once, as of multiprocessing's start method spawn."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), _open_toy) as pool:
        answers = list(pool.map(_translate_toy, [TEXTS] * 4))
    assert answers == [toy.translate(TEXTS)] * 4


def _open_toy() -> None:
    global _in_this_process
    _in_this_process = Translator(BUNDLE, threads=1)


def _translate_toy(texts: list[str]) -> list[Translation]:
    return _in_this_process.translate(texts)


def test_a_stream_may_be_left_alone(toy: Translator) -> None:
    whole = [piece.id for piece in toy.stream("the cat sees a bird")]
    for count in range(3):
        stream = toy.stream("the cat sees a bird")
        assert [piece.id for piece in itertools.islice(stream, count)] == whole[:count]
        del stream
        gc.collect()
        assert [piece.id for piece in toy.stream("the cat sees a bird")] == whole
    with Translator(BUNDLE, threads=1) as translator:
        stream = translator.stream("the cat sees a bird")
        first = next(stream)
    del translator
    gc.collect()
    assert [first.id, *(piece.id for piece in stream)] == whole, "it goes on after close()"


def test_threads_share_a_translator(toy: Translator) -> None:
    alone = toy.translate(TEXTS * 3)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(toy.translate, [TEXTS * 3] * 12)) == [alone] * 12


def test_files(toy: Translator, tmp_path: Path) -> None:
    lines = ([*TEXTS, "", "  "]) * 300
    (tmp_path / "in").write_text("\n".join(lines), encoding="utf-8")
    assert toy.translate_file(tmp_path / "in", tmp_path / "out", Options(max_length=5)) == len(lines)
    found = (tmp_path / "out").read_bytes().decode().split("\n")
    assert found[:-1] == [expected(toy, text, 5).text for text in lines] and found[-1] == ""


def test_a_file_that_fails_leaves_the_old_one(toy: Translator, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"one\n\xff\n")
    (tmp_path / "out").write_text("old")
    with pytest.raises(InputError, match="in, line 2 is not UTF-8"):
        toy.translate_file(tmp_path / "in", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "old"
    assert toy.translate_file(tmp_path / "in", tmp_path / "out", errors="skip") == 2
    assert (tmp_path / "out").read_text() == f"{expected(toy, 'one').text}\n\n"
    with pytest.raises(InputError, match="cannot be read"):
        toy.translate_file(tmp_path / "nowhere", tmp_path / "out")


def test_memory_does_not_grow_with_the_file(toy: Translator, tmp_path: Path) -> None:
    peaks = []
    for count in (50, 500):
        (tmp_path / "in").write_text(("one\n" + f"{' ' * 60}\n" * 100) * count)
        tracemalloc.start()
        toy.translate_file(tmp_path / "in", tmp_path / "out", Options(max_length=2))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_damage_is_found_when_a_bundle_is_opened(damaged: Path) -> None:
    for name in Manifest.load(damaged).files:
        path = damaged / name
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        if name == "onnx/weights.bin":  # too large to be read each time: tx-inspect --check does
            Translator(damaged)
        else:
            with pytest.raises(BundleError, match="was changed"):
                Translator(damaged)
        path.write_bytes(data)


def test_a_tokenizer_of_another_model(damaged: Path) -> None:
    manifest = Manifest.load(damaged)
    raw = json.loads((damaged / "manifest.json").read_bytes())
    for graph in raw["graphs"]:
        for tensor in graph["outputs"]:
            tensor["shape"] = [40 if size == 96 else size for size in tensor["shape"]]
    raw["model"]["source_vocabulary"] = raw["model"]["target_vocabulary"] = 40
    (damaged / "manifest.json").write_bytes(patches.sign(patches.text(raw | {"sha256": patches.ZEROS})))
    assert manifest.tokenizer.source is not None
    with pytest.raises(BundleError, match="pieces, more than the vocabulary of 40"):
        Translator(damaged)


def test_a_bundle_without_tokenizer(damaged: Path) -> None:
    manifest = Manifest.load(damaged)
    without = Manifest(**{**vars(manifest), "tokenizer": ids_only(TOKENS.eos)})
    without.write(damaged)
    translator = Translator(damaged)
    (result,) = translator.translate_ids([[5, 7, 3]])
    ids = answer([5, 7, 3], 26)[0]
    ended = ids[-1] == TOKENS.eos
    assert result == Translation("", ids, None, truncated=False, finished=ended, looped=looped(ids[: len(ids) - ended]))
    with pytest.raises(InputError, match="translate_ids"):
        translator.translate(["one"])


def test_a_real_bundle(bundle: Path) -> None:
    """Batches, order and streams on a model that was trained."""
    translator = Translator(bundle)
    texts = ["See you on 3/14/2025.", "", "It cost $12.50.", "at 5:30 pm", "Call 555-1234 today.", "🙂 \0 漢字"] * 7
    alone = {text: translator.translate([text])[0] for text in set(texts)}
    assert translator.translate(texts) == [alone[text] for text in texts]
    for text in set(texts):
        assert "".join(piece.text for piece in translator.stream(text)) == alone[text].text
    (result,) = translator.translate(["at 5:30 pm"], scores=True, prefix="it")
    assert result.text.startswith("it") and result.scores is not None
    assert len(result.scores) == len(result.ids) and all(score <= 0 for score in result.scores)


def test_mistakes_are_raised_by_the_call_and_not_by_the_first_result(toy: Translator) -> None:
    for mistake in ({"beam": 2}, {"alignments": True}, {"top_p": 0.5}, {"max_lenght": 3}):
        with pytest.raises(TxportError):
            toy.stream("the cat", **mistake)
    with pytest.raises(InputError):
        toy.stream("a\ud800")
    with pytest.raises(InputError):
        toy.translate_windows([["the cat"]], max_lenght=3)


def test_an_unknown_argument_of_the_constructor_is_named(toy: Translator) -> None:
    with pytest.raises(TypeError, match=r"Translator\(\) has no argument 'beam', which is an option of translate"):
        Translator(BUNDLE, beam=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Translator\(\) has no argument 'thread': did you mean threads\?"):
        Translator(BUNDLE, thread=3)  # type: ignore[call-arg]
