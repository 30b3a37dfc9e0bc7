"""Memory of this process, as Linux counts it."""

from pathlib import Path


def process_memory(field: str) -> int | None:
    """Bytes of a field of /proc/self/status; None where the system does not say.

    Args:
        field: "VmHWM": the peak; "VmRSS": resident now; "RssAnon": of these, not mapped from files.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes[field].split()[0]) * 1024 if field in sizes else None
