"""The toy bundle, whose answers arithmetic tells; the fixture `bundle` of tests/conftest.py is a real one."""

import shutil
from pathlib import Path

import pytest
from toy import BUNDLE
from txport.runtime.translator import Translator


@pytest.fixture(scope="session")
def toy() -> Translator:
    """A translator on the toy bundle."""
    return Translator(BUNDLE, threads=1)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A copy of the toy bundle to damage."""
    return Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))
