"""EXPLAIN ANALYZE: what a relation has taken, by what was asked and of whom, is what the meter counted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tablepuppet as tp
from tests.relations import federation

PARTIES = {
    "p0": {"t": pa.table({"k": [i % 5 for i in range(60)], "x": [i * 0.37 % 1 for i in range(60)], "y": range(60)})},
    "p1": {"u": pa.table({"k": range(5), "z": [0.1, 0.9, 0.4, 0.7, 0.2]})},
}


def test_what_a_relation_has_taken(tmp_path: Path) -> None:
    """Before a fit it has been read and joined; after it, a round is beside its estimate, and bytes are all there."""
    fed = federation(tmp_path, PARTIES)
    fed.catalog()
    before = sum(entry["bytes"] for entry in fed.traffic)
    relation = fed.sql("SELECT t.x, u.z, t.y FROM t JOIN u USING (k)", label="y")
    plan = relation.explain()
    text = relation.explain(analyze=True)
    assert text.startswith(plan)
    assert "open, keys.blind" in text
    assert "No round was measured yet" in text
    described = sum(entry["bytes"] for entry in fed.traffic if entry["release"] == "SCHEMA")
    train, _ = relation.split()
    tp.LinearRegression().fit(train)
    text = relation.explain(analyze=True)
    assert "A round: estimated" in text
    assert " a trip, over " in text
    session = relation._session
    steps = session.engine.stopwatch.of(session.id)
    spent = sum(entry["bytes"] for entry in fed.traffic) - before - (described - before)
    assert sum(step.up + step.down for step in steps) == spent
    assert any(step.here > 0 for step in steps)
    with pytest.raises(TypeError):
        relation.explain(True)  # type: ignore[call-arg] # by name only, as other switches
