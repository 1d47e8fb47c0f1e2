"""A job file holds rows out as `Relation.split` does: by groups, classes or time."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

import tablepuppet as tp
from tablepuppet.jobs import Run
from tests.small_job import write_job


def with_split(folder: Path, text: str) -> Run:
    """The run of a job whose section ``split`` says this."""
    path = folder / "job.toml"
    path.write_text(f"{path.read_text().partition('[split]')[0]}[split]\n{text}\n")
    return Run.of_job(path, lambda event: None)


def rows_of(relation: tp.Relation | None) -> list[int]:
    assert relation is not None
    return sorted(relation.rows()["o.row"].to_pylist())


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ('by = "o.item_id"\ntest = 0.3', {"by": "o.item_id", "test": 0.3}),
        ('by = "i"\nseed = 3', {"by": "i", "seed": 3}),
        ("stratify = true", {"stratify": True}),
        ('by = "day"\nafter = 2024-01-20', {"by": "day", "after": date(2024, 1, 20)}),
        ('by = "price"\nafter = 7', {"by": "price", "after": 7}),
    ],
)
def test_the_test_side_is_that_of_split(tmp_path: Path, text: str, given: dict[str, Any]) -> None:
    """The same rows as `Relation.split` with the same settings; those for validation are of the others."""
    run = with_split(write_job(tmp_path), f"{text}\nvalidation = 0.25")
    sides = run.sides()
    train, test = run.relation().split(**given)
    assert rows_of(sides.test) == rows_of(test)
    assert sorted(rows_of(sides.train) + rows_of(sides.validation)) == rows_of(train)


def test_validation_is_divided_as_the_test_is(tmp_path: Path) -> None:
    """No group is on two of the three sides; with a time, validation rows are before it."""
    folder = write_job(tmp_path)
    grouped = with_split(folder, 'by = "o.item_id"\ntest = 0.3\nvalidation = 0.3').sides()
    items = [{row % 20 for row in rows_of(side)} for side in (grouped.train, grouped.validation, grouped.test)]
    assert sum(map(len, items)) == len(set.union(*items)) == 20
    timed = with_split(folder, 'by = "day"\nafter = 2024-01-20\nvalidation = 0.2').sides()
    assert max(row % 30 for row in rows_of(timed.validation)) < 19 <= min(row % 30 for row in rows_of(timed.test))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('by = "o.colour"', "'o.colour' is no selected column, no column that tables are joined by"),
        ("by = 3", "split.by: it must be a text, not a whole number"),
        ('stratify = "returned"', "split.stratify: it must be true or false, not a text"),
        ('by = "i"\nstratify = true', "give by or stratify"),
        ("after = 2024-01-20", "after needs the column of the time"),
        ('by = "day"\nafter = "2024-01-20"', "after is a date or datetime, not '2024-01-20'"),
        ('by = "price"\nafter = true', "after is a number, not True"),
        ('by = "o.item_id"\nafter = 3', "'o.item_id' is no selected column"),
        ("stratified = true", "unknown field 'split.stratified'; did you mean 'stratify'?"),
    ],
)
def test_what_is_wrong_is_told_before_a_party_reads(tmp_path: Path, text: str, message: str) -> None:
    """As `tablepuppet train` tells it, which leaves no folder."""
    folder = write_job(tmp_path)
    path = folder / "job.toml"
    path.write_text(f"{path.read_text()}[split]\n{text}\n")
    opened: list[str] = []
    with pytest.raises(tp.TablePuppetError) as error:
        Run.to_train(path, lambda event: opened.append(event.name)).train()
    assert message in str(error.value)
    assert "opened" not in opened
    assert not (folder / "runs" / "returns" / "model").exists()


def test_a_run_that_is_resumed_or_read_has_the_same_sides(tmp_path: Path) -> None:
    """A run by time that is stopped and resumed ends as one that is not, and `evaluate` measures on its test side."""
    folder = write_job(tmp_path)
    path, run = folder / "job.toml", folder / "runs" / "returns"
    with_split(folder, 'by = "day"\nafter = 2024-01-20')

    def stopping(event: tp.Event) -> None:
        if event.name == "fitted":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run.to_train(path, stopping).train()
    metrics = Run.to_resume(run, lambda event: None).train()["metrics"]
    assert metrics == Run.to_train(path, lambda event: None, overwrite=True).train()["metrics"]
    saved = Run.of_folder(run, lambda event: None)
    assert rows_of(saved.sides().test) == [row for row in range(400) if row % 30 >= 19]
    name, measured = saved.evaluate(None)
    assert name == "test"
    assert dict(measured) == pytest.approx(dict(metrics["test"]))
