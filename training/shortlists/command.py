"""Command tx-shortlist: add a list of target words for each source word to a bundle, and check BLEU."""

import logging
from pathlib import Path

import click
import numpy as np
from txport.runtime.arguments import check_reads_text
from txport.runtime.bundle.argument import BUNDLE_DIRECTORY
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.shortlist import Shortlist, put_shortlist
from txport.runtime.calls.requests import Call, ignore_warnings
from txport.runtime.console.flags import THREADS, refuse_unused
from txport.runtime.console.logs import show_log
from txport.runtime.errors import InputError
from txport.runtime.libraries import needs
from txport.runtime.options import Options
from txport.runtime.text.lines import check_file
from txport.runtime.text.tokenizer import TextTokenizer
from txport.runtime.translator import Translator
from txport.training.corpora import Pair, read_parallel
from txport.training.shortlists.links import Links, by_aligner, by_attention, by_table

_log = logging.getLogger("txport")
# Default maximum loss of BLEU.
MAX_LOSS = 0.1


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE_DIRECTORY)
@click.option("--source", type=click.Path(path_type=Path), help="Source sentences of a corpus, one per line.")
@click.option("--target", type=click.Path(path_type=Path), help="File of reference translations, one per line.")
@click.option(
    "--alignments", type=click.Path(path_type=Path),
    help="Word alignments in the format of fast_align (0-0 1-2), one line per pair. [default: from the "
"attention of the bundle, which requires tx-export --with-attention]",
)  # fmt: skip
@click.option(
    "--table", type=click.Path(path_type=Path),
    help="Lexical table instead of alignments, in Marian's format: target piece, source piece, "
"probability.",
)  # fmt: skip
@click.option(
    "--frequent", type=click.IntRange(0), default=1000, show_default=True,
    help="Number of frequent words that every shortlist contains: of the corpus, or the first of the "
"vocabulary without one.",
)  # fmt: skip
@click.option(
    "--candidates",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Maximum number of candidates per source word.",
)
@click.option("--check-source", type=click.Path(path_type=Path), help="File of held-out sentences, to compare BLEU.")
@click.option(
    "--check-reference", type=click.Path(path_type=Path), help="File of reference translations of --check-source."
)
@click.option("--max-loss", "--most-loss", "max_loss", type=click.FloatRange(0), default=MAX_LOSS, show_default=True,
              help="Maximum loss of BLEU. Nothing is written if the loss is larger.")  # fmt: skip
@click.option("--no-check", is_flag=True, help="Skip the comparison of BLEU.")
@THREADS
def main(
    bundle: Path, source: Path | None, target: Path | None, alignments: Path | None, table: Path | None,
    frequent: int, candidates: int, check_source: Path | None, check_reference: Path | None, max_loss: float,
    no_check: bool, threads: int,
) -> None:  # fmt: skip
    """Add a shortlist to BUNDLE, which makes a large vocabulary faster with the option shortlist.

    Target words of each sentence are restricted to the most frequent words and the translations of its source words in
    a corpus.
    """
    show_log("txport")
    refuse_unused(no_check, "with --no-check", "check_source", "check_reference", "max_loss")
    check_reads_text(bundle, Manifest.load(bundle).model.feature_size)
    if (check_source is None or check_reference is None) and not no_check:
        raise InputError("name sentences to compare BLEU on: --check-source and --check-reference, or give --no-check")
    if alignments is not None and table is not None:
        raise InputError("--alignments and --table are two ways to link words: choose one")
    for file in (alignments, table):
        if file is not None:
            check_file(file)
    pairs = _corpus(source, target, is_required=table is None)
    held_out = []
    if check_source is not None and check_reference is not None:
        held_out = read_parallel(check_source, check_reference)
    with needs("train"):
        from txport.training.shortlists.making import quality
    translator = Translator(bundle, "cpu", threads=threads)
    if not no_check and not translator.engine.restricts:
        raise InputError(
            f"BLEU is compared by the fused engine, and {translator.engine.name} runs {bundle}: give --no-check"
        )
    shortlist = _make(translator, bundle, pairs, alignments, table, frequent, candidates, threads)
    if not no_check:
        texts, references = zip(*held_out, strict=True)
        result = quality(shortlist, translator.engine, translator.tokenizer, translator.manifest, texts, references)
        click.echo(
            f"{result.sentences} sentences: BLEU {result.bleu:.2f} with the shortlist, {result.full_bleu:.2f} with all "
            f"words; {result.equal} translated the same; {result.words:.0f} words a sentence"
        )
        if result.full_bleu - result.bleu > max_loss:
            raise InputError(
                f"BLEU falls by {result.full_bleu - result.bleu:.2f}, more than {max_loss:g}, and nothing was written: "
                "raise --frequent or --candidates, or give a larger corpus"
            )
    written = put_shortlist(shortlist, bundle, translator.manifest)
    click.echo(f"{written}: {len(shortlist.always)} words in every list, {len(shortlist.candidates)} of source words")


def _corpus(source: Path | None, target: Path | None, *, is_required: bool) -> list[Pair]:
    if source is not None and target is not None:
        return read_parallel(source, target)
    if is_required or source is not None or target is not None:
        raise InputError("name a corpus by --source and --target" + (", or a lexical table by --table" * is_required))
    return []


def _make(
    translator: Translator, bundle: Path, pairs: list[Pair], alignments: Path | None, table: Path | None,
    frequent: int, candidates: int, threads: int,
) -> Shortlist:  # fmt: skip
    from txport.training.shortlists import making

    manifest = translator.manifest
    tokenizer = translator.tokenizer
    if not isinstance(tokenizer, TextTokenizer):
        raise InputError(f"{bundle} has no tokenizer, so that a corpus has no ids: give a bundle with one")
    model = manifest.model
    source_pieces = making.pieces_of(tokenizer.source_pieces(range(model.source_vocabulary)))
    target_pieces = making.pieces_of(tokenizer.target_pieces(range(model.target_vocabulary)))
    links = Links(model.target_vocabulary)
    same = Links(model.target_vocabulary)
    shared_pieces = sorted(source_pieces.keys() & target_pieces.keys())
    same.add([source_pieces[piece] for piece in shared_pieces], [target_pieces[piece] for piece in shared_pieces])
    if table is not None:
        by_table(links, table, source_pieces, target_pieces)
    elif alignments is not None:
        by_aligner(links, pairs, alignments, tokenizer)
    else:
        call = Call.of(tokenizer, translator.engine.limits, Options(), warn=ignore_warnings)
        by_attention(links, pairs, call, bundle, manifest, translator.engine, threads)
    counts = np.zeros(model.target_vocabulary, np.int64)
    for _, text in pairs:
        np.add.at(counts, tokenizer.encode_prefix(text), 1)
    if pairs:
        always = making.frequent(counts, frequent)
    else:
        always = np.arange(min(frequent, model.target_vocabulary))
    return making.make(links, always, manifest, candidates, same)
