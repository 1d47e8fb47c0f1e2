"""Approval: nothing of a table is read for a job that its operator has not approved, and what was declared binds."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tablepuppet as tp
from tablepuppet.errors import ApprovalError
from tablepuppet.learn.learners import LEARNERS
from tablepuppet.party import approval
from tablepuppet.party.approval import ASKED, DECIDED, WORK, Decision, decide, list_jobs
from tablepuppet.party.ops import REGISTRY
from tablepuppet.party.report import spent
from tablepuppet.party.service import Party
from tests.party.policed import CANARY, audit_lines, federation, open_party, write_file
from tests.relations import in_process

SQL = "SELECT credit, fraud FROM cards WHERE day < 6"


@pytest.fixture
def bank(tmp_path: Path) -> Party:
    """A bank whose operator approves every job."""
    (tmp_path / "state").mkdir()
    table = "require_approval = true\nmatrix = true"
    return open_party(write_file(tmp_path, table=table, top='state_dir = "state"'))


def ask(party: Party, sql: str = SQL, learner: Any = None, purpose: str = "", caller: str = "analyst") -> tp.Relation:
    """Open a relation for a job."""
    fed = federation(party, caller)
    fed.purpose = purpose
    return fed.sql(sql, "fraud", learner=learner)


def approved(party: Party, folder: Path, **job: object) -> tp.Relation:
    """The relation of a job that was asked for, and then approved."""
    with pytest.raises(ApprovalError, match="waiting for approval of the operator of party 'bank'") as waits:
        ask(party, **job)  # type: ignore[arg-type]
    decide(folder / "state", name_in(waits.value), None)
    return ask(party, **job)  # type: ignore[arg-type]


def name_in(error: Exception) -> str:
    """The name of a job in an error."""
    found = re.search(r"job ([0-9a-f]{12})", str(error))
    assert found, error
    return found[1]


def test_a_job_waits_until_it_is_approved(bank: Party, tmp_path: Path) -> None:
    """Nothing is read before; then the same call goes through, and is in the log with the rule."""
    relation = approved(bank, tmp_path, learner=tp.LinearRegression(rounds=2), purpose="fraud")
    model = tp.LinearRegression(rounds=2).fit(relation)
    assert model.predict(relation) is not None
    [waited] = [line for line in audit_lines(tmp_path) if line["verb"] == "open" and line["outcome"] == "denied"]
    assert (waited["rule"], waited["rows"], waited["releases"]) == ("require_approval", 0, [])
    [listed] = list_jobs(tmp_path / "state")
    assert (listed.state, listed.job.caller, listed.job.purpose) == ("approved", "analyst", "fraud")
    assert listed.job.sql == ["SELECT credit, fraud FROM cards AS cards WHERE (day < 6)"]
    assert (listed.job.learner, listed.job.epsilon) == ("LinearRegression", None)


def test_waiting_uses_up_no_limit(tmp_path: Path) -> None:
    """A filter counts when it is used, not when it waits."""
    (tmp_path / "state").mkdir()
    party = open_party(
        write_file(tmp_path, limits="max_filters = 1", table="require_approval = true", top='state_dir = "state"')
    )
    with pytest.raises(ApprovalError):
        ask(party, "SELECT credit, fraud FROM cards WHERE day < 3")
    approved(party, tmp_path)


def test_an_approval_holds_for_exactly_one_job(bank: Party, tmp_path: Path) -> None:
    """Another filter, column, learner, purpose or caller is another job."""
    linear = tp.LinearRegression(rounds=1)
    approved(bank, tmp_path, learner=linear, purpose="fraud")
    others: list[dict[str, object]] = [
        {"sql": SQL.replace("6", "5"), "learner": linear, "purpose": "fraud"},
        {"sql": SQL.replace("credit,", "credit, open,"), "learner": linear, "purpose": "fraud"},
        {"learner": tp.MLPRegressor(), "purpose": "fraud"},
        {"learner": linear, "purpose": "marketing"},
        {"learner": linear, "purpose": "fraud", "caller": "auditor"},
    ]
    for each in others:
        with pytest.raises(ApprovalError, match="waiting"):
            ask(bank, **each)  # type: ignore[arg-type]
    assert [each.state for each in list_jobs(tmp_path / "state")] == ["waiting"] * 5 + ["approved"]


@pytest.mark.parametrize(
    ("declared", "used"),
    [(None, tp.LinearRegression()), (tp.MLPRegressor(), tp.LinearRegression()), (tp.LinearRegression(), "matrix")],
)
def test_ops_of_another_learner_are_refused(bank: Party, tmp_path: Path, declared: object, used: object) -> None:
    """What runs is what was declared, whatever is asked for."""
    relation = approved(bank, tmp_path, learner=declared)
    with pytest.raises(tp.PrivacyError, match=r"is approved for \w+, which does not ask for op"):
        relation.matrix().sum(axis=0).compute() if used == "matrix" else used.fit(relation)  # type: ignore[attr-defined]


def test_columns_that_the_operator_did_not_see_do_not_leave(tmp_path: Path) -> None:
    """Ids stand beside what a job reads, so that no approval covers them."""
    (tmp_path / "state").mkdir()
    columns = 'card = "id"\ncredit = "feature"\nday = "filter"\nfraud = "label"'
    party = open_party(
        write_file(tmp_path, table="require_approval = true", top='state_dir = "state"', columns=columns)
    )
    learner = tp.LinearRegression(rounds=1)
    relation = approved(party, tmp_path, learner=learner)
    learner.fit(relation)
    with pytest.raises(tp.PrivacyError, match=r"does not ask for op 'rows\.ids'"):
        learner.predict(relation, ids=["cards.card"])


def test_statistics_need_no_learner(bank: Party, tmp_path: Path) -> None:
    """A relation that is opened without a learner is for looking at."""
    assert approved(bank, tmp_path).describe() is not None


def test_an_approval_ends_by_date_also_for_open_sessions(
    bank: Party, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the day nothing is answered; the job waits again, and can be approved again."""
    relation = approved(bank, tmp_path)
    later = (datetime.now(UTC) + timedelta(days=31)).isoformat(timespec="seconds")
    monkeypatch.setattr(approval, "_now", lambda: later)
    with pytest.raises(tp.PrivacyError, match="the approval has ended or was withdrawn"):
        relation.describe()
    with pytest.raises(ApprovalError, match="again: the approval has ended"):
        ask(bank)
    assert [each.state for each in list_jobs(tmp_path / "state")] == ["waiting"]


def test_a_withdrawn_approval_ends_at_once(bank: Party, tmp_path: Path) -> None:
    """Also for what is kept: a model of the table can be used no more."""
    learner = tp.LinearRegression(rounds=2)
    relation = approved(bank, tmp_path, learner=learner)
    learner.fit(relation)
    decide(tmp_path / "state", list_jobs(tmp_path / "state")[0].job.id, None, deny=True)
    with pytest.raises(tp.PrivacyError, match="withdrawn"):
        learner.predict(relation)
    with pytest.raises(ApprovalError, match="its operator has refused job"):
        ask(bank, learner=learner)


def private_bank(folder: Path, epsilon: float = 100.0) -> Party:
    """A bank that demands noise and approval."""
    (folder / "state").mkdir()
    columns = 'credit = { uses = ["feature"], bounds = [-1100.0, 1100.0] }\nfraud = "label"\nday = "filter"'
    file = write_file(
        folder,
        table=f"require_approval = true\nbudget = {{ epsilon = {epsilon}, delta = 1e-5 }}",
        top='state_dir = "state"',
        columns=columns,
    )
    return open_party(file)


def test_no_more_epsilon_is_spent_than_was_approved(tmp_path: Path) -> None:
    """A fit with the declared noise goes through once; one with less noise, or once more, does not."""
    party = private_bank(tmp_path)
    noise = tp.Privacy(feature_epsilon=2.0, prediction_epsilon=2.0, label_epsilon=1.0, label_bounds=(0.0, 1.0))
    learner = tp.LinearRegression(privacy=noise, rounds=2)
    relation = approved(party, tmp_path, learner=learner)
    [job] = [each.job for each in list_jobs(tmp_path / "state")]
    assert job.epsilon is not None
    assert 4.0 < job.epsilon < 8.0
    more = tp.LinearRegression(privacy=replace(noise, feature_epsilon=40.0), rounds=2)
    with pytest.raises(tp.PrivacyError, match=r"approved for epsilon .* and this would spend"):
        more.fit(relation)
    learner.fit(relation)
    with pytest.raises(tp.PrivacyError, match=r"approved for epsilon .* ask for less, or ask the party's operator"):
        learner.fit(relation)
    decide(tmp_path / "state", job.id, None)  # a new allowance
    learner.fit(ask(party, learner=learner))
    with pytest.raises(ApprovalError):
        ask(party, learner=more)
    assert [account.caller for account in spent(tmp_path / "party.toml")] == ["", "analyst"]


def test_an_approval_that_ends_while_a_job_runs(bank: Party, tmp_path: Path) -> None:
    """The job ends at the next op, with what to do; asked for again it waits, and goes through once it is approved."""
    learner = tp.LogisticRegression(rounds=50, solver="sgd", tol=0.0)
    with pytest.raises(ApprovalError) as waits:
        ask(bank, learner=learner)
    until = datetime.now(UTC) + timedelta(seconds=3)
    decide(tmp_path / "state", name_in(waits.value), until.isoformat(timespec="seconds"))
    relation = ask(bank, learner=learner)
    rounds = []

    def outlast(event: tp.Event) -> None:
        if event.name == "fit":
            rounds.append(event)
            time.sleep(max(0.0, (until - datetime.now(UTC)).total_seconds()))

    relation.events.subscribe(outlast)
    with pytest.raises(ApprovalError, match=r"ended or was withdrawn, so the job ends here; run the same command"):
        learner.fit(relation)
    assert 0 < len(rounds) < 50
    with pytest.raises(ApprovalError, match="again: the approval has ended"):
        ask(bank, learner=learner)
    decide(tmp_path / "state", name_in(waits.value), None)
    learner.set_params(rounds=1).fit(ask(bank, learner=learner))


SEARCHED = tp.LinearRegression(
    privacy=tp.Privacy(feature_epsilon=2.0, prediction_epsilon=2.0, label_epsilon=1.0, label_bounds=(0.0, 1.0)),
    rounds=2,
)


@pytest.mark.parametrize(
    "search",
    [tp.GridSearch(SEARCHED, {"l2": [0.1, 1.0]}, folds=2), tp.RandomSearch(SEARCHED, {"l2": [0.1, 1.0]}, 2, folds=2)],
)
def test_an_approval_is_for_a_whole_search(tmp_path: Path, search: Any) -> None:
    """The operator is shown what all fits spend together, and they do not run out of it; for the learner alone less is
    asked, and the search is refused before it spends anything.
    """
    party = private_bank(tmp_path)
    alone = approved(party, tmp_path, learner=SEARCHED)
    with pytest.raises(tp.PrivacyError, match=r"the search spends up to epsilon .* nothing was spent on it. Open the"):
        search.fit(alone)
    assert [account.spent for account in spent(tmp_path / "party.toml")] == [0.0]
    relation = approved(party, tmp_path, learner=search)
    assert [each.job.learner for each in list_jobs(tmp_path / "state")] == ["LinearRegression"] * 2
    most = max(each.job.epsilon or 0.0 for each in list_jobs(tmp_path / "state"))
    search.fit(relation)
    search.evaluate(relation)
    [everybody, *_] = spent(tmp_path / "party.toml")
    assert 0.5 * most < everybody.spent < most


def test_a_search_that_exceeds_a_budget_is_refused_before_it_begins(tmp_path: Path) -> None:
    """Not in the middle, when part of it was spent."""
    search = tp.GridSearch(SEARCHED, {"l2": [0.1, 1.0]}, folds=5)
    relation = approved(private_bank(tmp_path, epsilon=15.0), tmp_path, learner=search)
    with pytest.raises(tp.PrivacyError, match=r"is left of the 15 .* So the search would be refused before its end"):
        search.fit(relation)
    assert [account.spent for account in spent(tmp_path / "party.toml")] == [0.0]


def test_all_parties_that_wait_are_named(tmp_path: Path) -> None:
    """One error has the jobs of all operators, so that all can be asked at once."""
    parties = {}
    for name in ("north", "south"):
        (tmp_path / name / "state").mkdir(parents=True)
        file = write_file(tmp_path / name, table="require_approval = true", top='state_dir = "state"')
        file.write_text(file.read_text().replace('name = "bank"', f'name = "{name}"'))
        parties[name] = open_party(file)
    fed = tp.Federation(dict.fromkeys(parties, "parquet:///unused"))
    fed.engine = in_process(parties, "analyst")
    with pytest.raises(ApprovalError) as waits:
        fed.sql("SELECT credit FROM cards")
    for name in parties:
        assert re.search(rf"operator of party '{name}', job [0-9a-f]{{12}}", str(waits.value))
        decide(tmp_path / name / "state", list_jobs(tmp_path / name / "state")[0].job.id, None)
    assert len(fed.sql("SELECT credit FROM cards")) > 0


def test_every_learner_and_op_has_its_work() -> None:
    """A new learner or op that nobody listed is refused where approval is needed; this test asks to list it."""
    assert set(LEARNERS) | {"", "matrix"} == set(WORK)
    listed = set().union(*WORK.values())
    assert {name for name in REGISTRY if name not in listed and name.partition(".")[0] not in listed} == {"rows.ids"}
    assert {name for name in listed if not any(op == name or op.startswith(f"{name}.") for op in REGISTRY)} == set()


LEARNED: dict[str, Any] = {
    **{
        f"{kind.__name__}, {solver}": partial(kind, solver=solver, rounds=1)
        for kind in (tp.LogisticRegression, tp.MLPClassifier)
        for solver in ("lbfgs", "admm", "sgd")
    },
    "trees": partial(tp.GradientBoostingClassifier, max_iter=2, min_samples_leaf=1),
}


@pytest.mark.parametrize("name", LEARNED)
def test_learners_run_under_their_approval(bank: Party, tmp_path: Path, name: str) -> None:
    """No op that a learner needs is missing in its list."""
    learner = LEARNED[name]()
    relation = approved(bank, tmp_path, learner=learner)
    learner.fit(relation)
    learner.evaluate(relation)
    assert len(learner.predict(relation)) == len(relation)


@pytest.mark.parametrize("name", [ASKED, DECIDED])
def test_a_damaged_file_is_refused(bank: Party, tmp_path: Path, name: str) -> None:
    """Neither a party nor its operator's commands go on with other approvals than were given."""
    approved(bank, tmp_path)
    path = tmp_path / "state" / name
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(tp.ConfigError, match="is damaged: `tablepuppet party restore` brings it back"):
        list_jobs(tmp_path / "state")
    if name == DECIDED:
        with pytest.raises(tp.PartyError, match="cannot read which jobs are approved, so it refuses"):
            ask(bank)
    path.unlink()
    assert [each.state for each in list_jobs(tmp_path / "state")] == ["waiting" if name == DECIDED else "approved"]
    approved(bank, tmp_path) if name == DECIDED else ask(bank)


def test_callers_cannot_fill_the_list(bank: Party, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many jobs of one caller wait; a query that nobody could read is refused."""
    monkeypatch.setattr(approval, "MOST_WAITING", 2)
    for number in range(2):
        with pytest.raises(ApprovalError):
            ask(bank, SQL.replace("6", str(number)))
    with pytest.raises(tp.PrivacyError, match="2 other jobs of caller 'analyst' wait"):
        ask(bank)
    with pytest.raises(tp.PrivacyError, match="too long for its operator to read"):
        ask(bank, f"SELECT credit, fraud FROM cards WHERE region <> '{'x' * 30_000}'")
    assert len(list_jobs(tmp_path / "state")) == 2


def test_names_and_days_are_checked(bank: Party, tmp_path: Path) -> None:
    """A job that does not exist, and a day that is past, are refused with what to do."""
    with pytest.raises(ApprovalError) as waits:
        ask(bank)
    state, name = tmp_path / "state", name_in(waits.value)
    with pytest.raises(tp.ConfigError, match="there is no job whose name begins with 'zz'"):
        decide(state, "zz", None)
    with pytest.raises(tp.ConfigError, match="is past; give a day to come"):
        decide(state, name, "2020-01-01")
    with pytest.raises(tp.ConfigError, match="such as 2026-12-31"):
        decide(state, name, "soon")
    assert decide(state, name, "2999-12-31").until == "3000-01-01T00:00:00+00:00"
    assert ask(bank)._session is not None


def test_a_job_is_asked_for_again_after_a_restart(bank: Party, tmp_path: Path) -> None:
    """Approvals and jobs outlive the process; what is shown holds literals, and the log does not."""
    with pytest.raises(ApprovalError) as waits:
        ask(bank, f"SELECT credit, fraud FROM cards WHERE region <> '{CANARY}'")
    decide(tmp_path / "state", name_in(waits.value), None)
    again = open_party(tmp_path / "party.toml")
    ask(again, f"SELECT credit, fraud FROM cards WHERE region <> '{CANARY}'")
    assert CANARY in list_jobs(tmp_path / "state")[0].job.sql[0]
    assert CANARY not in (tmp_path / "audit.jsonl").read_text()
    assert isinstance(again._guard._approvals.decisions().popitem()[1], Decision)


def test_a_purpose_may_be_demanded(tmp_path: Path) -> None:
    """Without one nothing is opened; the catalog is answered all the same."""
    party = open_party(write_file(tmp_path, top="require_purpose = true"))
    with pytest.raises(tp.PrivacyError, match=r"give a purpose, in the federation or job file"):
        ask(party, purpose=" ")
    assert len(ask(party, purpose="fraud")) > 0
    assert [line["rule"] for line in audit_lines(tmp_path) if line["outcome"] == "denied"] == ["require_purpose"]


@pytest.mark.parametrize("kind", ["SplitNNClassifier", "FedOnceClassifier", "TabVFLClassifier"])
def test_networks_across_parties_run_under_their_approval(tmp_path: Path, kind: str) -> None:
    """The same for learners that release embeddings."""
    pytest.importorskip("torch")
    (tmp_path / "state").mkdir()
    table = "require_approval = true\nembeddings = { max_width = 1000, max_epochs = 100000 }"
    party = open_party(write_file(tmp_path, table=table, top='state_dir = "state"'))
    learner = LEARNERS[kind](epochs=1)
    relation = approved(party, tmp_path, learner=learner)
    learner.fit(relation)
    assert len(learner.predict(relation)) == len(relation)
