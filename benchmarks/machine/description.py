"""Description of the machine for a report."""

import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path

from txport.benchmarks.machine.nvml import Nvml
from txport.benchmarks.report.schema import Machine
from txport.runtime.system import cores

LIBRARIES = "txport numpy onnxruntime onnxruntime-gpu tensorrt torch transformers ctranslate2 optimum-onnx".split()


def describe(nvml: Nvml | None) -> Machine:
    """Return the description of this machine, without bandwidth and peaks."""
    return Machine(
        processor=_processor(),
        cores=cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        versions={each.name: each.version for each in distributions() if each.name in LIBRARIES},
        gpu=nvml.facts() if nvml else None,
        power_mode=power_mode(),
        load_average=os.getloadavg()[0],
    )


def power_mode() -> str | None:
    """Return the power mode of a Jetson, such as "MAXN" or "15W", or None on other machines."""
    if (tool := shutil.which("nvpmodel")) is None:
        return None
    return parse_power_mode(subprocess.run([tool, "-q"], capture_output=True, text=True, timeout=30).stdout)


def parse_power_mode(text: str) -> str | None:
    """Return the name of the mode in the output of `nvpmodel -q`, which contains "NV Power Mode: MAXN"."""
    for line in text.splitlines():
        name, colon, mode = line.partition(":")
        if colon and name.strip().lower().endswith("power mode"):
            return mode.strip() or None
    return None


def _processor() -> str:
    # ARM boards have the second file.
    processors = Path("/proc/cpuinfo")
    board = Path("/proc/device-tree/model")
    if processors.exists() and (name := re.search(r"^model name\s*: (.*)", processors.read_text(), re.MULTILINE)):
        return name[1].strip()
    return (board.exists() and board.read_text(errors="replace").strip("\0 \n")) or platform.processor() or "unknown"
