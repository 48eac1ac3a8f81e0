"""What Linux reports about this machine's processor; other systems give its architecture."""

from __future__ import annotations

import functools
import platform
from pathlib import Path


@functools.cache
def cpu_lines(*fields: str) -> tuple[str, ...]:
    """The different lines of /proc/cpuinfo that begin with one of `fields`, sorted; none on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    return tuple(sorted({line for line in lines if line.startswith(fields)}))


def cpu_name() -> str:
    """The processor's model name, as ``"Intel(R) Xeon(R) Platinum 8481C"``, or its architecture."""
    for line in cpu_lines("model name"):
        return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
