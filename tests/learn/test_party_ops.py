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
from tablepuppet.party.ops import REGISTRY
print(json.dumps([sorted(REGISTRY), "sklearn" in sys.modules, "torch" in sys.modules, "scipy" in sys.modules]))
"""


def test_party_ops_are_all_ops() -> None:
    """One import registers every op there is, and loads neither scikit-learn nor scipy nor torch."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    ops, *loaded = json.loads(done.stdout)
    assert ops == sorted(REGISTRY)
    assert loaded == [False, False, False]
