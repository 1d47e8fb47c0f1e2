"""The scratch database leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch
import tablepuppet as tp
federation = tp.Federation({"shop": "csv:///shop"})
model = tp.LinearRegression().fit(federation.sql("SELECT x, y FROM t", label="y"))
"""


def test_a_script_ends_silently(tmp_path: Path) -> None:
    """A script that fits a model ends without a word: DuckDB would list what is still open as leaked."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "t.csv").write_text("x,y\n" + "".join(f"{row % 7},{row * 2}\n" for row in range(50)))
    ended = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout + ended.stderr == ""
