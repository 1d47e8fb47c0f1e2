"""Registers all ops, the Structs of families that they take, and solvers; a party that is a process imports this.

It finds the modules that have one. So a new one needs no other line, and modules that only the coordinator needs, such
as those with scikit-learn, are not imported.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

MARK = re.compile(r"^@(op|step)\(|^@solver$|^class \w+\(.*\btag=", re.MULTILINE)


def op_modules() -> list[str]:
    """The names of modules that register an op or a solver, or define a member of a family, such as a table's spec."""
    root = Path(__file__).parents[1]
    texts = {path: path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    found = [path.relative_to(root.parent) for path, text in texts.items() if MARK.search(text)]
    return sorted(".".join(path.with_suffix("").parts) for path in found)


MODULES = tuple(import_module(name) for name in op_modules())
