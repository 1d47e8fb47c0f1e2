"""A party's service knows every op, without what only coordinators need."""

from __future__ import annotations

import json
import subprocess
import sys

import tablepuppet.learn.learners.linear
import tablepuppet.learn.learners.network  # noqa: F401 - with these two imported, all ops are registered
from tablepuppet.party.ops import REGISTRY

CODE = """
import json, sys
import tablepuppet.learn.party_ops
from tablepuppet.learn.tables.model import Bottom, Spec
from tablepuppet.party.ops import REGISTRY
tags = sorted(made.__struct_config__.tag for family in (Spec, Bottom) for made in family.__subclasses__())
print(json.dumps([sorted(REGISTRY), tags, "sklearn" in sys.modules, "torch" in sys.modules, "scipy" in sys.modules]))
"""


def test_party_ops_are_all_ops() -> None:
    """One import registers every op and every model of a table, and loads neither scikit-learn nor scipy nor torch."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    ops, tags, *loaded = json.loads(done.stdout)
    assert ops == sorted(REGISTRY)
    assert tags == ["cnn", "linear", "mlp", "network", "registered", "tabnet"]
    assert loaded == [False, False, False]
