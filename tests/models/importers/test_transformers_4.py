"""Files of transformers 4.57, recorded by tests/data/make_transformers_models.py; other tests have those of 5."""

import json

import pytest
from foreign_models import import_here
from recorded_models import FOLDER, assert_as_recorded, recorded

OURS = FOLDER / "transformers_4"
MODELS = ["t5", "t5_bin", "t5_1_1", "mt5", "mt5_tied", "umt5", "pegasus", "bart", "mbart", "m2m100"]


@pytest.mark.parametrize("name", MODELS)
def test_numbers_and_ids_are_as_recorded(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Memory and logits in float64, but that T5's norms are of float32 there always, and all greedy ids."""
    assert json.loads((OURS / name / "config.json").read_text())["transformers_version"].startswith("4.57")
    checkpoint = import_here(OURS / name, tmp_path_factory.mktemp(name) / "checkpoint", tokenizer=False)
    tied = name in ("t5", "t5_bin", "mt5_tied", "pegasus", "bart", "mbart", "m2m100")
    assert checkpoint.config.tie_projection == tied
    assert_as_recorded(checkpoint, recorded(f"transformers_4/{name}/recorded"), within=1e-4 if "t5" in name else 1e-5)


def test_the_folder_has_no_others() -> None:
    assert sorted(path.name for path in OURS.iterdir()) == sorted(MODELS)
