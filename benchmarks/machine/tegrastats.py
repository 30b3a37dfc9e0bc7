"""Parsing tegrastats, which reports the power of a Jetson: JetPack 5 (L4T 35), 6 (36) and 7 (38, 39).

A line has pairs such as `VDD_IN 4900mW/5000mW`: the current value, and the mean since tegrastats started; JetPack 7.2
adds the maximum. Which rails there are depends on the board, not on the release.
"""

import re

_RAIL = re.compile(r"(?<!\S)([A-Z][A-Z0-9_]*) (-?\d+)mW(?:/|\s|$)")
# Rails that are the whole input of the module or the board, to which no other may be added: Orin NX and Nano, Xavier
# NX; Thor.
_INPUTS = ("VDD_IN", "VIN")
# Already part of VIN_SYS_5V0 on AGX Orin.
_INCLUDED = ("VDDQ_VDD2_1V8AO",)


def watts(line: str) -> float | None:
    """Power of the module: its input rail, or the sum of its rails (AGX boards); None if the line has none.

    A sensor's offset can make an idle rail negative.
    """
    rails = {name: int(milliwatts) for name, milliwatts in _RAIL.findall(line)}
    for name in _INPUTS:
        if name in rails:
            return rails[name] / 1e3
    parts = [value for name, value in rails.items() if name not in _INCLUDED]
    return sum(parts) / 1e3 if parts else None


class EnergyCounter:
    """Energy from lines with their times: the power of each line lasts until the next one. Safe across two threads."""

    def __init__(self) -> None:
        # Joules until the last line, its time and its power; replaced as a whole.
        self._last: tuple[float, float, float] | None = None

    def add(self, line: str, seconds: float) -> None:
        """Count a line that was read at this time; one without power is skipped."""
        power = watts(line)
        if power is not None:
            self._last = (self.joules(seconds), seconds, power)

    def joules(self, seconds: float) -> float:
        """Energy from the first line until this time."""
        if self._last is None:
            return 0.0
        joules, since, power = self._last
        return joules + power * max(0.0, seconds - since)
