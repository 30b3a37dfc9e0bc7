"""States of runs that somebody else made: what Lightning would remove must be theirs."""

from pathlib import Path
from typing import Any

import pytest
from txport.runtime.errors import InputError

pytest.importorskip("lightning", reason="needs Lightning: pip install 'txport[train]'")


def state(folder: Path, **changes: Any) -> dict[str, Any]:
    best = str(folder / "best.ckpt")
    paths = {"best_model_path": best, "kth_best_model_path": best, "best_k_models": {best: 1.0}, "last_model_path": ""}
    return {"callbacks": {"ModelCheckpoint{}": {"dirpath": str(folder), **paths, **changes}, "Other": {"count": 1}}}


def check(value: dict[str, Any]) -> None:
    from txport.training.run.saving import StatePaths

    nothing: Any = None
    StatePaths().on_load_checkpoint(nothing, nothing, value)


def test_paths_inside_pass(tmp_path: Path) -> None:
    check(state(tmp_path))
    check(state(tmp_path, best_model_path="", kth_best_model_path="", best_k_models={}))
    check({"callbacks": {}})
    check({})


@pytest.mark.parametrize("field", ["best_model_path", "kth_best_model_path", "last_model_path", "best_k_models"])
@pytest.mark.parametrize("place", ["../../notes.txt", "/etc/passwd"])
def test_paths_outside_are_refused(field: str, place: str, tmp_path: Path) -> None:
    path = str(tmp_path / place)
    with pytest.raises(InputError, match="outside of .*: start again with --force"):
        check(state(tmp_path, **{field: {path: 1.0} if field == "best_k_models" else path}))
