"""Masks of models whose attention scores reach millions: in every graph padding and empty cache slots never win."""

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import randomised
from foreign_models import identical, translators
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.graphs.float16 import is_masked, to_float16
from txport.exporter.graphs.write import write_all
from txport.exporter.reference import answers
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.models.config import preset
from txport.models.transformer import Transformer
from txport.runtime.bundle.interface import MASKED, MASKED_HALF
from txport.runtime.engines.native import missing
from txport.runtime.translator import Translator

EOS = 3


def make_model(seed: int = 0, **options: Any) -> Transformer:
    """A small model with random weights."""
    sizes = {"d_model": 32, "heads": 4, "ffn": 48, "source_vocabulary": 40, "target_vocabulary": 40}
    return randomised(Transformer(preset("tiny", **{**sizes, "max_positions": 24, **options})), seed)


@pytest.fixture(scope="module", params=["sinusoidal", "relative"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model with scores of many thousands in each attention, and its bundle."""
    fields = {} if request.param == "sinusoidal" else {"positions": "relative", "norm": "pre", "norm_kind": "rms"}
    model = make_model(seed=1, **fields)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("query.weight"):
                parameter *= 3e4
    directory = tmp_path_factory.mktemp("masks")
    save_checkpoint(directory / "checkpoint", model, None, [], {})
    export_bundle(
        directory / "checkpoint", directory / "bundle", ExportOptions(verify=False, attention=True, beams=True)
    )
    return load_checkpoint(directory / "checkpoint"), directory / "bundle"


def test_ids_are_those_of_pytorch(bundle: Any) -> None:
    """Greedy ids in batches of sources of many lengths, by each lowering and the fused engine; beams alike by all."""
    checkpoint, directory = bundle
    draw = random.Random(1)
    sources = [[*draw.choices(range(4, 40), k=draw.randrange(1, 20)), EOS] for _ in range(100)]
    expected: dict[int, list[int]] = {}
    for answer in answers(checkpoint.model, sources, 20):
        expected.update(zip(answer.batch.indices, answer.batch.targets, strict=True))
    beams = set()
    for name, translator in translators(directory):
        found = [made.ids for made in translator.translate_ids(sources, max_length=20)]
        assert sum(ids == expected[i] for i, ids in enumerate(found)) >= 98, name  # scores may tie by rounding
        beams.add(str([made.ids for made in translator.translate_ids(sources[:20], max_length=12, beam=3)]))
    assert len(beams) <= 2


def test_float16_has_its_own_number() -> None:
    """No infinity among the constants; an island reads the mask of float32 again."""
    models = write_all(make_model(), ("ort", "scatter", "tensorscatter"), 16, (), half=True)
    for name, model in models.items():
        attention = {node.name or "" for node in model.graph if node.op_type in ("Softmax", "Attention", "Add")}
        to_float16(model, attention)
        constants = [v.const_value.numpy() for v in model.graph.initializers.values() if v.const_value is not None]
        floats = [array for array in constants if array.dtype.kind == "f"]
        assert all(np.isfinite(array).all() for array in floats), name
        if name == "encoder":  # its mask is written in float16, and the sums with scores are islands
            assert {float(a) for a in floats if a.size == 1 and a < -1000} >= {MASKED_HALF, float(np.float32(MASKED))}
    assert float(np.finfo(np.float16).min) == MASKED_HALF
    assert is_masked(np.array([MASKED, MASKED_HALF], np.float32)).tolist() == [True, False]


def test_runtimes_pad_with_the_number_of_their_type() -> None:
    from txport.runtime.bundle.interface import masked

    assert masked(4) == MASKED and np.float16(masked(2)) == np.float16(MASKED_HALF)


def test_given_translations_are_scored_as_by_pytorch(bundle: Any) -> None:
    """In a padded batch, against PyTorch on each pair alone."""
    checkpoint, directory = bundle
    draw = random.Random(2)
    sources = [[*draw.choices(range(4, 40), k=draw.randrange(1, 18)), EOS] for _ in range(40)]
    targets = [draw.choices(range(4, 40), k=draw.randrange(1, 18)) for _ in sources]
    with Translator(directory, "cpu", "ort", lowering="ort") as translator:
        scores = translator.score_ids(sources, targets)
    same = 0
    for source, score in zip(sources, scores, strict=True):
        before = torch.tensor([[checkpoint.config.bos_id, *score.ids[:-1]]])
        with torch.inference_mode():
            logits = checkpoint.model(torch.tensor([source]), torch.tensor([len(source)]), before)
        expected = logits.log_softmax(-1)[0, range(len(score.ids)), score.ids]
        same += np.allclose(score.scores, expected, atol=1e-2)
    assert same >= 36  # rounding decides where two attention scores are equal


def test_attention_is_that_of_sentences_alone(bundle: Any) -> None:
    draw = random.Random(4)
    sources = [[*draw.choices(range(4, 40), k=draw.randrange(1, 20)), EOS] for _ in range(30)]
    with Translator(bundle[1], "cpu", "ort", lowering="ort") as translator:
        batch = translator.translate_ids(sources, max_length=12, attention=True)
        alone = [translator.translate_ids([source], max_length=12, attention=True)[0] for source in sources]
    assert identical([each.ids for each in batch], [each.ids for each in alone]) >= 29
    for one, other in zip(batch, alone, strict=True):
        assert np.allclose(np.sum(one.attention, axis=1), 1, atol=1e-4)
        assert one.ids != other.ids or np.abs(one.attention - other.attention).mean() < 1e-2


def test_int8_answers_do_not_depend_on_padding(bundle: Any, tmp_path: Path) -> None:
    """A sentence alone has no padding; int8 rounds both alike."""
    options = ExportOptions(verify=False, int8=True, lowerings=("ort",), beams=True)
    export_bundle(bundle[0].directory, tmp_path / "bundle", options)
    draw = random.Random(3)
    sources = [[*draw.choices(range(4, 40), k=draw.randrange(1, 20)), EOS] for _ in range(40)]
    engines = ["ort", *([] if missing() else ["fused"])]
    for engine, beam in itertools.product(engines, (None, 3)):
        with Translator(tmp_path / "bundle", "cpu", engine) as translator:
            batch = [made.ids for made in translator.translate_ids(sources, max_length=12, beam=beam)]
            alone = [translator.translate_ids([source], max_length=12, beam=beam)[0].ids for source in sources]
        assert identical(batch, alone) >= 39, (engine, beam)  # a sum's order may change a tie
