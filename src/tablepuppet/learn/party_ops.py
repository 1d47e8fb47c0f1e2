"""Registers all ops when imported; a party that runs as its own process needs this.

It finds the modules that register an op. So a new op needs no other line, and modules that only the coordinator needs,
such as those with scikit-learn, are not imported.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

MARKS = "\n@op(", "\n@step("


def op_modules() -> list[str]:
    """The names of modules that register an op."""
    root = Path(__file__).parents[1]
    texts = {path: path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    found = [path.relative_to(root.parent) for path, text in texts.items() if any(mark in text for mark in MARKS)]
    return sorted(".".join(path.with_suffix("").parts) for path in found)


MODULES = tuple(import_module(name) for name in op_modules())
