"""The file of results: one entry per run, written after each, so that a run that breaks off leaves what it had."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.data import ROOT

RESULTS = ROOT / "benchmarks" / "results"


class Results:
    """Entries by name; those of an earlier run stay unless they are measured anew."""

    def __init__(self, name: str):
        self.path: Path = RESULTS / f"{name}.json"
        self.entries: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def put(self, name: str, entry: Mapping[str, Any]) -> None:
        """Write an entry, and say it."""
        if self.path.exists():  # another run may have written meanwhile
            self.entries |= json.loads(self.path.read_text())
        self.entries[name] = {**entry, "python": platform.python_version()}
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(json.dumps(self.entries, indent=2, sort_keys=True) + "\n")
        print(name, json.dumps(entry), flush=True)
