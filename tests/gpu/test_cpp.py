"""The C++ tools on a GPU: golden cases by txport-translate."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from gpu_builds import engines_of
from gpu_engines import COMPUTES, REHEARSAL, WHERE
from txport.runtime.golden import load_golden

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp"),
]


@pytest.mark.parametrize("engine", ["ort", "trt"])
def test_golden_cases(plain: Path, engine: str) -> None:
    if engine == "trt" and not engines_of(plain):
        pytest.skip("needs TensorRT engines: test_tensorrt.py builds them")
    cases = [case for case in load_golden(plain).cases if case.source]
    if not cases:
        pytest.skip("its golden cases have no text")
    tool = Path(os.environ["TXPORT_CPP_BUILD"], "txport-translate")
    command = [tool, plain, "--device", WHERE, *([] if REHEARSAL else ["--engine", engine]), "--json"]
    text = "".join(f"{case.source}\n" for case in cases)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line)["ids"] for line in done.stdout.splitlines()]
    expected = [list(case.target_ids) for case in cases]
    assert not COMPUTES or [ids[: len(right)] for ids, right in zip(found, expected, strict=True)] == expected
