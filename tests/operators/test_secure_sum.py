"""Secure sums between a coordinator and shards: what it sees, what it is refused, and how a session ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.stats import chisquare

import tablepuppet as tp
from tablepuppet.algebra.distinct import DistinctRows
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.policy import TableRule
from tablepuppet.party.request import Reply, Request, Step
from tablepuppet.wire.engine import Engine, InProcessTransport
from tablepuppet.wire.traffic import MessageSizes
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import Message, federation, keep, party_of, record_wire, write_party
from tests.wire.losing import LosingParty, losing
from tests.wire.services import KEY

SQL = f"SELECT {ALL}, o.paid {JOIN}"
SECURE = tp.Privacy(secure_sum=True)
SUMMED = ("matrix.gram", "model.gradient", "ridge.consensus")


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), shop(3, together=True), wire="float64")


@pytest.fixture
def relation(fed: tp.Federation) -> tp.Relation:
    return fed.sql(SQL, label="paid")


def sums(messages: list[Message]) -> Iterator[Mapping[str, Any]]:
    """Replies to ops that shards answer with sums."""
    for message in messages:
        if message.request.op in SUMMED:
            assert message.reply is not None
            yield message.reply


def words_of(messages: list[Message]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Their arrays as bytes."""
    arrays = [value for reply in sums(messages) for name, value in reply.items() if name != "bits"]
    return np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])


def is_uniform(found: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
    return bool(chisquare(np.bincount(found, minlength=256)).pvalue > 1e-6)


@pytest.mark.parametrize("settings", [{}, {"solver": "sgd", "rounds": 2, "batch_size": 8}, {"inner_rounds": 4}])
def test_what_the_coordinator_sees_is_uniform(
    relation: tp.Relation, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """All that shards tell as sums are words whose bytes are uniform; without secure sums they are not."""
    messages = record_wire(monkeypatch)
    tp.LinearRegression(**settings).fit(relation)
    assert not is_uniform(words_of(messages))
    plain = words_of(messages)
    messages.clear()
    tp.LinearRegression(privacy=SECURE, **settings).fit(relation)
    assert all(set(reply["bits"]) == set(reply) - {"bits"} for reply in sums(messages))
    assert all(value.dtype == np.uint64 for reply in sums(messages) for name, value in reply.items() if name != "bits")
    assert is_uniform(words_of(messages))
    assert len(words_of(messages)) / len(plain) == pytest.approx(1.0, rel=0.35)  # eight bytes a number, some rounds


def test_two_runs_tell_other_words(fed: tp.Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same data, settings and questions in two runs: no word of a shard comes again, the differences of the words
    are uniform too, and the sums over shards are the same.
    """
    messages = record_wire(monkeypatch)
    views = []
    for _ in range(2):
        messages.clear()
        tp.LinearRegression(solver="sgd", rounds=2, batch_size=8, privacy=SECURE).fit(fed.sql(SQL, label="paid"))
        views.append(np.concatenate([_words(message) for message in _in_order(messages)]))
    first, second = (view.reshape(-1, 3) for view in views)  # (numbers, shards)
    assert not np.any(first == second)
    assert is_uniform((first - second).reshape(-1).view(np.uint8))
    assert np.array_equal(first.sum(axis=1, dtype=np.uint64), second.sum(axis=1, dtype=np.uint64))


def _in_order(messages: list[Message]) -> list[list[Message]]:
    """Masked replies by table and number, each of all three shards."""
    found: dict[tuple[str, int], list[Message]] = {}
    for message in messages:
        if message.request.op in SUMMED:
            found.setdefault((message.request.table, message.request.arguments["secure"]["number"]), []).append(message)
    return [sorted(found[key], key=lambda message: message.party) for key in sorted(found)]


def _words(told: list[Message]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """(numbers, shards) of one masked sum, in one row."""
    replies = [message.reply or {} for message in told]
    names = sorted(set(replies[0]) - {"bits"})
    return np.concatenate([np.stack([reply[name].ravel() for reply in replies], 1) for name in names]).ravel()


def test_shards_alone_are_not_in_the_sum(relation: tp.Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry of a shard's Gram matrix is among the words it tells, at the scale that it was told."""
    messages = record_wire(monkeypatch)
    tp.LinearRegression(rounds=1).fit(relation)
    first = {(m.party, m.request.table): m.reply["gram"] for m in messages if m.reply and m.request.op == "matrix.gram"}
    messages.clear()
    tp.LinearRegression(rounds=1, privacy=SECURE).fit(relation)
    for message in messages:
        if message.reply and message.request.op == "matrix.gram":
            bits = message.reply["bits"]["gram"]
            told = np.ldexp(message.reply["gram"].view(np.int64).astype(np.float64), -bits)
            assert np.min(np.abs(told - first[message.party, message.request.table])) > 1e-6


@pytest.mark.parametrize("make", [tp.LinearRegression, tp.MLPRegressor])
def test_no_batch_is_of_one_shard(relation: tp.Relation, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    """The sum over a batch with rows of one shard would be that shard's, so batches grow until they have three."""
    messages = record_wire(monkeypatch)
    make(solver="sgd", rounds=1, batch_size=1, privacy=SECURE).fit(relation)
    shards: dict[tuple[str, int], int] = {}
    for message in messages:
        if message.request.op == "model.gradient" and "places" in message.request.arguments:
            told = message.request.arguments
            key = (message.request.table, told["secure"]["number"])
            shards[key] = shards.get(key, 0) + bool(len(told["places"]))
    assert set(shards.values()) == {3}


def ask(relation: tp.Relation, op: str, **arguments: Any) -> list[Mapping[str, Any]]:
    """Ask the shards of orders for something, as no learner does."""
    return relation.client.ask(op, lambda alias, _: arguments if alias == "o" else None).read()["o"]


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("matrix.gram", {"joined_rows": 10}),
        ("model.parameters", {"model": "m"}),
        ("ridge.start", {"joined_rows": 10, "model": "m", "spec": Linear(1)}),
    ],
)
def test_with_a_roster_nothing_leaves_unmasked(relation: tp.Relation, op: str, arguments: dict[str, Any]) -> None:
    """Once shards have a roster, a coordinator that asks for a sum, for parameters or for a model of one shard alone is
    refused.
    """
    model = tp.LinearRegression(privacy=SECURE).fit(relation)
    encoding = {} if op == "model.parameters" else {"encoding": model.encoding_.id}
    with pytest.raises(tp.PrivacyError, match=r"only within a sum .*secure_sum"):
        ask(relation, op, **arguments, **encoding)


def test_an_op_that_is_no_sum_cannot_be_masked(relation: tp.Relation) -> None:
    """Asking for masked predictions is an error of the coordinator."""
    model = tp.LinearRegression(privacy=SECURE).fit(relation)
    asked = {"number": 99, "bits": {"outputs": 1}}
    with pytest.raises(tp.PartyError, match="argument 'secure'"):
        ask(relation, "model.apply", encoding=model.encoding_.id, spec=Linear(1), theta=np.zeros(2), secure=asked)


def test_a_shard_without_rows_is_in_no_sum(relation: tp.Relation) -> None:
    """It would add nothing that hides its peers, so it refuses a relation in which none of its rows take part."""
    model = tp.LinearRegression(privacy=SECURE).fit(relation)
    ask(relation, "rows.use", view="none", chosen=np.zeros(0, np.int32), counts=np.zeros(0, np.uint8))
    asked = {"number": 99, "bits": {"gram": 1}}
    with pytest.raises(tp.PrivacyError, match=r"none of its rows take part.*secure_sum"):
        ask(relation, "matrix.gram", view="none", encoding=model.encoding_.id, joined_rows=10, secure=asked)


def test_a_mask_is_not_used_again(relation: tp.Relation) -> None:
    """A coordinator that asks under a number of before, to take the difference, is refused."""
    model = tp.LinearRegression(privacy=SECURE).fit(relation)
    rows = relation.mapping.tables["o"]
    asked = {"number": 1, "bits": {"sums": 10}}
    with pytest.raises(tp.PrivacyError, match="one mask for two"):
        relation.client.ask(
            "model.gradient",
            lambda alias, shard: {
                "encoding": model.encoding_.id, "spec": Linear(1), "rows": np.zeros(rows.rows)[shard.slice],
                "secure": asked,
            }
            if alias == "o"
            else None,
        ).read()  # fmt: skip


@pytest.fixture
def strict(fed: tp.Federation) -> Iterator[tp.Federation]:
    """The federation, with parties whose policies demand secure sums."""
    parties = [party_of(fed.engine, name) for name in fed.engine.parties]
    before = [party._guard.policy for party in parties]
    for party in parties:
        party._guard.policy = replace(party._guard.policy, others=TableRule(secure_sum=True))
    yield fed
    for party, policy in zip(parties, before, strict=True):
        party._guard.policy = policy


def refused_unasked(relation: tp.Relation, told: str, **settings: Any) -> None:
    """A fit is refused by the rule `secure_sum`, before rows are joined or anything is asked."""
    before = relation._session.engine.traffic.to_list()
    with pytest.raises(tp.PrivacyError, match=told) as caught:
        tp.LinearRegression(**settings).fit(relation)
    assert "party 'owner0', table 'orders'" in str(caught.value)
    assert caught.value.rule == "secure_sum"
    assert "mapping" not in relation.__dict__
    assert relation._session.engine.traffic.to_list() == before


@pytest.mark.parametrize("privacy", [None, tp.Privacy(label_epsilon=1.0, label_bounds=(0.0, 1.0))])
def test_a_policy_demands_secure_sums(strict: tp.Federation, privacy: tp.Privacy | None) -> None:
    """A fit without them is refused before any work, and told what to set."""
    refused_unasked(strict.sql(SQL, label="paid"), r"privacy=tp.Privacy\(secure_sum=True\)", privacy=privacy)
    assert tp.LinearRegression(privacy=SECURE).fit(strict.sql(SQL, label="paid")).converged_


def test_a_table_without_features_demands_none(strict: tp.Federation) -> None:
    """Its labels and keys are no sums: a fit from others' columns needs no secure sums for it."""
    parties = [party_of(strict.engine, name) for name in strict.engine.parties]
    for party in parties:
        tables = {"orders": TableRule(secure_sum=True)}
        party._guard.policy = replace(party._guard.policy, tables=tables, others=TableRule())
    assert tp.LinearRegression().fit(strict.sql(f"SELECT i.weight, o.paid {JOIN}", label="paid")).converged_


def test_a_policy_is_enforced_by_the_party(strict: tp.Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that does not care what parties say they demand gets no sum."""
    monkeypatch.setattr("tablepuppet.learn.learners.planner.check_sums_demanded", lambda plan, privacy: None)
    with pytest.raises(tp.PrivacyError, match=r"sums over its rows leave only .*secure_sum=True"):
        tp.LinearRegression().fit(strict.sql(SQL, label="paid"))


def released(fed: tp.Federation) -> set[str]:
    return {entry["release"] for entry in fed.traffic if entry["direction"] == "up"}


def test_cells_do_not_leave_beside_secure_sums(tmp_path: Path) -> None:
    """With a roster: `collect` is an error, `cost` and k-means do not consider cells, and parties refuse them."""
    fed = federation(tmp_path, shop(3, together=True), wire="float64")
    relation = fed.sql(SQL)
    with pytest.raises(tp.LearnError, match=r'plan="collect" brings the cells.*secure_sum=True'):
        relation.matrix(secure_sum=True, plan="collect")
    x = relation.matrix(secure_sum=True)
    x.source.placement._spent = 1e9  # as if the steps so far had cost much
    x.source.placement.sizes = {
        alias: replace(size, is_remote=True) for alias, size in x.source.placement.sizes.items()
    }
    for _ in range(2):
        x.T @ np.ones(len(relation))
    assert tp.linalg.kmeans(x, k=2, runs=1, max_iter=2).centres.shape == (2, x.shape[1])
    assert "VALUES" not in released(fed)
    assert not DistinctRows(x, np.ones((x.shape[1], 1)), 32).products.cells
    with pytest.raises(tp.PrivacyError, match=r"'orders': its cells may not be collected.*policy rule secure_sum"):
        relation.matrix(plan="collect") @ np.ones(x.shape[1])
    for alias in ("o", "c"):
        with pytest.raises(tp.PrivacyError, match=r"does not release VALUES \(policy rule secure_sum\)"):
            x.source.placement._collect([alias])
    plain = fed.sql(SQL).matrix(plan="collect")  # a session without rosters
    plain @ np.ones(x.shape[1])
    assert "VALUES" in released(fed)


def test_a_policy_of_sums_releases_no_cells(strict: tp.Federation) -> None:
    """Neither all cells of a table nor those of a column, whatever the coordinator asks; the catalog says so."""
    relation = strict.sql(SQL)
    [shard, *_] = relation.plan.tables["c"].shards
    assert (shard.values, shard.cross_statistics) == ((), False)
    x = relation.matrix(plan="collect")
    with pytest.raises(tp.PrivacyError, match=r"party 'owner0', table 'orders': its cells may not be collected"):
        x @ np.ones(x.shape[1])
    with pytest.raises(tp.PrivacyError, match=r"does not release VALUES \(policy rule secure_sum\)"):
        x.source.placement._collect(["o"])
    with pytest.raises(tp.PrivacyError, match=r"policy rule secure_sum"):
        relation.correlation()
    with pytest.raises(tp.PrivacyError, match=r"sums over its rows leave only .* take rel.matrix\(secure_sum=True\)"):
        relation.matrix().T @ np.ones(len(relation))
    with pytest.raises(tp.PrivacyError, match=r"does not release COLUMNS \(policy rule secure_sum\)"):
        ask(relation, "columns.numbers", columns=["price"])


def test_a_policy_demands_three_shards(strict: tp.Federation) -> None:
    """Where the query names one shard, there is nothing to hide it among."""
    alone = strict.sql("SELECT price, paid FROM owner0.orders", label="paid")
    refused_unasked(alone, r"within a sum over three or more shards, and .*1 shards .*Add shards", privacy=SECURE)


def test_a_policy_demands_three_shards_with_rows(strict: tp.Federation) -> None:
    """Where rows of one shard only take part, that is known after the join, and before anything is learned."""
    relation = strict.sql(SQL, label="paid")
    orders = relation.mapping.tables["o"]
    kept = np.zeros(orders.rows, bool)
    kept[orders.shards[0].slice] = True
    alone = tp.Relation(relation._session, relation.joined_rows.where("o", kept))
    before = strict.traffic
    with pytest.raises(tp.PrivacyError, match=r"table 'orders': .*rows of 1 shards in the relation \(owner0\)"):
        tp.LinearRegression(privacy=SECURE).fit(alone)
    assert strict.traffic == before


def test_two_shards_are_refused(tmp_path: Path) -> None:
    """Before anything is asked of a party, with advice."""
    fed = federation(tmp_path, shop(2, together=True))
    relation = fed.sql(SQL, label="paid")
    assert len(relation)
    before = fed.traffic
    with pytest.raises(tp.PrivacyError, match=r"rows of 2 shards .*It takes 3 or more: add a shard"):
        tp.LinearRegression(privacy=SECURE).fit(relation)
    assert fed.traffic == before


def test_shards_here_and_elsewhere_are_refused(tmp_path: Path) -> None:
    """A database in this process has no certificate that parties elsewhere know: refused before a key is made."""
    urls = {name: write_party(tmp_path, name, tables) for name, tables in shop(3, together=True).items()}
    fed, parties = losing(urls)
    here = party_of(tp.Federation({"owner1": urls["owner1"]}).engine, "owner1")
    here._blinding_key = KEY
    fed.engine = Engine({"owner1": InProcessTransport(here), **{name: parties[name] for name in ("owner0", "owner2")}})
    told = r"'orders' has shards in this process \(owner1\) and elsewhere \(owner0, owner2\).*party serve"
    with pytest.raises(tp.PrivacyError, match=told):
        tp.LinearRegression(privacy=SECURE).fit(fed.sql(SQL, label="paid"))
    assert not any(op.startswith("secure.") for party in parties.values() for _, ops, _ in party.asked for op in ops)


def test_tables_of_one_shard_need_no_sums(tmp_path: Path) -> None:
    """Nothing is done, an event says so, and the model is the one without."""
    fed = federation(tmp_path, shop(1))
    events: list[tp.Event] = []
    fed.events.subscribe(events.append)
    relation = fed.sql(SQL, label="paid")
    secured = tp.LinearRegression(privacy=SECURE).fit(relation)
    [event] = [event for event in events if event.name == "secured"]
    assert event.fields["tables"] == []
    assert event.kind == "warning"
    assert "secure_sum does nothing here: no table with features has several shards" in event.message
    assert not secured.privacy_["secure_sum"]
    for told in (str(secured.privacy_), secured.privacy_["promise"], secured.privacy_["assumptions"]):
        assert "Secure sums: none, as no table" in told
        assert "sum only" not in told
    plain = tp.LinearRegression().fit(relation)
    assert all(np.array_equal(secured.coef_[name], value) for name, value in plain.coef_.items())


def test_another_roster_is_a_new_run(tmp_path: Path) -> None:
    """Rows of three of four shards, after all four have agreed: refused in this session, fine in a new one."""
    fed = federation(tmp_path, shop(4, together=True))
    relation = fed.sql(SQL, label="paid")
    tp.LinearRegression(privacy=SECURE).fit(relation)
    orders = relation.mapping.tables["o"]
    kept = np.ones(orders.rows, bool)
    kept[orders.shards[0].slice] = False
    fewer = tp.Relation(relation._session, relation.joined_rows.where("o", kept))
    with pytest.raises(tp.PrivacyError, match="another roster is a new run"):
        tp.LinearRegression(privacy=SECURE).fit(fewer)
    again = fed.sql(SQL, label="paid")
    anew = tp.Relation(again._session, again.joined_rows.where("o", kept))
    assert tp.LinearRegression(privacy=SECURE).fit(anew).converged_


def test_a_coordinator_that_asks_for_a_second_roster(tmp_path: Path) -> None:
    """Three of four keys, told to the parties directly in the session of a fit: each refuses, and its masks stay."""
    relation = federation(tmp_path, shop(4, together=True)).sql(SQL, label="paid")
    model = tp.LinearRegression(privacy=SECURE).fit(relation)
    hellos = [(told["certificates"], told["public"], told["signature"]) for told in ask(relation, "secure.hello")]
    for fewer in (hellos[:3], hellos[1:]):
        with pytest.raises(tp.PrivacyError, match=r"a second roster in one session is refused|holds no key"):
            ask(relation, "secure.roster", hellos=fewer)
    again = tp.LinearRegression(privacy=SECURE).fit(relation)
    for name, value in model.coef_.items():
        np.testing.assert_allclose(again.coef_[name], value, atol=1e-9)


def test_a_session_is_learned_from_twice(relation: tp.Relation) -> None:
    """The roster stays, numbers rise: the second model is the first one, also if it is not asked for secure sums."""
    first, again, plain = (tp.LinearRegression(privacy=each).fit(relation) for each in (SECURE, SECURE, None))
    for name, value in first.coef_.items():
        np.testing.assert_allclose(again.coef_[name], value, atol=1e-9)
        np.testing.assert_allclose(plain.coef_[name], value, atol=1e-9)


def between(monkeypatch: pytest.MonkeyPatch, change: Callable[[str, Step], Mapping[str, Any]]) -> None:
    """Somebody between the parties, who changes the arguments of steps."""
    measured = Engine.measured

    def changing(
        engine: Engine, party: str, request: Request, patience: float | None = None
    ) -> tuple[Reply, MessageSizes]:
        steps = tuple(Step(step.op, step.table, change(party, step)) for step in request.steps)
        return measured(engine, party, msgspec.structs.replace(request, steps=steps), patience)

    keep(changing)
    monkeypatch.setattr(Engine, "measured", changing)


def test_somebody_in_the_middle_is_refused(relation: tp.Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that gives shards keys of its own instead of their peers'."""

    def swap(party: str, step: Step) -> Mapping[str, Any]:
        if step.op != "secure.roster":
            return step.arguments
        hellos = [(first, bytes(reversed(public)), last) for first, public, last in step.arguments["hellos"]]
        own = list(relation.plan.parties).index(party)
        hellos[own] = step.arguments["hellos"][own]
        return {**step.arguments, "hellos": hellos}

    between(monkeypatch, swap)
    with pytest.raises(tp.PrivacyError, match="is not signed by it"):
        tp.LinearRegression(privacy=SECURE).fit(relation)


def lose(party: LosingParty, fault: str) -> Callable[[tp.Event], None]:
    """A callback that loses a party after the second round."""
    return lambda event: setattr(party, fault, True) if event.fields.get("round") == 2 else None


def masked_steps(party: LosingParty) -> list[str]:
    return [op for _, ops, _ in party.asked for op in ops if op in SUMMED]


@pytest.mark.parametrize("fault", ["lost", "mute"])
def test_a_party_that_is_lost_ends_the_session(tmp_path: Path, fault: str) -> None:
    """The error says why and what to do. The round is not done again, neither at once nor when the party is back; a new
    run is.
    """
    urls = {name: write_party(tmp_path, name, tables) for name, tables in shop(3, together=True).items()}
    fed, parties = losing(urls)
    relation = fed.sql(f"SELECT {ALL}, o.grade {JOIN}", "grade")
    told = r"'owner1' does not answer.*would unmask what it holds.*session ends.*new run .*another roster"
    with pytest.raises(tp.PrivacyError, match=told):
        tp.LogisticRegression(privacy=SECURE, callbacks=[lose(parties["owner1"], fault)]).fit(relation)
    setattr(parties["owner1"], fault, False)
    asked = {name: masked_steps(party) for name, party in parties.items()}
    assert asked["owner0"] == asked["owner2"]
    for privacy in (SECURE, None):
        with pytest.raises(tp.PrivacyError, match=told):
            tp.LogisticRegression(privacy=privacy).fit(relation)
    assert asked == {name: masked_steps(party) for name, party in parties.items()}
    assert tp.LogisticRegression(privacy=SECURE).fit(fed.sql(f"SELECT {ALL}, o.grade {JOIN}", "grade")).converged_


@pytest.mark.parametrize("mode", ["cache", "zeros"])
def test_stand_ins_that_cannot_be_are_refused(tmp_path: Path, mode: Any) -> None:
    """Where every party is part of a secure sum nothing can stand in for one: refused before a key is made."""
    urls = {name: write_party(tmp_path, name, tables) for name, tables in shop(3, together=True).items()}
    fed, parties = losing(urls, on_party_lost=mode)
    with pytest.raises(tp.PrivacyError, match=rf"on_party_lost='{mode}' cannot be kept .*\"wait\" or \"fail\""):
        tp.LinearRegression(privacy=SECURE).fit(fed.sql(SQL, label="paid"))
    assert not any(op.startswith("secure.") for party in parties.values() for _, ops, _ in party.asked for op in ops)
    assert tp.LinearRegression().fit(fed.sql(SQL, label="paid")).converged_


@pytest.mark.parametrize("mode", ["cache", "zeros"])
def test_stand_ins_beside_a_secure_sum(tmp_path: Path, mode: Any) -> None:
    """Something stands in for a party with a table of its own; one whose shard is part of a sum ends the session."""
    alone = {name: tables for name, tables in shop().items() if name != "store0"}
    stores = {name: tables for name, tables in shop(3).items() if name.startswith("store")}
    urls = {name: write_party(tmp_path, name, tables) for name, tables in (stores | alone).items()}
    fed, parties = losing(urls, on_party_lost=mode)
    learner = tp.LinearRegression(privacy=SECURE, rounds=6, tol=0.0)
    model = learner.set_params(callbacks=[lose(parties["bank0"], "lost")]).fit(fed.sql(SQL, label="paid"))
    assert "bank0" in model.history_[2]["lost"]
    parties["bank0"].lost = False
    with pytest.raises(tp.PrivacyError, match=r"'store1' does not answer.*session ends"):
        learner.set_params(callbacks=[lose(parties["store1"], "lost")]).fit(fed.sql(SQL, label="paid"))


def test_a_model_remembers_its_settings(relation: tp.Relation, fed: tp.Federation, tmp_path: Path) -> None:
    """Saved and loaded, a learner has the privacy that it was made with."""
    tp.LinearRegression(privacy=SECURE).fit(relation).save(tmp_path / "model")
    assert tp.load(tmp_path / "model", fed).privacy == SECURE
