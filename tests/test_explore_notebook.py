"""The notebook over MIMIC runs from its first cell to its last, and shows what it says."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from benchmarks.data import DATA, is_there
from tests.test_notebook import kernel

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "explore_mimic.ipynb"


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profile, search, slices and drift are tables; the picture and the page are files; nothing is stored with it."""
    if not is_there("mimic-iii-demo"):
        pytest.skip("mimic-iii-demo is not here")
    monkeypatch.setenv("MIMIC", str((DATA / "mimic-iii-demo").resolve()))
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    manager = kernel(tmp_path)
    try:
        NotebookClient(notebook, km=manager, timeout=600, startup_timeout=300).execute(cwd=str(tmp_path))
    finally:
        manager.shutdown_kernel(now=True)
    shown = [str(out.get("data", {}).get("text/html", "")) for cell in cells for out in cell.outputs]
    for words in ("tells the label", "mean test log loss", "Worst slices of", "Drift", "Outliers: 1.5 IQR"):
        assert any(words in each for each in shown), words
    assert (tmp_path / "search.png").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (tmp_path / "profile.html").read_text()
