"""Registers all ops, and the models of tables that they take, when imported; a party that is a process needs this.

It finds the modules that register an op or define a model's spec. So a new one needs no other line, and modules that
only the coordinator needs, such as those with scikit-learn, are not imported.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

MARK = re.compile(r"^@(op|step)\(|^class \w+\((Spec|Bottom), frozen=True", re.MULTILINE)


def op_modules() -> list[str]:
    """The names of modules that register an op, or define what a table's model is."""
    root = Path(__file__).parents[1]
    texts = {path: path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    found = [path.relative_to(root.parent) for path, text in texts.items() if MARK.search(text)]
    return sorted(".".join(path.with_suffix("").parts) for path in found)


MODULES = tuple(import_module(name) for name in op_modules())
