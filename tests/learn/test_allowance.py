"""Limits of parties: published, kept to by "auto", and held against settings before the first round."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.learn.solve.schedule import FEWEST_ROWS, RESERVE
from tablepuppet.party.ops import REGISTRY
from tablepuppet.party.service import Party
from tablepuppet.runs.events import Event
from tests.party.policed import audit_lines, federation, open_party, write_file

SQL = "SELECT credit, region, fraud FROM cards"


def limited(folder: Path, limit: int) -> Party:
    """A party that gives so many replies to a session."""
    return open_party(write_file(folder, limits=f"max_prediction_rounds = {limit}"))


def rounds_asked(folder: Path) -> int:
    """Ops of rounds that the party has answered or refused."""
    ops = [line["op"] for line in audit_lines(folder) if line["op"]]
    assert set(ops) <= set(REGISTRY)
    return sum(op.split(".")[0] in ("ridge", "model", "sgd", "lbfgs", "proximal") for op in ops)


def test_a_party_publishes_its_limit(tmp_path: Path) -> None:
    """The catalog of a session's tables says how many replies it gets; a database of this process has no limit."""
    party = limited(tmp_path, 77)
    assert [shard.max_rounds for shard in party.describe("analyst")] == [77]
    relation = federation(party).sql(SQL, label="fraud")
    assert relation.plan.tables["cards"].shards[0].max_rounds == 77


@pytest.mark.parametrize("learner", [tp.LogisticRegression, tp.MLPClassifier])
@pytest.mark.parametrize("solver", ["sgd", "lbfgs", "admm"])
def test_auto_fits_the_limit(tmp_path: Path, learner: Any, solver: str) -> None:
    """With a low limit a default fit ends by itself, validation included, and leaves replies for what follows."""
    relation = federation(limited(tmp_path, 60)).sql(SQL, label="fraud")
    model = learner(solver=solver).fit(relation, validation=relation)
    for _ in range(RESERVE - 2):
        model.predict(relation)


@pytest.mark.parametrize(
    ("learner", "settings", "need"),
    [
        (tp.LogisticRegression, {"solver": "sgd", "rounds": 20, "batch_size": 10}, 123),
        (tp.LogisticRegression, {"rounds": 61}, 61),
        (tp.LogisticRegression, {"solver": "admm", "rounds": 61}, 61),
        (tp.MLPClassifier, {"solver": "lbfgs", "rounds": 30}, 61),
        (tp.MLPClassifier, {"solver": "admm", "rounds": 60}, 61),
        (tp.MLPClassifier, {"solver": "sgd", "rounds": 60, "batch_size": 1000}, 61),
    ],
)
def test_settings_beyond_the_limit_are_refused_before_the_first_round(
    tmp_path: Path, learner: Any, settings: dict[str, Any], need: int
) -> None:
    """The error names party, table, limit, what the settings need and what to change; no round is asked for."""
    relation = federation(limited(tmp_path, 60)).sql(SQL, label="fraud")
    message = rf"party 'bank', table 'cards': a session gets 60 replies; .*could need {need} for .* rounds; set rounds="
    with pytest.raises(tp.PrivacyError, match=message) as caught:
        learner(**settings).fit(relation)
    assert caught.value.rule == "max_prediction_rounds"
    assert rounds_asked(tmp_path) == 0
    fits = re.search(r"set rounds=(\d+) or less", str(caught.value))
    assert fits
    learner(**settings | {"rounds": int(fits[1]), "tol": 0.0}).fit(relation)


@pytest.mark.parametrize(
    ("learner", "settings", "limit"),
    [
        (tp.LogisticRegression, {"solver": "admm", "tol": 0.0}, 22),
        (tp.LogisticRegression, {"solver": "lbfgs", "tol": 0.0, "rounds": 1}, 1),
        (tp.MLPClassifier, {"solver": "lbfgs", "hidden": (2,), "tol": 0.0}, 30),
        (tp.MLPClassifier, {"solver": "sgd", "hidden": (2,), "batch_size": 30}, 26),
    ],
)
def test_a_fit_that_a_limit_ends_is_not_told_to_set_rounds(
    tmp_path: Path, learner: Any, settings: dict[str, Any], limit: int
) -> None:
    """Where a party allows no further round, the warning names party, table and rule, not `rounds`; where it does, it
    is as ever.
    """
    told: list[Event] = []
    for most in (limit, 5000):
        relation = federation(limited(tmp_path, most)).sql(SQL, label="fraud")
        given = settings if most == limit else {"rounds": 2} | settings
        learner(callbacks=[told.append], **given).fit(relation)
    short, open_ = [event for event in told if event.name == "fit.short"]
    assert f"party 'bank' gives {limit} replies of table 'cards' to a session" in short.message
    assert "policy rule max_prediction_rounds" in short.message
    assert "set rounds" not in short.message
    assert (short.fields["limited_by"], open_.fields["limited_by"]) == ("bank", None)
    assert "set rounds above" in open_.message


def test_what_was_asked_before_counts(tmp_path: Path) -> None:
    """A second fit over the same session has what the first has left, and the error says how to begin anew."""
    party = limited(tmp_path, 30)
    relation = federation(party).sql(SQL, label="fraud")
    tp.LogisticRegression(solver="sgd", rounds=20, batch_size=1000).fit(relation)
    with pytest.raises(tp.PrivacyError, match=r"30 replies, of which \d+ are used; .* open the relation again"):
        tp.LogisticRegression(rounds=20).fit(relation)
    tp.LogisticRegression(rounds=20).fit(federation(party).sql(SQL, label="fraud"))


@pytest.mark.parametrize("limit", [3, 5, 6, 20, 25])
def test_few_replies_are_a_model_or_an_error(tmp_path: Path, limit: int) -> None:
    """A default network takes a round at least, of the replies that a party gives; else an error says why."""
    relation = federation(limited(tmp_path, limit)).sql("SELECT credit, fraud FROM cards", label="fraud")
    if limit < 6:
        with pytest.raises(
            tp.PrivacyError, match=r"a round of lbfgs may need 4 replies.* \(policy rule max_prediction"
        ):
            tp.MLPClassifier(hidden=(2,)).fit(relation)
    else:
        assert tp.MLPClassifier(hidden=(2,)).fit(relation).history_


def test_validation_counts(tmp_path: Path) -> None:
    """Rounds that would fit are too many where each is measured on validation rows too."""
    relation = federation(limited(tmp_path, 60)).sql(SQL, label="fraud")
    with pytest.raises(tp.PrivacyError, match="could need 80 for 40 rounds"):
        tp.LogisticRegression(rounds=40).fit(relation, validation=relation)


def test_noisy_steps_count(tmp_path: Path) -> None:
    """Rounds of private steps are held against the limit; a number that was left open is lowered to fit."""
    relation = federation(limited(tmp_path, 25)).sql("SELECT credit, fraud FROM cards", label="fraud")
    privacy = tp.Privacy(feature_epsilon=8.0)
    with pytest.raises(tp.PrivacyError, match=r"a session gets 25 replies; .* could need 41 for 40 rounds"):
        tp.LogisticRegression(solver="sgd", privacy=privacy, rounds=40, local_steps=1).fit(relation)
    model = tp.LogisticRegression(solver="sgd", privacy=privacy, local_steps=1).fit(relation)
    assert len(model.history_) == 4  # 25 replies less the reserve


def test_in_this_process_there_is_no_limit(tmp_path: Path) -> None:
    """Nothing is refused where the databases are the analyst's own."""
    from tests.relations import federation as own

    rows = {"x": [float(i % 7) for i in range(4 * FEWEST_ROWS)], "y": [float(i % 5) for i in range(4 * FEWEST_ROWS)]}
    fed = own(tmp_path, {"a": {"t": pa.table(rows)}})
    model = tp.LinearRegression(solver="sgd", rounds=600, batch_size=64).fit(fed.sql("SELECT x, y FROM t", label="y"))
    assert len(model.history_) == 600
