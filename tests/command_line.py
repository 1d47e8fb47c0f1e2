"""The command line as tests call it: `tablepuppet` with its arguments, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import warm


def tablepuppet(folder: Path, *arguments: str, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; ``fresh`` loads everything itself, as one call of each command does."""
    command = [sys.executable, "-m", "tablepuppet", *arguments]
    if fresh:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return warm.run(command, cwd=folder, timeout=300)
