"""A whole fit is held against what is left of parties' budgets before its first charge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tablepuppet as tp
from tablepuppet.jobs import Job, Run
from tablepuppet.learn.learners.learner import Learner
from tablepuppet.learn.private.checks import funds_of
from tablepuppet.learn.private.fit_plan import PlannedFit, Planning
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.ledger import FILE, Budget, Ledger
from tablepuppet.party.policy import CallerLimits, ColumnRule, Policy, TableRule
from tablepuppet.party.service import Party
from tablepuppet.privacy.accountant import Spending
from tablepuppet.privacy_plan import _planned
from tablepuppet.relation import Relation
from tests.relations import in_process, write_party

SQL = "SELECT v.x, v.kind, v.y, v.bad, c.z FROM visits v JOIN cards c ON v.k = c.k"
TWICE = "SELECT v.x, v.y, c.z, d.z AS other FROM visits v JOIN cards c ON v.k = c.k JOIN cards d ON v.back = d.k"
KEY = b"the key that all parties share.."
Columns = Mapping[str, ColumnRule]


def tables() -> dict[str, dict[str, pa.Table]]:
    """A shop with 3,000 visits, and the 1,000 cards of two banks."""
    rng = np.random.default_rng(3)
    x, k = rng.normal(size=3000), rng.integers(0, 1000, 3000)
    visits = {"k": k, "back": 999 - k, "x": x, "kind": np.where(x > 0, "a", "b"), "y": x + rng.normal(size=3000)}
    cards = pa.table({"k": np.arange(1000), "z": rng.normal(size=1000)})
    return {
        "shop": {"visits": pa.table(visits | {"bad": (x > 0.3).astype(int)})},
        "east": {"cards": cards[:600]},
        "west": {"cards": cards[600:]},
    }


class World:
    """The parties, each with a ledger and the same budget for all its tables."""

    def __init__(
        self, folder: Path, budget: Budget, columns: Mapping[str, Columns] | None = None, rounds: int | None = None
    ):
        self.folder, self.parties = folder, {}
        for name, found in tables().items():
            url = write_party(folder, name, found) if not (folder / name).exists() else f"parquet:///{folder}/{name}"
            (folder / f"{name}-state").mkdir(exist_ok=True)
            rules = {table: TableRule((columns or {}).get(name, {}), budget=budget) for table in found}
            self.parties[name] = Party(
                name, open_database(name, url), KEY, Policy(rules, limits=CallerLimits(max_prediction_rounds=rounds)),
                row_secret=b"row secret", state_dir=folder / f"{name}-state",
            )  # fmt: skip

    def federation(self, caller: str = "analyst") -> tp.Federation:
        """As a caller sees it."""
        fed = tp.Federation(dict.fromkeys(self.parties, "parquet:///unused"))
        fed.engine = in_process(self.parties, caller)
        return fed

    def spent(self, caller: str = "") -> dict[tuple[str, str], Spending]:
        """What ledgers say, by party and table."""
        return {
            (name, table): Ledger(self.folder / f"{name}-state" / FILE, name).spent(table, caller)
            for name, found in tables().items()
            for table in found
        }


def planned(learner: Learner, relation: Relation, predictions: int = 0) -> PlannedFit:
    """As the fit plans it."""
    assert learner.privacy is not None
    rows = {alias: table.rows for alias, table in relation.mapping.tables.items()}
    return Planning(learner, relation.plan, rows, relation.max_categories, predictions).fit(learner.privacy)


FEATURES: dict[str, Any] = {"feature_epsilon": 4.0, "delta": 1e-4}
BOTH = FEATURES | {"prediction_epsilon": 2.0}
ALL = BOTH | {"label_epsilon": 1.5}
BOUNDED = {
    "shop": {"x": ColumnRule(bounds=(-4.0, 4.0)), "kind": ColumnRule(categories=("a", "b"))},
    "east": {"z": ColumnRule(bounds=(-4.0, 4.0))},
}
CASES: dict[str, tuple[str, str, type[Learner], dict[str, Any], dict[str, Any], Mapping[str, Columns] | None]] = {
    "linear": (SQL, "y", tp.LinearRegression, {}, FEATURES, None),
    "admm, noisy predictions": (SQL, "y", tp.LinearRegression, {"solver": "admm", "rounds": 2}, BOTH, None),
    "labels too": (SQL, "y", tp.LinearRegression, {}, ALL | {"label_bounds": (-4.0, 4.0)}, None),
    "labels only": (SQL, "bad", tp.LogisticRegression, {}, {"label_epsilon": 1.0, "label_classes": (0, 1)}, None),
    "classes": (SQL, "bad", tp.LogisticRegression, {}, BOTH, None),
    "bounds at some": (SQL, "y", tp.LinearRegression, {}, BOTH, BOUNDED),
    "one table twice": (TWICE, "y", tp.LinearRegression, {}, BOTH, None),
    "few rounds": (SQL, "y", tp.LinearRegression, {"rounds": 2}, FEATURES, BOUNDED),
    "sgd": (SQL, "y", tp.LinearRegression, {"solver": "sgd", "rounds": 2, "local_steps": 3}, BOTH, None),
    "sgd on samples": (
        SQL, "y", tp.LinearRegression, {"solver": "sgd", "rounds": 2, "local_steps": 2, "batch_size": 300},
        BOTH, BOUNDED,
    ),
    "network": (SQL, "y", tp.MLPRegressor, {"hidden": (4,), "rounds": 2, "local_steps": 2}, BOTH, None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_no_ledger_is_charged_more_than_was_planned(tmp_path: Path, case: str) -> None:
    """Of every party and table, in every order of the accountant, over shards, aliases, solvers, networks and labels;
    and not much less, so that the check refuses little that would have been allowed.
    """
    sql, label, kind, settings, privacy, columns = CASES[case]
    world = World(tmp_path, Budget(epsilon=1e6, delta=1e-4, require_dp=False), columns)
    relation = world.federation().sql(sql, label=label)
    learner = kind(privacy=tp.Privacy(**privacy), **settings)
    noisy = "prediction_epsilon" in privacy
    plan = planned(learner, relation, predictions=1)
    learner.fit(relation)
    learner.evaluate(relation)
    most = {key: Spending() for key in world.spent()}
    for labels in (True, False):
        most = {key: cost + plan.costs(labels=labels).get(key, Spending()) for key, cost in most.items()}
    for key, spent in world.spent().items():
        pairs = [(spent.pure, most[key].pure), (spent.tail, most[key].tail)]
        pairs += [*zip(spent.gaussian, most[key].gaussian, strict=True)]
        assert all(found <= bound * (1 + 1e-9) for found, bound in pairs), key
        assert most[key].epsilon(1e-4) <= spent.epsilon(1e-4) * (1.02 if noisy or columns else 1.2) + 1e-3, key


JOB: dict[str, Any] = {"federation": "f", "sql": SQL, "label": "y", "learner": {}, "output": "run", "split": None}
job = msgspec.convert(JOB, Job)


def test_what_a_plan_cannot_know_is_a_warning(tmp_path: Path) -> None:
    """Whether labels cost anything, and what samples cost, which depends on the rows that take part."""

    def warnings(world: World, learner: Learner) -> str:
        planning = job.check(learner, world.federation().plan(SQL, "y").plan)
        return " ".join(_planned(planning, learner.privacy, lambda text: None, here=False).warnings)

    world = World(tmp_path, Budget(epsilon=1.6, require_dp=False))
    labels = tp.LinearRegression(privacy=tp.Privacy(label_epsilon=1.5, label_bounds=(-4.0, 4.0)))
    assert "only if labels cost nothing" not in warnings(world, labels)
    labels.fit(world.federation().sql(SQL, label="y"))
    assert "only if labels cost nothing" in warnings(world, labels)
    settings: dict[str, Any] = {"solver": "sgd", "rounds": 2, "local_steps": 2, "batch_size": 300}
    sampled = tp.LinearRegression(privacy=tp.Privacy(**FEATURES), **settings)
    told = warnings(world, sampled)
    assert "With the rows of the catalog: party 'shop', table 'visits': epsilon 0.1 is left" in told
    assert "The fit checks again with the rows that take part" in told


def test_rounds_that_parties_do_not_allow_are_not_counted(tmp_path: Path) -> None:
    """Where a limit leaves fewer rounds than usual, the plan has these, and so has the fit; a job that names more is
    refused by its plan as by the fit.
    """
    world = World(tmp_path, Budget(epsilon=1e6, delta=1e-4, require_dp=False), rounds=24)
    learner, plan = tp.LinearRegression(privacy=tp.Privacy(**FEATURES)), world.federation().plan(SQL, "y").plan
    assert learner.privacy is not None
    found = job.check(learner, plan).fit(learner.privacy)
    assert found.promise is not None
    assert found.promise.rounds == 2
    model = learner.fit(world.federation().sql(SQL, label="y"))
    assert len(model.history_) == 2
    for (party, table), spent in world.spent().items():
        assert spent.epsilon(1e-4) <= found.costs(labels=False)[party, table].epsilon(1e-4) * (1 + 1e-9)
    many = tp.LinearRegression(rounds=20, privacy=tp.Privacy(**FEATURES))
    with pytest.raises(tp.PrivacyError, match="a session gets 24 replies") as planned:
        job.check(many, plan)
    assert refusal(many, world.federation().sql(SQL, label="y")) == str(planned.value)


def refusal(learner: Learner, relation: Relation) -> str:
    with pytest.raises(tp.PrivacyError) as caught:
        learner.fit(relation)
    return str(caught.value)


@pytest.mark.parametrize("who", ["epsilon", "epsilon_per_caller"])
def test_a_fit_that_does_not_fit_spends_nothing(tmp_path: Path, who: str) -> None:
    """One error names party, table, what is left, what is needed and an epsilon that fits; nothing is spent."""
    world = World(
        tmp_path,
        Budget(epsilon=1.0, require_dp=False) if who == "epsilon" else Budget(epsilon_per_caller=1.0, require_dp=False),
    )
    relation = world.federation().sql(SQL, label="y")
    told = refusal(tp.LinearRegression(privacy=tp.Privacy(**BOTH)), relation)
    for party, table in (("shop", "visits"), ("east", "cards"), ("west", "cards")):
        assert f"party '{party}', table '{table}': epsilon 1 is left of the 1 that" in told
    assert re.search(r"and it needs [3-9]\.\d+", told)
    assert f"(policy rule {who})" in told
    assert set(world.spent().values()) == {Spending()}
    found = re.search(r"feature_epsilon=([\d.]+), prediction_epsilon=([\d.]+) would fit", told)
    assert found
    smaller = tp.Privacy(feature_epsilon=float(found[1]), prediction_epsilon=float(found[2]), delta=1e-4)
    tp.LinearRegression(privacy=smaller).fit(relation)
    assert all(0.9 < spent.epsilon(1e-6) <= 1.0 for spent in world.spent().values())
    assert "epsilon 0.0" in refusal(tp.LinearRegression(privacy=smaller), relation)  # left now


def test_what_was_spent_since_the_query_counts(tmp_path: Path) -> None:
    """The budget is asked for anew at each fit, also over one relation, and by another caller."""
    world = World(tmp_path, Budget(epsilon=2.5, require_dp=False))
    privacy = tp.Privacy(label_epsilon=1.5, label_bounds=(-4.0, 4.0))
    mine, other = (world.federation(caller).sql(SQL, label="y") for caller in ("analyst", "auditor"))
    tp.LinearRegression(privacy=privacy).fit(mine)
    larger = tp.Privacy(label_epsilon=2.0, label_bounds=(-4.0, 4.0))
    for relation in (mine, other):
        told = refusal(tp.LinearRegression(privacy=larger), relation)
        assert "epsilon 1 is left of the 2.5 that all callers together have" in told
        found = re.search(r"label_epsilon=([\d.]+) would fit", told)
        assert found
        assert float(found[1]) in (1.0, 1.5)  # what is left, or what is paid for


def test_labels_that_were_told_before_cost_nothing(tmp_path: Path) -> None:
    """Neither their caller nor another one is refused labels that are paid for; when their column has changed they are
    charged, and nothing else is charged that would not fit beside them.
    """
    world = World(tmp_path, Budget(epsilon=1.6, require_dp=False))
    privacy = tp.Privacy(label_epsilon=1.5, label_bounds=(-4.0, 4.0))
    for caller in ("analyst", "analyst", "auditor"):
        tp.LinearRegression(privacy=privacy).fit(world.federation(caller).sql(SQL, label="y"))
    assert world.spent()["shop", "visits"].pure == 1.5
    both = tp.Privacy(label_epsilon=1.5, label_bounds=(-4.0, 4.0), feature_epsilon=0.02, delta=1e-4)
    tp.LinearRegression(privacy=both).fit(
        world.federation().sql("SELECT c.z, v.y, v.x " + SQL[SQL.index("FROM") :], "y")
    )
    assert world.spent()["shop", "visits"].pure == pytest.approx(1.5, abs=1e-6)
    assert any(world.spent()["shop", "visits"].gaussian)
    visits = tables()["shop"]["visits"]
    changed = visits.set_column(4, "y", pa.array(visits["y"].to_numpy() + 1))
    pq.write_table(changed, tmp_path / "shop" / "visits.parquet")
    before = world.spent()
    told = refusal(
        tp.LinearRegression(privacy=both),
        World(tmp_path, Budget(epsilon=1.6, require_dp=False)).federation().sql(SQL, "y"),
    )
    assert "would spend" in told  # the party's own words: the labels were asked for first
    assert world.spent() == before


def test_train_counts_its_measurements(tmp_path: Path) -> None:
    """A job is refused before a party reads if the fit fits, but the predictions that it is measured by do not."""
    world = World(tmp_path, Budget(epsilon=1e6, delta=1e-4, require_dp=False))
    learner = tp.LinearRegression(privacy=tp.Privacy(**BOTH))
    relation = world.federation().sql(SQL, label="y")
    most = max(cost.epsilon(1e-4) for cost in planned(learner, relation).costs(labels=False).values())
    (tmp_path / "federation.toml").write_text('[parties]\nshop = "parquet:///shop"\n')
    (tmp_path / "job.toml").write_text(
        f'federation = "federation.toml"\nsql = "{SQL}"\nlabel = "y"\noutput = "run"\n[learner]\n'
        'kind = "LinearRegression"\n[learner.privacy]\nfeature_epsilon = 4\nprediction_epsilon = 2\ndelta = 1e-4\n'
    )
    tight = World(tmp_path, Budget(epsilon=most * 1.05, delta=1e-4, require_dp=False))
    tp.LinearRegression(privacy=tp.Privacy(**BOTH)).fit(tight.federation().sql(SQL, label="y"))
    for state in tmp_path.glob("*-state/*.sqlite"):
        state.unlink()
    tight = World(tmp_path, Budget(epsilon=most * 1.05, delta=1e-4, require_dp=False))
    run = Run.to_train(tmp_path / "job.toml", lambda event: None)
    run.federation.engine = tight.federation().engine
    with pytest.raises(tp.PrivacyError, match="So the fit and 2 predictions after it would be refused"):
        run.train()
    assert set(tight.spent().values()) == {Spending()}
    assert not (tmp_path / "run").exists()


def test_a_caller_sees_its_own_spending_and_the_sum(tmp_path: Path) -> None:
    """With a budget for each caller only, nothing of others is in the catalog; a common budget tells their sum."""
    privacy = tp.Privacy(label_epsilon=1.0, label_bounds=(-4.0, 4.0))
    world = World(tmp_path, Budget(epsilon_per_caller=3.0, require_dp=False))
    tp.LinearRegression(privacy=privacy).fit(world.federation("analyst").sql(SQL, label="y"))
    (own,) = funds_of(world.federation("analyst").plan(SQL, "y").plan)["shop", "visits"]
    (other,) = funds_of(world.federation("auditor").plan(SQL, "y").plan)["shop", "visits"]
    assert (own.left, len(own.labels), other.left, other.labels) == (2.0, 1, 3.0, ())
    common = World(tmp_path, Budget(epsilon=3.0, require_dp=False))
    (both,) = funds_of(common.federation("auditor").plan(SQL, "y").plan)["shop", "visits"]
    assert (both.whose, both.left) == ("all", 2.0)
    assert re.search(r"visits +.? *shop +.? *3,000 +.? *2 ", str(common.federation("auditor").catalog()))
