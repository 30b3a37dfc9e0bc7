"""Options of tx-export and tx-verify for the verification: its sentences, references and time limit."""

from pathlib import Path

import click
from txport.runtime.console.flags import flags

SENTENCES = 200  # number of compared sentences; they have several thousand tokens
SINGLES = 10  # number of these that also run alone, which takes as long as hundreds in batches
MINUTES = 60.0  # longer runs mean an error, or a machine that is too slow for the sentences

# Parameters of a command: `sentences`, `minutes`, `singles`, `text`, `references`, `ids`, `reference_ids`, `features`.
verification_options = flags(
    click.option(
        "--sentences",
        type=click.IntRange(1),
        default=SENTENCES,
        show_default=True,
        help="Number of sentences to verify.",
    ),
    click.option(
        "--verify-minutes",
        "minutes",
        type=click.FloatRange(0, min_open=True),
        default=MINUTES,
        show_default=True,
        help="Time limit of the verification. It fails if the limit is exceeded.",
    ),
    click.option(
        "--singles",
        type=click.IntRange(1),
        default=SINGLES,
        show_default=True,
        help="Number of sentences that are also decoded one at a time.",
    ),
    click.option(
        "--text",
        type=click.Path(path_type=Path),
        help="File of sentences to verify. [default: the checkpoint's sentences]",
    ),
    click.option(
        "--references",
        type=click.Path(path_type=Path),
        help="File of reference translations of --text, to compare BLEU.",
    ),
    click.option(
        "--ids",
        type=click.Path(path_type=Path),
        help="File of sentences to verify as source ids, one sentence per line, for a model without a tokenizer.",
    ),
    click.option(
        "--reference-ids",
        type=click.Path(path_type=Path),
        help="File of reference translations of --ids as target ids, to compare BLEU.",
    ),
    click.option(
        "--features",
        type=click.Path(path_type=Path),
        help="File of feature vectors to verify (.npz), for a model that reads these; it may contain their texts.",
    ),
)
