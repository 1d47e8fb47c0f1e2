"""How much memory a mapping may take."""

from __future__ import annotations

import os
from pathlib import Path

from tablepuppet.errors import MappingError
from tablepuppet.runs.figures import readable

SHARE = 0.8  # of what is free; the rest is for the rounds that follow


def available_memory() -> int:
    """Bytes that this process can still take without swapping, within its control group."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, int(limit) - used)


def require_memory(joined_rows: int, tables: int, limit: int | None, what: str) -> None:
    """Raise MappingError, with the size, if a mapping of so many rows would not fit."""
    needed = joined_rows * 4 * (tables + 2)  # one index per table, and two more while joining
    allowed = int(available_memory() * SHARE) if limit is None else limit
    if needed > allowed:
        source = "are free" if limit is None else "are allowed by memory_limit"
        raise MappingError(
            f"joining {what} gives {joined_rows:,} rows; their mapping takes {readable(needed)}, {readable(allowed)} "
            f"{source}; filter rows, join on a more selective key, or run where there is more memory"
        )
