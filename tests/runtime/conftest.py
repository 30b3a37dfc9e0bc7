"""The toy bundle, whose answers arithmetic tells; the fixture `bundle` of tests/conftest.py is a real one."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from toy import BUNDLE

if TYPE_CHECKING:
    from txport.runtime.translator import Translator


@pytest.fixture(scope="session")
def toy() -> "Translator":
    """A translator on the toy bundle."""
    from txport.runtime.translator import Translator  # which needs SentencePiece; tests on a GPU do not

    return Translator(BUNDLE, threads=1)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A copy of the toy bundle to damage."""
    return Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))
