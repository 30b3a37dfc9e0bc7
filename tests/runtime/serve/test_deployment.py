"""The Dockerfile and the Kubernetes page, as far as they can be checked where neither runs."""

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs a server: pip install 'txport[serve]'")

FOLDER = Path(__file__).parents[3] / "runtime" / "serve"
INSTRUCTIONS = {"FROM", "RUN", "USER", "ENV", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def options_of(arguments: list[str]) -> None:
    """Parse arguments as tx-serve does."""
    from txport.runtime.serve.command import main

    main.make_context("tx-serve", list(arguments))


def routes() -> set[str]:
    from txport.runtime.serve.admission import Admission
    from txport.runtime.serve.app import create_app
    from txport.runtime.serve.keys import Keys
    from txport.runtime.serve.metrics import Metrics
    from txport.runtime.serve.models import Models
    from txport.runtime.serve.service import Service
    from txport.runtime.serve.settings import ServiceSettings

    service = Service(
        ServiceSettings(), Models([], None, lambda _: pytest.fail("no bundle is opened")), Metrics([]), Admission(1, 0)
    )
    return {route.path for route in create_app(service, Keys()).routes}  # type: ignore[attr-defined]


def test_the_dockerfile_starts_what_is_installed() -> None:
    text = re.sub(r"^#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line]
    assert {name for name, _ in lines} <= INSTRUCTIONS
    found = dict(lines)
    entry, command = (eval(found[name]) for name in ("ENTRYPOINT", "CMD"))  # JSON lists of texts
    assert entry[0] == "tx-serve"
    options_of([*entry[1:], *command])
    health = re.search(r"127\.0\.0\.1:(\d+)(/[\w/]+)", found["HEALTHCHECK"])
    assert health is not None and health[1] == found["EXPOSE"] == "5000" and health[2] in routes()
    shlex.split(found["RUN"])
    assert "[serve,ort]" in found["RUN"] and "torch" not in text


def test_the_unit_of_systemd_starts_the_server() -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign, assignment]
    unit.read(FOLDER / "tx-serve.service")
    command, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert Path(command).name == "tx-serve" and Path(command).is_absolute()
    options_of(arguments)
    drain = float(arguments[arguments.index("--drain-seconds") + 1])
    assert float(unit["Service"]["TimeoutStopSec"]) > drain
    assert unit["Service"]["DynamicUser"] == "yes" and unit["Service"]["ProtectSystem"] == "strict"


def test_the_deployment_asks_routes_that_exist() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install 'txport[dev]'")
    deployment, service = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    options_of(container["args"])
    port = container["ports"][0]["containerPort"]
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    assert all(probe["path"] in routes() and probe["port"] == port for probe in probes)
    assert [each["targetPort"] for each in service["spec"]["ports"]] == [port]
    metrics = container["args"][container["args"].index("--metrics-port") + 1]
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == metrics == str(container["ports"][1]["containerPort"]) != str(port)
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    drain = float(container["args"][container["args"].index("--drain-seconds") + 1])
    sleep = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > drain + sleep
