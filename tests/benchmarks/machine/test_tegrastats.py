"""tegrastats as Jetsons print it: lines as people recorded and published them, of JetPack 5, 6 and 7."""

import os
import time
from pathlib import Path

import pytest
from txport.benchmarks.machine.description import parse_power_mode
from txport.benchmarks.machine.energy import open_meter
from txport.benchmarks.machine.tegrastats import EnergyCounter, watts

XAVIER_AGX_JETPACK_5 = (
    "RAM 2445/31919MB (lfb 6776x4MB) SWAP 0/15959MB (cached 0MB) CPU [0%@1190,1%@1190,0%@1190,0%@1189,0%@1190,"
    "0%@1191,0%@1190,0%@1190] EMC_FREQ 0%@1331 GR3D_FREQ 0%@114 VIC_FREQ 115 APE 150 AUX@36C CPU@36.5C thermal@35.7C "
    "Tboard@37C AO@35C GPU@35C Tdiode@38.75C PMIC@50C GPU 467mW/467mW CPU 467mW/467mW SOC 1245mW/1245mW CV 0mW/0mW "
    "VDDRQ 311mW/311mW SYS5V 2768mW/2768mW"
)
ORIN_AGX_JETPACK_5 = (
    "11-21-2025 08:49:48 RAM 13983/62780MB (lfb 424x4MB) SWAP 126/31390MB (cached 0MB) CPU [90%@2201,100%@2201,"
    "100%@2201,100%@2201] EMC_FREQ 1%@2133 GR3D_FREQ 14%@[407,407] VIC_FREQ 115 NVDLA0_FREQ @1600 APE 174 CV0@73.625C "
    "CPU@77.281C Tboard@62C SOC2@70C Tdiode@62.25C SOC0@69.531C CV1@72.5C GPU@69.125C tj@77.281C SOC1@68.968C "
    "CV2@67.25C VDD_GPU_SOC 3150mW/2971mW VDD_CPU_CV 14312mW/12415mW VIN_SYS_5V0 4968mW/5048mW "
    "VDDQ_VDD2_1V8AO 1091mW/1091mW"
)
ORIN_AGX_JETPACK_6 = (
    "03-17-2024 18:54:10 RAM 10239/62841MB (lfb 442x4MB) SWAP 1/31421MB (cached 0MB) CPU [0%@1728,0%@1728,0%@1728,"
    "0%@1728,0%@1420,0%@1420,0%@1420,0%@1420,off,off,off,off] GR3D_FREQ 0% cpu@37.5C tboard@27C soc2@34.562C "
    "tdiode@27.5C soc0@34.531C tj@37.5C soc1@33.656C VDD_GPU_SOC 1592mW/1592mW VDD_CPU_CV -398mW/-398mW "
    "VIN_SYS_5V0 2624mW/2624mW VDDQ_VDD2_1V8AO 403mW/403mW"
)
ORIN_NANO_JETPACK_6 = (
    "05-15-2025 18:30:28 RAM 6982/7620MB (lfb 5x1MB) SWAP 2640/16384MB (cached 202MB) CPU [97%@1984,95%@1984,95%@1984,"
    "91%@1984,88%@1984,93%@247] EMC_FREQ 18%@3199 GR3D_FREQ 84%@[713] NVENC 1%@115 NVDEC 40%@115 NVJPG off NVJPG1 off "
    "VIC 31%@115 OFA off NVDLA0 off PVA0_FREQ off APE 174 cv0@63.031C cpu@65.562C soc2@64.156C soc0@63.031C "
    "cv1@62.937C gpu@63.5C tj@65.562C soc1@64.718C cv2@60.875C VDD_IN 17946mW/15710mW VDD_CPU_GPU_CV 8896mW/7585mW "
    "VDD_SOC 3923mW/3515mW"
)
THOR_JETPACK_7_0 = (
    "01-20-2026 22:46:22 RAM 17842/125772MB (lfb 79x4MB) CPU [0%@972,0%@972,0%@1566,0%@1566,0%@972,0%@972,0%@972,"
    "0%@972,0%@972,0%@972,1%@972,0%@972,0%@972,0%@972] cpu@30.468C tj@31.218C soc012@30.218C soc345@31.218C "
    "VDD_GPU 0mW/0mW VDD_CPU_SOC_MSS 5535mW/5535mW VIN_SYS_5V0 5040mW/5040mW VIN 16802mW/16802mW"
)
THOR_JETPACK_7_2 = (
    "07-02-2026 13:45:44 RAM 36529/125749MB (lfb 12x4MB) SWAP 11/4096MB (cached 9MB) CPU [2%@972,1%@972,0%@972,0%@972] "
    "cpu@60.406C tj@63.281C soc012@58.468C gpu@62.906C soc345@63.281C VDD_GPU 37528mW/37528mW/37528mW "
    "VDD_CPU_SOC_MSS 18961mW/18961mW/18961mW VIN_SYS_5V0 18331mW/18331mW/18331mW VIN 87426mW/43713mW/87426mW"
)


@pytest.mark.parametrize(
    ("line", "power"),
    [
        (XAVIER_AGX_JETPACK_5, 5.258),
        (ORIN_AGX_JETPACK_5, 22.430),
        (ORIN_AGX_JETPACK_6, 3.818),
        (ORIN_NANO_JETPACK_6, 17.946),
        (THOR_JETPACK_7_0, 16.802),
        (THOR_JETPACK_7_2, 87.426),
    ],
)
def test_power_is_the_input_or_the_sum_of_the_rails(line: str, power: float) -> None:
    assert watts(line) == pytest.approx(power)


def joules(lines: list[tuple[float, str]]) -> float:
    """Between the first and the last of (seconds, line)."""
    counter = EnergyCounter()
    for seconds, line in lines:
        counter.add(line, seconds)
    return counter.joules(lines[-1][0])


def test_a_line_without_power_is_skipped() -> None:
    """The first lines of some releases, and what is printed without root on others."""
    without = "RAM 1313/30697MB (lfb 37x4MB) CPU [0%@729,off] GR3D_FREQ 0% cpu@43.343C"
    assert watts(without) is None
    assert watts("") is None
    assert joules([(0.0, ORIN_NANO_JETPACK_6), (1.0, without), (2.0, without)]) == pytest.approx(2 * 17.946)


def test_energy_is_power_over_time() -> None:
    lines = [(10.0, THOR_JETPACK_7_0), (10.5, THOR_JETPACK_7_2), (12.5, THOR_JETPACK_7_0)]
    assert joules(lines) == pytest.approx(0.5 * 16.802 + 2 * 87.426)


@pytest.mark.parametrize(
    ("text", "mode"),
    [("NV Power Mode: MAXN\n0\n", "MAXN"), ("NVPM VERB: x\nNV Power Mode: 15W\n2\n", "15W"), ("nothing\n", None)],
)
def test_power_modes(text: str, mode: str | None) -> None:
    assert parse_power_mode(text) == mode


def test_a_tegrastats_on_the_path_is_the_meter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of that name, which prints what a Jetson's would at the interval that it is given."""
    tool = tmp_path / "tegrastats"
    tool.write_text(
        f'#!/bin/sh\n[ "$1 $2" = "--interval 100" ] || exit 2\nwhile echo "{THOR_JETPACK_7_0}"; do sleep 0.1; done\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with open_meter(None) as meter:
        assert meter is not None
        end = time.monotonic() + 30
        while not meter() and time.monotonic() < end:
            time.sleep(0.01)
        start, before = time.monotonic(), meter()
        while meter() < before + 1 and time.monotonic() < end:
            time.sleep(0.01)
        joules, seconds = meter() - before, time.monotonic() - start
    assert joules / seconds == pytest.approx(16.802, rel=0.1)


def test_a_machine_without_a_meter_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with open_meter(None) as meter:
        assert meter is None
