"""Reading tegrastats, which is how a Jetson reports its power: JetPack 5 (L4T 35), 6 (36) and 7 (38, 39).

A line has pairs such as `VDD_IN 4900mW/5000mW`: now, and the mean since tegrastats started; JetPack 7.2 adds the
largest. Which pairs there are depends on the board, not on the release.
"""

import re
from collections.abc import Iterable

_RAIL = re.compile(r"(?<!\S)([A-Z][A-Z0-9_]*) (-?\d+)mW(?:/|\s|$)")
_RAM = re.compile(r"(?<!\S)RAM (\d+)/(\d+)MB")
# Rails that are the whole input of the module or the board, so that no other may be added to them: Orin NX and Nano,
# Xavier NX; Thor.
_INPUTS = ("VDD_IN", "VIN")
# A part of VIN_SYS_5V0 on AGX Orin.
_INCLUDED = ("VDDQ_VDD2_1V8AO",)


def rails(line: str) -> dict[str, int]:
    """Milliwatts of each rail of a line, as they are now; a sensor's offset can make an idle one negative."""
    return {name: int(value) for name, value in _RAIL.findall(line)}


def watts(line: str) -> float | None:
    """What the module takes: its input rail, or the sum of its rails (AGX boards); None if the line has none."""
    found = rails(line)
    for name in _INPUTS:
        if name in found:
            return found[name] / 1e3
    parts = [value for name, value in found.items() if name not in _INCLUDED]
    return sum(parts) / 1e3 if parts else None


def memory_bytes(line: str) -> int | None:
    """Memory in use, which processor and GPU share; None if the line does not say."""
    found = _RAM.search(line)
    return int(found[1]) << 20 if found else None


class Integral:
    """Energy from lines that come at moments: each line's power lasts until the next one."""

    def __init__(self) -> None:
        self._joules = 0.0
        self._last: tuple[float, float] | None = None

    def add(self, line: str, seconds: float) -> None:
        """A line that was read at this moment; one without power is passed over."""
        power = watts(line)
        if power is None:
            return
        self._joules = self.joules(seconds)
        self._last = (seconds, power)

    def joules(self, seconds: float) -> float:
        """Energy until this moment, of the first line on."""
        if self._last is None:
            return 0.0
        since, power = self._last
        return self._joules + power * max(0.0, seconds - since)


def integrate(lines: Iterable[tuple[float, str]]) -> float:
    """Joules between the first and the last of (seconds, line)."""
    total, end = Integral(), 0.0
    for seconds, line in lines:
        total.add(line, seconds)
        end = seconds
    return total.joules(end)
