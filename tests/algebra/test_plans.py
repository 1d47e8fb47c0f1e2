"""Where the steps of a matrix run: plans give the same numbers, in the trips that `explain` says, as policies allow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.algebra.costs import ENVELOPE, LineSpeed
from tablepuppet.algebra.placement import PLANS
from tablepuppet.party.config import Limits
from tablepuppet.party.policy import EVERY_USE, ColumnRule, Policy, TableRule, Use
from tests.learn.materialised import ALL, JOIN, shop
from tests.party.policed import COLUMNS, federation, open_party, write_file
from tests.relations import federation as in_process
from tests.wire.losing import losing
from tests.wire.services import calling, served

SQL = f"SELECT {ALL} {JOIN}"
CLOSED = Policy(others=TableRule(others=ColumnRule(EVERY_USE & ~Use.VALUE)))


@contextmanager
def services(folder: Path, shards: int = 2, policy: Policy | None = None) -> Iterator[tp.Federation]:
    """The shop, behind services."""
    parties = shop(shards)
    in_process(folder, parties)
    with served({name: f"parquet:///{folder / name}" for name in parties}, limits=Limits(), policy=policy) as servers:
        yield calling(servers, wire="float64")


def numbers(x: Any) -> list[Any]:
    """Something of every kind of step."""
    rows, width = x.shape
    rng = np.random.default_rng(0)
    scaled = (x - x.mean(axis=0)) / 2
    v, u, weights = rng.normal(size=(width, 2)), rng.normal(size=rows), rng.random((rows,))
    bent = np.tanh(x) + 1
    return [
        x @ v, scaled.T @ u, scaled.T @ scaled, x.std(axis=0), bent @ v, bent.T @ bent, bent.sum(axis=0),
        x.T @ (weights[:, None] * x), x[:, ::2].mean(axis=0),
    ]  # fmt: skip


def test_plans_agree(tmp_path: Path) -> None:
    """Over services, to 1e-9: computed there or here; what was collected is not asked again."""
    with services(tmp_path) as fed:
        relation = fed.sql(SQL)
        expected = numbers(relation.matrix(plan="heuristic"))
        plan: Any
        for plan in PLANS:
            for found, known in zip(numbers(relation.matrix(plan=plan)), expected, strict=True):
                np.testing.assert_allclose(found, known, atol=1e-9 * (1 + np.abs(known).max()))
        x = relation.matrix(plan="collect")
        x.sum()
        before = fed.engine.traffic.trips
        numbers(x)
        assert fed.engine.traffic.trips == before
        released = {entry["release"] for entry in fed.traffic}
        assert "VALUES" in released


@pytest.mark.parametrize("plan", ["heuristic", "collect"])
def test_explain_says_what_is_measured(tmp_path: Path, plan: Any) -> None:
    """Trips exactly, bytes to a twentieth and a few for each op of a shard, of each kind of step."""
    with services(tmp_path, policy=None) as fed:
        x: Any = fed.sql(SQL).matrix(plan=plan)
        x.sum(axis=0)  # rows and encoders travel with the first
        rows, width = x.shape
        weights = np.random.default_rng(0).random((rows, 1))
        steps: dict[str, Any] = {
            "X @ V": lambda: x @ np.ones((width, 3)),
            "X.T @ U": lambda: x.T @ np.ones((rows, 3)),
            "X.sum(axis=0)": lambda: x.sum(axis=0),
            "(X * X).sum(axis=0)": lambda: np.linalg.norm(x, axis=0),
            "X.max(axis=1)": lambda: x.max(axis=1),
            "X.argmax(axis=1)": lambda: x.argmin(axis=1),
            "X.T @ X": lambda: x.T @ x,
            "X.T @ (w[:, None] * X)": lambda: x.T @ (weights * x),
        }
        for name, run in steps.items():
            said = x.explain(vectors=3).steps[name]
            trips, size = fed.engine.traffic.trips, fed.engine.traffic.bytes
            run()
            moved = fed.engine.traffic.bytes - size
            assert fed.engine.traffic.trips - trips == said.trips, name
            assert abs(moved - said.bytes) <= 0.05 * moved + 0.3 * ENVELOPE * len(fed.engine.parties), name
            after = x.explain(vectors=3).steps[name]
            assert after.runs == said.runs + 1
            assert after.measured_trips == said.measured_trips + said.trips
            assert after.measured_bytes == said.measured_bytes + moved
            assert said.where == ("at parties" if plan == "heuristic" else "here")
        assert "X.T @ U" in str(x.explain())
        assert x.explain().plan == plan


def test_figures_belong_to_their_step(tmp_path: Path) -> None:
    """All trips of a weighted Gram matrix are its own; steps that share a trip share its bytes."""
    fed = in_process(tmp_path, shop(2))
    x: Any = fed.sql(SQL).matrix(plan="heuristic")
    x.sum(axis=0)  # rows and encoders travel with the first

    def changed(run: Any) -> dict[str, tuple[int, int]]:
        said, size = x.explain().steps, fed.engine.traffic.bytes
        run()
        found = x.explain().steps
        assert sum(found[name].measured_bytes - each.measured_bytes for name, each in said.items()) == (
            fed.engine.traffic.bytes - size
        )
        changes = {
            name: (found[name].runs - each.runs, found[name].measured_trips - each.measured_trips)
            for name, each in said.items()
        }
        return {name: change for name, change in changes.items() if change != (0, 0)}

    weights = np.ones((x.shape[0], 1))
    assert changed(lambda: x.T @ (weights * x)) == {"X.T @ (w[:, None] * X)": (1, 2)}
    assert changed(lambda: x.T @ x) == {"X.T @ X": (1, 2)}
    assert changed(lambda: x.var(axis=0)) == {"X.sum(axis=0)": (1, 1), "(X * X).sum(axis=0)": (1, 1)}


def test_refused_steps_have_not_run(tmp_path: Path) -> None:
    """Whoever refuses: the catalog, or the party when it is asked."""
    party = open_party(write_file(tmp_path, table="matrix = true\nmin_rows = 10"))
    x = federation(party).sql("SELECT credit, open FROM cards").matrix(plan="heuristic")
    few = np.zeros(x.shape[0])
    few[:3] = 1
    for _ in range(2):
        with pytest.raises(tp.PrivacyError, match="min_rows"):
            x.T @ few
    assert x.explain().steps["X.T @ U"].runs == 0
    x.T @ np.ones(x.shape[0])
    assert (x.explain().steps["X.T @ U"].runs, x.explain().steps["X.T @ U"].measured_trips) == (1, 1)


def test_cost_collects_when_it_would_have_paid(tmp_path: Path) -> None:
    """A loop of products is first computed at the parties, then here; databases of this process are never collected."""
    with services(tmp_path) as fed:
        x = fed.sql(SQL).matrix()
        x.source.placement.line = LineSpeed(latency=0.1, bandwidth=1e4)  # a slow line, as if it were measured
        x.source.placement.line.add = lambda *_: None  # type: ignore[method-assign]
        assert x.explain().steps["X @ V"].where == "at parties"
        before = fed.engine.traffic.trips
        for _ in range(50):
            x @ np.ones(x.shape[1])
        assert 1 < fed.engine.traffic.trips - before < 20
        assert x.explain().steps["X @ V"].where == "here"
        assert x.explain().steps["collect cells"].measured_trips == 1
    (tmp_path / "here").mkdir()
    here = in_process(tmp_path / "here", shop(1))
    y = here.sql(SQL).matrix()
    for _ in range(5):
        y @ np.ones(y.shape[1])
    assert "VALUES" not in {entry["release"] for entry in here.traffic}


def test_forbidden_plans_are_not_considered(tmp_path: Path) -> None:
    """Public columns without the use value: cost never collects, and collect says which column it is, before a trip."""
    with services(tmp_path, policy=CLOSED) as fed:
        relation = fed.sql(SQL)
        x = relation.matrix()
        x.source.placement.line = LineSpeed(latency=10.0)
        for _ in range(5):
            x @ np.ones(x.shape[1])
        assert not x.source.placement.collected
        y = relation.matrix(plan="collect")
        before = fed.engine.traffic.trips
        with pytest.raises(tp.PrivacyError, match=r"X @ V: party .* column .*may not be collected.*policy rule uses"):
            y @ np.ones(y.shape[1])
        assert "nowhere: policy rule uses" in {step.where for step in y.explain().steps.values()}
        assert fed.engine.traffic.trips == before


VALUES = COLUMNS.replace(
    'open = { uses = ["feature"], level = "public" }', 'open = { uses = ["feature", "value"], level = "public" }'
).replace('credit = "feature"', 'credit = { uses = ["feature", "value"], level = "aggregate" }')


def test_a_column_is_collected_if_its_policy_says_so(tmp_path: Path) -> None:
    """With the use value, at level public: the table needs no matrix = true for it."""
    party = open_party(write_file(tmp_path, columns=VALUES))
    x = federation(party).sql("SELECT open FROM cards").matrix(plan="collect")
    assert (x @ np.ones(1)).std() == pytest.approx(1.0)
    for column in ("credit", "region"):  # one is aggregate, one has no such use
        y = federation(party).sql(f"SELECT open, {column} FROM cards").matrix(plan="collect")
        with pytest.raises(tp.PrivacyError, match=rf"column '{column}': its cells may not be collected"):
            y.sum()
        with pytest.raises(tp.PrivacyError, match=r"VALUES"):  # nor if the coordinator does not look at the catalog
            y.source.placement._collect(["cards"])
    chosen = federation(party).sql("SELECT open FROM cards").matrix()  # plan="cost": no products, so cells
    assert (chosen @ np.ones(1)).std() == pytest.approx(1.0)
    nothing = federation(party).sql("SELECT open, region FROM cards").matrix()
    with pytest.raises(tp.PrivacyError, match=r"X @ V.*policy rule matrix\), nor may column 'region' be collected"):
        nothing @ np.ones(4)


def test_functions_need_matrix_and_count(tmp_path: Path) -> None:
    """A function of columns is of the caller's choice: the table must allow it, and its columns are counted."""
    closed = federation(open_party(write_file(tmp_path))).sql("SELECT credit, open FROM cards").matrix()
    with pytest.raises(tp.PrivacyError, match="matrix = true"):
        np.tanh(closed).sum()
    party = open_party(write_file(tmp_path, table="matrix = true", limits="max_matrix_columns = 7"))
    x = federation(party).sql("SELECT credit, open FROM cards").matrix()
    assert np.tanh(x).sum(axis=0).shape == np.exp(x).sum(axis=0).shape == (2,)
    with pytest.raises(tp.PrivacyError, match="max_matrix_columns"):
        np.sin(x).sum()


def test_a_function_that_is_refused_is_not_taken_for_another(tmp_path: Path) -> None:
    """Parties keep eight functions under names that are used again: the error comes again, not an older function."""
    party = open_party(write_file(tmp_path, table="matrix = true\nmin_rows = 10"))
    x = federation(party).sql("SELECT credit, open FROM cards").matrix()[:, ["cards.open"]]
    for number in range(8):
        np.tanh(x + number).sum()
    for _ in range(2):
        with pytest.raises(tp.PrivacyError, match="policy rule min_rows"):
            (x > 1.65).sum(axis=0)
    known = x @ np.ones(1)
    np.testing.assert_allclose(np.tanh(x).sum(), np.tanh(known).sum(), atol=1e-5)


def test_extremes_are_of_public_columns(tmp_path: Path) -> None:
    """By the rules of statistics: not of others, and not of few rows."""
    party = open_party(write_file(tmp_path, table="matrix = true"))
    x = federation(party).sql("SELECT credit, open FROM cards").matrix()
    assert x[:, ["cards.open"]].max(axis=0)[0] == pytest.approx(1.7032, abs=1e-3)
    with pytest.raises(tp.PrivacyError, match=r"column 'cards.credit' is not public.*policy rule level"):
        x.max()


def test_weights_hide_among_min_rows(tmp_path: Path) -> None:
    """A weighted Gram matrix over few rows is refused, as a product is."""
    x = (
        federation(open_party(write_file(tmp_path, table="matrix = true\nmin_rows = 10")))
        .sql("SELECT credit, open FROM cards")
        .matrix()
    )
    weights = np.zeros(x.shape[0])
    weights[:3] = 1
    with pytest.raises(tp.PrivacyError, match="min_rows"):
        x.gram(weights)
    weights[:12] = 1
    assert x.gram(weights).shape == (2, 2)


def test_a_plan_that_is_none(tmp_path: Path) -> None:
    """Is refused with those that are."""
    with pytest.raises(tp.LearnError, match=r"plan is one of 'cost', 'collect', 'heuristic', 'parties', not 'best'"):
        in_process(tmp_path, shop(1)).sql(SQL).matrix(plan="best")  # type: ignore[arg-type]


def test_settings_have_names_and_types(tmp_path: Path) -> None:
    """A plan is not read as something else, and text is no truth value."""
    relation: Any = in_process(tmp_path, shop(1)).sql(SQL)
    with pytest.raises(TypeError, match="positional argument"):
        relation.matrix("cost")
    for value in ("no", 1, None):
        with pytest.raises(tp.LearnError, match=f"matrix: secure_sum is True or False, not {value!r}"):
            relation.matrix(secure_sum=value)


@pytest.mark.parametrize("mode", ["fail", "zeros", "cache"])
def test_a_lost_party_ends_the_step(tmp_path: Path, mode: Any) -> None:
    """Nothing stands in for a product; a session that outlives it goes on when the party is back."""
    parties = shop(2)
    in_process(tmp_path, parties)
    urls = {name: f"parquet:///{tmp_path / name}" for name in parties}
    fed, behind = losing(urls, on_party_lost=mode)
    x = fed.sql(SQL).matrix(plan="heuristic")
    ones = np.ones(x.shape[1])
    expected = np.tanh(x) @ ones
    lost = next(iter(behind.values()))
    lost.lost = True
    with pytest.raises(tp.PartyError, match=f"'{lost.name}' does not answer"):
        x.T @ (x @ ones)
    lost.lost = False
    if mode == "fail":  # the session is over
        return
    np.testing.assert_array_equal(np.tanh(x) @ ones, expected)
