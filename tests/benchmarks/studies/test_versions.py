"""The study of two versions: each is asked in turn, and equal ids are insisted on."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from toy import BUNDLE
from txport.benchmarks.studies.versions import CHILD, main
from txport.runtime.errors import CheckFailed, EngineError

SMALL = [str(BUNDLE), "--batch", "2", "--source", "5", "--target", "6", "--rounds", "2"]


def test_a_version_beside_itself() -> None:
    result = CliRunner().invoke(main, [sys.executable, *SMALL], catch_exceptions=False)
    assert result.output.startswith("batch 2: identical ids") and result.exit_code == 0


def test_other_ids_and_a_version_that_fails(tmp_path: Path) -> None:
    other = tmp_path / "python"
    (tmp_path / "child").write_text(CHILD.replace("each.ids for each", "each.ids[1:] for each"))
    other.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {tmp_path}/child "$@"\n')
    other.chmod(0o755)
    with pytest.raises(CheckFailed, match="batch 2: the ids of the two versions differ"):
        CliRunner().invoke(main, [str(other), *SMALL], catch_exceptions=False)
    other.write_text("#!/bin/sh\n")
    with pytest.raises(EngineError, match="python failed"):
        CliRunner().invoke(main, [str(other), *SMALL], catch_exceptions=False)
