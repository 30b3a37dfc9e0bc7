"""Verification report as a table."""

from rich.console import Console
from rich.markup import escape
from txport.exporter.tables import print_table
from txport.exporter.verification.report import VerificationReport
from txport.runtime.console.words import plural

_MAX_LISTED = 5
_HEADS = ("lowering", "identical", "loop", "alone", "padded", "max error", "mean error", "encoder")


def print_report(report: VerificationReport, console: Console) -> None:
    """Print a table with a row for each lowering, then divergences and failures."""
    console.print(
        f"Verification against PyTorch float32 on {plural(report.sentences, 'sentence')} ({escape(report.origin)})"
    )
    rows = [
        [
            each.lowering,
            f"{each.token_identical}/{each.sentences}",
            f"{each.loop_identical}/{each.loop_sentences}",
            f"{each.batch_identical}/{each.single_sentences}",
            f"{each.padded_identical}/{each.single_sentences}",
            f"{each.max_logit_error:.1e}",
            f"{each.mean_logit_error:.1e}",
            f"{each.max_encoder_error:.1e}" if each.max_encoder_error else "-",
        ]
        for each in report.lowerings
    ]
    print_table(_HEADS, rows, console, text_columns=_HEADS[:1])
    console.print(
        "Sentences with identical ids: in batches, by the runtime's loop, alone, with padding. "
        "Errors: of logits (maximum, mean), of encoder outputs (maximum, - if not compared). "
        f"Arithmetic: {report.arithmetic}. On average logits differ by at most "
        f"{max(report.rounding.ratio(each.errors) for each in report.lowerings):.2f} times the rounding error of "
        f"PyTorch in this arithmetic; {report.rounding.allowance:.3g} are allowed."
    )
    for each in report.lowerings:
        if each.quality is not None and (each.quality.loss is not None or each.divergences):
            console.print(f"{each.lowering}: {each.quality.summary}")
        for divergence in each.divergences[:_MAX_LISTED]:
            console.print(
                f"{each.lowering}: sentence {divergence.sentence} ({divergence.run}) diverges at step "
                f"{divergence.step}: id {divergence.chosen} instead of {divergence.expected}, which PyTorch prefers "
                f"by a logit margin of {divergence.margin:.2g}"
            )
        if each.examined and not each.failures:
            console.print(f"{each.lowering}: random rounding explains {plural(each.examined, 'larger error')}")
        for failure in each.failures:
            console.print(f"[red]{each.lowering}: {escape(failure)}[/red]")
    if (weights := report.weights) is not None:
        if not weights.failures:
            console.print(f"Weights: all {weights.numbers:,}, of {weights.tensors} tensors, are the checkpoint's")
        for failure in weights.failures:
            console.print(f"[red]{escape(failure)}[/red]")
    if (attention := report.attention) is not None:
        console.print(
            f"Attention and scores of given translations, on {plural(attention.sentences, 'sentence')}: largest errors "
            f"{attention.max_weight_error:.1e} of weights, {attention.max_score_error:.1e} of scores, "
            f"{attention.max_memory_error:.1e} of the encoder's output; on average scores differ by "
            f"{attention.mean_own_score_error:.1e} from those of the bundle's own steps"
        )
        for failure in attention.failures:
            console.print(f"[red]{escape(failure)}[/red]")
    if (beams := report.beams) is not None:
        console.print(
            f"Beam search by its own step, on {plural(beams.sentences, 'sentence')}: {beams.identical} have the best "
            f"answer of plain steps; scores differ by {beams.max_score_error:.1e} at most"
        )
        for failure in beams.failures:
            console.print(f"[red]{escape(failure)}[/red]")
    if (original := report.original) is not None:
        for line in original.lines:
            console.print(escape(f"{line[0].upper()}{line[1:]}"))
        for failure in original.failures:
            console.print(f"[red]{escape(failure)}[/red]")
    for note in report.notes:
        console.print(f"[yellow]{escape(note)}[/yellow]")
    console.print("[green]passed[/green]" if report.passed else "[red]failed[/red]")
