"""tx-bench scale: the fit against numpy's, and a small study."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'txport[bench]'")
from txport.benchmarks.scale import scale
from txport.benchmarks.scale.scale import fit
from txport.benchmarks.scale.schema import Point
from txport.benchmarks.scale_command import main
from txport.exporter.export import ExportOptions
from txport.models.checkpoint import load_checkpoint
from txport.runtime.errors import InputError


def points(values: list[int], figures: list[float]) -> list[Point]:
    return [Point(value, figure, figure, figure, None) for value, figure in zip(values, figures, strict=True)]


def test_an_exact_power_has_its_exponent_and_no_error() -> None:
    found = fit(points([2, 4, 8, 64], [3.0 * value**1.5 for value in (2, 4, 8, 64)]))
    assert found is not None
    assert found.exponent == pytest.approx(1.5)
    assert found.error == pytest.approx(0, abs=1e-12)


def test_the_error_is_that_of_least_squares() -> None:
    values, figures = [1, 2, 4, 8, 16], [1.0, 2.2, 3.7, 8.5, 15.0]
    found = fit(points(values, figures))
    assert found is not None
    coefficients, covariance = np.polyfit(np.log(values), np.log(figures), 1, cov="unscaled")
    residuals = np.log(figures) - np.polyval(coefficients, np.log(values))
    assert found.exponent == pytest.approx(coefficients[0])
    assert found.error == pytest.approx(np.sqrt(covariance[0, 0] * residuals @ residuals / 3))


def test_two_points_have_no_fit() -> None:
    assert fit(points([1, 2], [1.0, 2.0])) is None


@pytest.fixture
def exported(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExportOptions]]:
    """The bundle of all tests stands for every random one; the options of the exports. SIGTERM is left as it was."""
    exports = []

    def copy(checkpoint: Path, target: Path, options: ExportOptions) -> None:
        assert load_checkpoint(checkpoint).config.max_positions == 32
        exports.append(options)
        shutil.copytree(bundle, target)

    monkeypatch.setattr(scale, "export_bundle", copy)
    handler = signal.getsignal(signal.SIGTERM)
    yield exports
    signal.signal(signal.SIGTERM, handler)


def test_a_small_study(
    bundle: Path, tmp_path: Path, exported: list[ExportOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    axes = ("--axis", "target", "--axis", "sentences", "--bundle", str(bundle))
    values = ("--values", "target=2,4,8", "--values", "sentences=40")
    options = ("-o", str(tmp_path / "out"), "--preset", "tiny", "--threads", "1")
    main.main([*options, *axes, *values], standalone_mode=False)
    assert [(each.lowerings, each.max_batch) for each in exported] == [(("ort",), 1)]
    report = json.loads((tmp_path / "out/scale.json").read_text())
    assert report["complete"]
    target, sentences = report["axes"]
    times = [point["figure"] for point in target["points"]]
    assert 0 < times[0] < times[2], "four times as many tokens take longer"
    assert target["fit"] is not None and sentences["fit"] is None
    assert sentences["unit"] == "sentences a second"
    assert all(point["peak_resident_bytes"] > 2e7 for axis in report["axes"] for point in axis["points"])
    shown = capsys.readouterr().out
    for words in ("target: preset tiny", "exponent", "too few points"):
        assert words in shown
    assert "## sentences" in (tmp_path / "out/scale.md").read_text()
    assert (tmp_path / "out/scale.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--axis", "sentences"), ["--bundle"]),
        (("--values", "target=0"), ["target=0", "cannot be used"]),
        (("--values", "height=3"), ["height=3", "cannot be used"]),
    ],
)
def test_bad_use_is_refused(tmp_path: Path, options: tuple[str, ...], words: list[str]) -> None:
    with pytest.raises(InputError) as refusal:
        main.main(["-o", str(tmp_path / "out"), *options], standalone_mode=False)
    assert all(word in str(refusal.value) for word in words)
    assert not (tmp_path / "out").exists()
