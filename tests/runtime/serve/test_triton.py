"""tx-triton: the model repository, its model by itself, and in a real tritonserver where there is one.

The real one is that of nvidia-pytriton, in an environment of Python 3.12 or 3.13 that also has txport and tritonclient,
which `TXPORT_TRITON_PYTHON` names: the path of its python. (With the stub for 3.11 texts were read wrongly.)
"""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import commands
import pytest
import triton_utils
from toy import BUNDLE
from txport.runtime import entry

if TYPE_CHECKING:
    from txport.runtime.translator import Translator

TEXTS = ["the cat", "a dog sees two trees", ""]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    done = commands.run(entry, "tx-triton", BUNDLE, "-o", tmp_path / "models" / "toy", "--threads", "1")
    assert done.returncode == 0, done.stderr
    return tmp_path / "models"


@pytest.fixture
def model(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The model that was written, opened as Triton does it."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton_utils)
    spec = importlib.util.spec_from_file_location("triton_model", repository / "toy" / "1" / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    opened = module.TritonPythonModel()
    values = {"bundle": str(BUNDLE), "device": "cpu", "threads": "1"}
    parameters = {name: {"string_value": value} for name, value in values.items()}
    opened.initialize({"model_config": json.dumps({"parameters": parameters})})
    yield opened
    opened.finalize()


def test_the_repository_says_where_the_bundle_is(repository: Path) -> None:
    text = (repository / "toy" / "config.pbtxt").read_text()
    assert f'"bundle" value: {{ string_value: "{BUNDLE.resolve()}" }}' in text and 'backend: "python"' in text
    assert len((repository / "toy" / "1" / "model.py").read_text().splitlines()) < 200
    again = commands.run(entry, "tx-triton", BUNDLE, "-o", repository / "toy")
    assert again.returncode == 2 and "exists" in again.stderr
    named = commands.run(entry, "tx-triton", BUNDLE, "-o", repository / "a name")
    assert named.returncode == 2 and "not a name of a Triton model" in named.stderr


def test_requests_are_answered_together_and_each_by_itself(model: Any, toy: "Translator") -> None:
    right = toy.translate(TEXTS)
    requests = [triton_utils.Request(TEXT=TEXTS), *(triton_utils.Request(TEXT=[text]) for text in TEXTS)]
    requests += [triton_utils.Request(TEXT=["the cat"], TARGET=["fr"]), triton_utils.Request(TEXT=[])]
    assert model.execute(requests) is None
    texts, counts = [each.text.encode() for each in right], [len(each.ids) for each in right]
    assert requests[0].result() == {"TRANSLATION": texts, "TOKENS": counts}
    for request, text, count in zip(requests[1:], texts, counts, strict=False):
        assert request.result() == {"TRANSLATION": [text], "TOKENS": [count]}
    assert "no target language to choose" in requests[4].result()
    assert requests[5].result() == {"TRANSLATION": [], "TOKENS": []}


def test_a_request_that_is_cancelled_gives_its_rows_back(model: Any) -> None:
    request = triton_utils.Request(TEXT=["the cat", *["a dog sees two trees"] * 40])
    request.cancelled = True
    model.execute([request])
    assert request.result() == "the request was cancelled"
    end = time.monotonic() + 10
    while model.translator.load.unanswered:  # the queue's own thread drops them
        assert time.monotonic() < end


WHERE = """
import json, pytriton, sys, sysconfig
print(json.dumps([pytriton.__path__[0], sysconfig.get_config_var("LIBDIR"), "%d.%d" % sys.version_info[:2]]))
"""

CLIENT = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import tritonclient.grpc, tritonclient.http
texts, found = json.loads(sys.argv[1]), []
for module, port in ((tritonclient.http, sys.argv[2]), (tritonclient.grpc, sys.argv[3])):
    def ask(texts):
        client = module.InferenceServerClient("127.0.0.1:" + port)
        tensor = module.InferInput("TEXT", [len(texts)], "BYTES")
        tensor.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=np.object_))
        answer = client.infer("toy", [tensor])
        client.close()
        return [each.decode() for each in answer.as_numpy("TRANSLATION")]
    with ThreadPoolExecutor(8) as pool:
        found.append([ask(texts), *pool.map(lambda text: ask([text])[0], texts * 20)])
print(json.dumps(found))
"""


def free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_tritonserver_answers_over_http_and_grpc(repository: Path, tmp_path: Path, toy: "Translator") -> None:
    python = os.environ.get("TXPORT_TRITON_PYTHON")
    if python is None:
        pytest.skip("needs nvidia-pytriton, tritonclient and txport in an environment: TXPORT_TRITON_PYTHON=its python")
    package, libraries, version = json.loads(subprocess.check_output([python, "-c", WHERE]))
    server = Path(package) / "tritonserver"
    backend = tmp_path / "backends" / "python"
    shutil.copytree(server / "backends" / "python", backend)
    shutil.copy(server / "python_backend_stubs" / version / "triton_python_backend_stub", backend)
    paths = f"{Path(package).parent / 'nvidia_pytriton.libs'}:{libraries}"
    environment = {**os.environ, "LD_LIBRARY_PATH": paths, "PATH": f"{Path(python).parent}:{os.environ['PATH']}"}
    http, grpc = free_ports(2)
    command = [server / "bin" / "tritonserver", "--model-repository", repository, "--backend-directory", backend.parent]
    for name, port in (("http", http), ("grpc", grpc)):
        command += [f"--{name}-port", port, f"--{name}-address", "127.0.0.1"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--allow-metrics", "false"], stdout=log, stderr=log, env=environment)
    try:
        wait_until_ready(http, process, tmp_path / "log")
        done = subprocess.run([python, "-c", CLIENT, json.dumps(TEXTS), http, grpc], capture_output=True, timeout=500)
        assert done.returncode == 0, done.stderr
        right = [each.text for each in toy.translate(TEXTS)]
        assert json.loads(done.stdout) == [[right, *right * 20]] * 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()


def wait_until_ready(port: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/toy/ready")
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.2)
