"""Cores that the process may use: the quota of its control group, as files of /proc and /sys say it."""

import os
from pathlib import Path

import pytest
from toy import BUNDLE
from txport.runtime import system
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.ort_session import open_session

# /proc/self/cgroup, files below /sys/fs/cgroup, and the quota; tests/cpp/engines/test_cores.cpp has the same.
CASES = {
    "none": ("", {}, 0),
    "no limit": ("0::/\n", {"cpu.max": "max 100000\n"}, 0),
    "a container": ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
    "a group within a group": ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "800000 100000\n"}, 3),
    "a path of the host": ("0::/docker/5\n", {"cpu.max": "50000 100000\n"}, 1),
    "version 1": (
        "2:cpuset:/x\n1:cpu,cpuacct:/x\n0::/\n",
        {"cpu,cpuacct/x/cpu.cfs_quota_us": "400000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"},
        4,
    ),
    "version 1 without a limit": (
        "1:cpu:/\n",
        {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
        0,
    ),
    "what no kernel writes": ("nonsense\n0::/a\n", {"a/cpu.max": "\n", "cpu.max": "200000 100000\n"}, 2),
}


@pytest.mark.parametrize(("groups", "files", "expected"), CASES.values(), ids=CASES)
def test_the_quota_of_a_control_group(tmp_path: Path, groups: str, files: dict[str, str], expected: int) -> None:
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": t for name, t in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert system.quota(tmp_path) == expected


def test_without_control_groups_nothing_is_limited(tmp_path: Path) -> None:
    assert system.quota(tmp_path) == 0
    assert 1 <= system.cores() <= (os.cpu_count() or 1)


def test_a_quota_bounds_cores_and_the_threads_of_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    affinity = system.cores()
    monkeypatch.setattr(system, "quota", lambda: affinity + 1)
    assert (system.cores(), system.limited()) == (affinity, 0)
    monkeypatch.setattr(system, "affinity", lambda: 8)
    monkeypatch.setattr(system, "quota", lambda: 3)
    assert (system.cores(), system.limited()) == (3, 3)
    graph = Manifest.load(BUNDLE).encoder
    threads = [
        open_session(BUNDLE, graph, threads=threads, providers=["CPUExecutionProvider"])
        .get_session_options()
        .intra_op_num_threads
        for threads in (0, 2)
    ]
    assert threads == [3, 2]
