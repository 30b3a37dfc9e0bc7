"""The study of norms: its steps run, and folding takes operators away."""

from click.testing import CliRunner
from txport.benchmarks.studies.norms import main


def test_each_kind_is_measured_before_and_after_folding() -> None:
    options = ["--preset", "tiny", "--vocabulary", "64", "--rounds", "2", "--target", "8"]
    result = CliRunner().invoke(main, options, catch_exceptions=False)
    assert result.exit_code == 0
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in result.output.splitlines()[2:]]
    assert [row[0] for row in rows] == [
        "layer",
        "rms",
        "power (not folded)",
        "power",
        "batch (not folded)",
        "batch",
    ]
    operators = {row[0]: int(row[-1]) for row in rows}
    # Mul and Add for each sublayer of two layers, and for the end.
    for kind in ("power", "batch"):
        assert operators[f"{kind} (not folded)"] - operators[kind] == 2 * (3 * 2 + 1)
    assert all(float(row[1]) > 0 for row in rows)
    assert rows[0][2:4] == ["1.000", "1.000 to 1.000"]
