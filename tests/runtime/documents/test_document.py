"""Translated documents, by the toy bundle: as its sentences alone, with the layout of the source."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from itertools import pairwise

import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from txport.runtime import Document, InputError, ResourceError, Translator
from txport.runtime.documents.feed import NO_ID
from txport.runtime.documents.layout import split
from txport.runtime.results import Piece
from txport.runtime.search.queue import DeadlineExceeded, Pending, Queue
from txport.runtime.search.requests import Request

TEXT = (
    "# the cat\r\n\r\n\tthe dog. A bird sees the cat!  yes\r\n- one tree\r\n- two trees\r\n\r\n***\r\n"
    "the red house that the big dog likes and that the\r\nsmall cat does not like. a bird\r\n"
)


@pytest.fixture(scope="module")
def translator() -> Iterator[Translator]:
    with Translator(toy.BUNDLE) as opened:
        yield opened


def test_each_sentence_as_alone_and_the_layout_as_it_was(translator: Translator) -> None:
    document = translator.translate_document(TEXT)
    segments = split(TEXT)
    alone = translator.translate([segment.text for segment in segments])
    whole = [number for number, each in enumerate(alone) if not each.truncated]
    assert len(whole) == 5
    kept = [part for part in document.parts if not part.cut]
    assert [part.translation for part in kept] == [alone[number] for number in whole]
    for part in document.parts:
        assert TEXT[slice(*part.source)].split() == part.text.split()
        assert document.text[slice(*part.target)].split() == part.translation.text.split()
    for a, b in pairwise(document.parts):
        assert document.text[a.target[1] : b.target[0]] == TEXT[a.source[1] : b.source[0]]
    assert document.text.startswith("# ")
    assert document.text.endswith("\r\n")
    assert document.text.count("\r\n") == TEXT.count("\r\n")


@pytest.mark.parametrize("text", ["", " \n", "***\n\n"])
def test_nothing_to_translate_stays(translator: Translator, text: str) -> None:
    assert translator.translate_document(text) == Document(text, [])
    pieces: list[Piece] = []
    assert translator.submit_document(text, on_piece=pieces.append).result() == Document(text, [])
    assert "".join(piece.text for piece in pieces) == text


def test_a_sentence_of_2000_words_is_cut_with_a_warning_and_whole(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    text = "a\n\n" + ", ".join(["the cat", "a big dog"] * 400) + "."
    document = translator.translate_document(text)
    count = len(document.parts) - 1
    assert count > 100
    assert not document.parts[0].cut
    assert all(part.cut and not part.translation.truncated for part in document.parts[1:])
    source = "".join(text[slice(*part.source)] for part in document.parts)
    assert "".join(source.split()) == "".join(text.split())
    assert [record.getMessage() for record in caplog.records if "cut" in record.getMessage()] == [
        f"the sentence in line 3 has {len(translator.tokenizer.encode(text[3:]))} tokens, "
        f"more than the {toy.SOURCE} that this model supports: it was cut into {count} parts"
    ]
    with pytest.raises(InputError, match="the sentence in line 3 has .*: shorten it, or leave out the option strict"):
        translator.translate_document(text, strict=True)


def test_answers_that_do_not_end_are_counted(translator: Translator, caplog: pytest.LogCaptureFixture) -> None:
    document = translator.translate_document("the cat. The dog. A bird.", max_length=2)
    unfinished = sum(not part.translation.finished for part in document.parts)
    assert unfinished > 0
    assert f"{unfinished} of 3 parts of the document reached the maximum length before an end" in caplog.text


@settings(max_examples=25, deadline=None)
@given(text=st.text(alphabet="abc.! \n\t-“”。x,", max_size=60))
def test_a_document_in_the_queue_is_the_same(translator: Translator, text: str) -> None:
    pieces: list[Piece] = []
    queued = translator.submit_document(text, on_piece=pieces.append).result()
    assert queued == translator.translate_document(text)
    assert "".join(piece.text for piece in pieces) == queued.text
    ids = [piece.id for piece in pieces if piece.id != NO_ID]
    whole = [part for part in queued.parts if "\n" not in text[slice(*part.source)]]
    assert ids == [token for part in whole for token in part.translation.ids]


def test_options_reach_every_part(translator: Translator) -> None:
    document = translator.translate_document(TEXT, beam=2, scores=True, max_length=6)
    assert all(part.translation.scores and part.translation.score is not None for part in document.parts)
    assert translator.submit_document(TEXT, beam=2, scores=True, max_length=6).result() == document
    drawn = translator.translate_document("a cat. A cat. A cat.", sample=True, max_length=6).parts
    assert len({tuple(part.translation.ids) for part in drawn}) > 1  # each by its number
    assert drawn[1].translation == translator.translate(["", "A cat."], sample=True, max_length=6)[1]
    with pytest.raises(InputError, match="a stream is greedy"):
        translator.submit_document(TEXT, beam=2, on_piece=print)
    with pytest.raises(InputError, match="there is no option 'beams'"):
        translator.translate_document(TEXT, beams=2)
    with pytest.raises(InputError, match="the document is of type bytes"):
        translator.translate_document(b"a")  # type: ignore[arg-type]


def test_a_long_document_leaves_room_for_others_and_is_answered_when_the_queue_drains() -> None:
    """The queue is full of its parts never, although it is longer than what may wait, and goes on while it drains."""
    translator = Translator(toy.BUNDLE)
    text = "the cat.\n" * 1500
    most = 0

    def look(_: Piece) -> None:
        nonlocal most
        most = max(most, translator.load.unanswered)

    document = translator.submit_document(text, on_piece=look)
    alone = translator.submit("the dog").result()
    assert not document.done()
    translator.close()
    assert document.result().text == (document.result().parts[0].translation.text + "\n") * 1500
    assert 8 <= most <= 65
    assert alone.text
    with pytest.raises(InputError, match="was closed"):
        translator.submit_document(text)


@pytest.mark.parametrize("end", [CancelledError, DeadlineExceeded])
def test_cancel_and_deadline_free_all_parts(translator: Translator, end: type[Exception]) -> None:
    started = threading.Event()
    seconds = 0.05 if end is DeadlineExceeded else None
    document = translator.submit_document("the cat.\n" * 3000, on_piece=lambda _: started.set(), seconds=seconds)
    assert seconds or started.wait(30)
    assert seconds or document.cancel()
    with pytest.raises(end):
        document.result(30)
    translator.submit("the dog").result(30)
    assert translator.load.unanswered == 0


def test_a_callback_that_raises_ends_its_document_only(translator: Translator) -> None:
    def fail(_: Piece) -> None:
        raise ValueError("no")

    document = translator.submit_document("\n" + TEXT, on_piece=fail)
    other = translator.submit_document(TEXT)
    with pytest.raises(ValueError, match="no"):
        document.result(30)
    assert other.result(30) == translator.translate_document(TEXT)
    assert translator.load.unanswered == 0


def test_a_queue_that_is_full_refuses_a_document_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with Translator(toy.BUNDLE) as translator:
        queue = translator._bundle._owners.queue
        monkeypatch.setattr(queue, "_max_waiting", 1)
        hold, held = threading.Event(), threading.Event()

        def wait(_: Piece) -> None:
            held.set()
            hold.wait(30)

        first = translator.submit("the cat", on_piece=wait)
        assert held.wait(30)
        with pytest.raises(ResourceError, match="try again later"):
            translator.submit_document(TEXT)
        assert queue.load.unanswered == 1
        hold.set()
        first.result(30)
        assert translator.submit_document(TEXT).result(30).parts


def test_only_the_queue_itself_takes_more_while_it_drains() -> None:
    with Translator(toy.BUNDLE) as translator:
        queue = Queue(translator.engine)
        request = Request([5, toy.TOKENS.eos])
        queue.close()
        with pytest.raises(InputError, match="the queue was closed"):
            queue.submit(request, admitted=True)


def test_a_pending_document_may_be_awaited(translator: Translator) -> None:
    async def asked() -> Document:
        pending: Pending = translator.submit_document(TEXT)
        document: Document = await pending
        return document

    assert asyncio.run(asked()) == translator.translate_document(TEXT)
