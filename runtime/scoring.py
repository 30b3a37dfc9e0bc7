"""Scores, embeddings, attention and alignments of given sentences and translations."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from txport.runtime.arguments import as_list, check_pairs, check_sentence, check_text
from txport.runtime.bundle.archive import Files
from txport.runtime.bundle.manifest import Manifest, graph_of
from txport.runtime.bundle.schema import OptionalRole
from txport.runtime.calls.requests import Call, Sentence
from txport.runtime.engine import Engine, Float32, Source
from txport.runtime.errors import InputError
from txport.runtime.libraries import needs
from txport.runtime.options import Options
from txport.runtime.results import AttentionMaps, Score, Translation
from txport.runtime.search.decoding import decode_all
from txport.runtime.text.alignment import (
    Alignment,
    align_tokens,
    align_words,
    average_heads,
    strip_span,
    times_of,
    words_of,
)

if TYPE_CHECKING:
    from txport.runtime.engines.teacher_forcing import TeacherForcing
    from txport.runtime.text.tokenizer import Tokenizer

# A given translation: text, which is tokenized and gets eos, or ids in the form of `Translation.ids`.
GivenTarget = str | Sequence[int]


class Scorer:
    """Results for whole sentences by the graphs of tx-export --with-attention. Threads may share one.

    Args:
        bundle: the bundle.
        manifest: its manifest, already checked.
        tokenizer: its tokenizer.
        engine: the engine that runs it.
        device: "cpu" or "cuda", as for `txport.runtime.engines.teacher_forcing.TeacherForcing`.
        threads: number of threads of each operator on the CPU; 0 for the number of cores.
    """

    def __init__(
        self, bundle: Files, manifest: Manifest, tokenizer: "Tokenizer", engine: Engine, device: str, threads: int
    ) -> None:
        self._bundle = bundle
        self._device = device
        self._threads = threads
        self._manifest = manifest
        self._tokenizer = tokenizer
        self.engine = engine
        self._forcing: TeacherForcing | None = None
        self._lock = threading.Lock()

    def check(self, options: Options) -> None:
        """Refuse options for which the bundle has no graph, before any translation starts.

        Raises:
            BundleError: the bundle has no graph for an option.
            InputError: unknown tokens cannot be replaced, because the source is vectors, or the tokenizer has no
                unknown token.
        """
        if options.replace_unknowns and self._manifest.model.feature_size is not None:
            raise InputError("replace_unknowns copies words of a text, and this bundle reads vectors: leave it out")
        kind = self._manifest.tokenizer.kind
        if options.replace_unknowns and kind != "sentencepiece":
            raise InputError(
                f"replace_unknowns needs a SentencePiece model or a word list, but the tokenizer of this bundle is of "
                f"the kind {kind!r}: leave out the option replace_unknowns"
            )
        if options.alignments or options.attention or options.replace_unknowns:
            self._teacher("decoder")

    def source(self, ids: Iterable[int], what: str) -> list[int]:
        """Check complete source ids and return them as a list; `what` is their name in messages.

        Raises:
            InputError: there are no ids or too many, or an id is outside the vocabulary.
        """
        model = self._manifest.model
        maximum = self._manifest.limits.source
        return check_sentence(ids, model.source_vocabulary, maximum, self._manifest.tokens.pad, what)

    def score(self, call: Call, sources: Iterable[str], targets: Iterable[GivenTarget]) -> list[Score]:
        """Score given translations, to rank them or to filter a corpus.

        Args:
            call: its languages and `strict` are used; other options have no effect.
            sources: sentences.
            targets: one translation of each sentence.

        Raises:
            InputError: the numbers of sources and targets differ, a text is empty, a target is longer than the bundle
                supports (a source only with `strict`), or an id is outside the vocabulary.
            BundleError: the bundle was exported without the graph for scores.
        """
        texts = as_list(sources)
        answers = as_list(targets)
        check_pairs(texts, answers)
        sentences = [call.required_sentence(text, f"sentence {number}") for number, text in enumerate(texts, 1)]
        pairs = enumerate(zip(sentences, answers, strict=True), 1)
        ids = [self._answer(sentence, answer, f"translation {number}") for number, (sentence, answer) in pairs]
        return self._scores([sentence.request.source_ids for sentence in sentences], ids)

    def score_ids(self, sources: Iterable[Iterable[int]], targets: Iterable[Iterable[int]]) -> list[Score]:
        """Score complete source ids and target ids, in the form that `Translator.translate_ids` reads and returns."""
        sentences = as_list(sources)
        answers = as_list(targets)
        check_pairs(sentences, answers)
        return self._scores(
            [self.source(source, f"sentence {number}") for number, source in enumerate(sentences, 1)],
            [self._target(answer, f"translation {number}") for number, answer in enumerate(answers, 1)],
        )

    def embed(self, call: Call, sentences: Iterable[str], pooled: bool) -> Float32 | list[Float32]:
        """Return the encoder's output for sentences.

        Args:
            call: its languages and `strict` are used; other options have no effect.
            sentences: the sentences, not empty.
            pooled: return the mean over all ids of a sentence, eos and language tokens included.

        Returns:
            float32 `[sentences, d_model]`; if not `pooled`, for each sentence `[source ids, d_model]`.

        Raises:
            InputError: a sentence is empty, or too long and `strict` is set.
            BundleError: the bundle was exported without the graph for embeddings.
        """
        texts = enumerate(as_list(sentences), 1)
        sources = [call.required_sentence(text, f"sentence {number}").request.source_ids for number, text in texts]
        memories = dict(self._teacher("encoder_attention").memories(sources))
        outputs = [memories[index] for index in range(len(sources))]
        if not pooled:
            return outputs
        empty = np.empty((0, self._manifest.model.d_model), np.float32)
        if outputs:
            return np.stack([memory.mean(axis=0) for memory in outputs])
        return empty

    def attention_maps(self, call: Call, sentence: str | Sequence[int], target: GivenTarget | None) -> AttentionMaps:
        """Return the attention of all layers and heads for one sentence and its translation.

        Args:
            call: options of the translation by the model.
            sentence: text or complete source ids.
            target: its translation, text or ids; None to let the model translate the sentence.

        Raises:
            InputError: as for `score`.
            BundleError: the bundle was exported without the graphs for attention.
        """
        what = "the sentence"
        if isinstance(sentence, str):
            encoded = call.required_sentence(sentence, what)
        else:
            encoded = call.of_ids(self.source(sentence, what))
        source = list(encoded.request.source_ids)
        if target is None:
            (result,) = decode_all(self.engine, [encoded.request])
            ids = result.ids
        else:
            ids = self._answer(encoded, target, "the translation")
        ((_, reading),) = self._teacher("decoder", "encoder_attention").read(
            [source], [ids], cross=True, self_attention=True
        )
        ((_, encoder),) = self._teacher("encoder_attention").attentions([source])
        assert reading.cross is not None and reading.self_attention is not None
        return AttentionMaps(
            source_ids=source,
            target_ids=ids,
            source_labels=self._tokenizer.source_pieces(source),
            target_labels=self._tokenizer.target_pieces(ids),
            encoder=encoder,
            decoder=reading.self_attention,
            cross=reading.cross,
            scores=reading.log_probabilities.tolist(),
        )

    def align(
        self, options: Options, sentences: Sequence[Sentence], translations: Sequence[Translation]
    ) -> list[Translation]:
        """Return the translations with the alignments, attention and replaced tokens that the options request."""
        aligned = list(translations)
        indices = [i for i, each in enumerate(translations) if self._needs_attention(options, each)]
        sources = [sentences[i].request.source_ids for i in indices]
        readings = self._teacher("decoder").read(sources, [translations[i].ids for i in indices], cross=True)
        for number, reading in readings:
            assert reading.cross is not None
            index = indices[number]
            weights = average_heads(reading.cross, self._manifest.alignment_heads)
            aligned[index] = self._aligned(options, sentences[index], translations[index], weights)
        return aligned

    def _needs_attention(self, options: Options, translation: Translation) -> bool:
        if options.alignments or options.attention:
            return True
        return self._manifest.tokens.unk in translation.ids

    def _aligned(self, options: Options, sentence: Sentence, translation: Translation, weights: Float32) -> Translation:
        tokens = self._manifest.tokens
        special = (tokens.pad, tokens.bos, tokens.eos)
        aligned = {i for i, token in enumerate(translation.ids) if i >= sentence.forced and token not in special}
        source = sentence.request.source_ids
        if isinstance(source, np.ndarray):
            source_positions = list(range(len(source)))  # vectors contain no special tokens
        else:
            source_positions = [i for i, token in enumerate(source) if token not in special]
        if sentence.text:
            source_positions = list(range(sentence.first, sentence.last))
        pairs = align_tokens(weights, source_positions, aligned)
        copies: Mapping[int, str] = {}
        if options.replace_unknowns:
            copies = self._copies(options, sentence, translation.ids, pairs)
            text = self._tokenizer.decode_copied(sentence.visible(translation.ids), copies)
            translation = replace(translation, text=text)
        if options.alignments:
            translation = replace(translation, alignment=self._alignment(sentence, translation, pairs, copies))
        if options.attention:
            translation = replace(translation, attention=weights)
        return translation

    def _copies(
        self, options: Options, sentence: Sentence, ids: Sequence[int], pairs: Sequence[int | None]
    ) -> dict[int, str]:
        """Return the source piece for each unknown id of a translation, by position."""
        unk = self._manifest.tokens.unk
        source = sentence.request.source_ids
        # The vocabulary has no piece for an unknown source id; its piece is in the text.
        pieces = [None if token == unk else self._tokenizer.source_piece(token) for token in source]
        if sentence.text:
            languages = options.source_language, options.target_language
            split = self._tokenizer.split_source(sentence.text, *languages)
            pieces[sentence.first : sentence.last] = split[: sentence.last - sentence.first]
        copies = {}
        for position, (token, pair) in enumerate(zip(ids, pairs, strict=True)):
            if token == unk and pair is not None and (piece := pieces[pair]) is not None:
                copies[position] = piece
        return copies

    def _alignment(
        self,
        sentence: Sentence,
        translation: Translation,
        pairs: list[int | None],
        copies: Mapping[int, str],
    ) -> Alignment:
        spans = [(0, 0)] * len(sentence.request.source_ids)
        if sentence.text:
            spans[sentence.first : sentence.last] = sentence.spans
        token_spans = self._tokenizer.target_spans(translation.ids, copies)
        target_spans = [strip_span(span, translation.text) for span in token_spans]
        words = words_of(sentence.text), words_of(translation.text)
        times = times_of(pairs, self._manifest.frame_rate)
        return Alignment(pairs, spans, target_spans, *words, align_words(pairs, spans, target_spans, *words), times)

    def _answer(self, sentence: Sentence, answer: GivenTarget, what: str) -> list[int]:
        """Return the ids of a given translation. It must not be longer than the maximum of the bundle."""
        if isinstance(answer, str):
            check_text(answer, what)
            ids = self._tokenizer.encode_prefix(answer)
            if not ids:
                raise InputError(f"{what} is empty: there is nothing to score")
            answer = [*sentence.request.prefix[: sentence.forced], *ids, self._manifest.tokens.eos]
        return self._target(answer, what)

    def _target(self, ids: Iterable[int], what: str) -> list[int]:
        model = self._manifest.model
        maximum = self._manifest.limits.target
        return check_sentence(ids, model.target_vocabulary, maximum, self._manifest.tokens.pad, what)

    def _scores(self, sources: Sequence[Source], targets: Sequence[list[int]]) -> list[Score]:
        results = self._teacher("decoder").read(sources, targets)
        readings = {index: reading.log_probabilities for index, reading in results}
        return [Score(list(target), readings[index].tolist()) for index, target in enumerate(targets)]

    def _teacher(self, *roles: OptionalRole) -> "TeacherForcing":
        """Return the optional graphs on ONNX Runtime. Missing graphs are reported before a missing ONNX Runtime."""
        for role in roles:
            graph_of(self._bundle, self._manifest, role)
        with needs("ort"):
            from txport.runtime.engines.teacher_forcing import TeacherForcing

        with self._lock:
            if self._forcing is None:
                self._forcing = TeacherForcing(self._bundle, self._manifest, self.engine, self._device, self._threads)
            return self._forcing
