"""Every op there is, for a party that is a process of its own: importing this registers them.

Modules are found by what they are: those that register an op. So an op needs no other line than its own, and what only
the coordinator needs, such as scikit-learn, stays out.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

MARK = "\n@op("


def op_modules() -> list[str]:
    """The names of modules that register an op."""
    root = Path(__file__).parents[1]
    found = [path.relative_to(root.parent) for path in root.rglob("*.py") if MARK in path.read_text(encoding="utf-8")]
    return sorted(".".join(path.with_suffix("").parts) for path in found)


MODULES = tuple(import_module(name) for name in op_modules())
