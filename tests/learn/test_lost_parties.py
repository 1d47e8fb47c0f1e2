"""Learning goes on without a party that is lost, and with it again when it is back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tests.learn.materialised import ALL, JOIN, learner, shop
from tests.relations import write_party
from tests.wire.losing import LosingParty, losing

TASKS: dict[str, int | None] = {"paid": None, "returned": 2, "grade": 4}
MODES = ["cache", "zeros"]
modes = pytest.mark.parametrize("mode", MODES)
Schedule = Mapping[int, Callable[[], None]]


@pytest.fixture(scope="module", params=[1, 2], ids=["one shard", "two shards"])
def urls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("shop")
    return {name: write_party(folder, name, tables) for name, tables in shop(request.param).items()}


def at_rounds(schedule: Schedule) -> Callable[[tp.Event], None]:
    """A callback that does something after given rounds."""

    def act(event: tp.Event) -> None:
        if event.name == "fit" and event.fields["round"] in schedule:
            schedule[event.fields["round"]]()

    return act


def be(party: LosingParty, *, lost: bool = False, mute: bool = False) -> Callable[[], None]:
    def change() -> None:
        party.lost, party.mute = lost, mute

    return change


def relation_of(fed: tp.Federation, label: str) -> tp.Relation:
    return fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label)


@modes
@pytest.mark.parametrize(
    ("label", "solver", "how"),
    [
        ("paid", "lbfgs", "lost"),
        ("returned", "lbfgs", "mute"),
        ("returned", "admm", "lost"),
        ("grade", "lbfgs", "mute"),
    ],
)
def test_back_to_the_same_optimum(urls: dict[str, str], mode: Any, label: str, solver: Any, how: str) -> None:
    """A party that is lost for some rounds, whether its last request arrived or not, and a second one that is lost
    meanwhile: once both are back, the fit ends at the optimum of an undisturbed one.
    """
    fed, parties = losing(urls, on_party_lost=mode)
    relation, settings = relation_of(fed, label), {"solver": solver, "l2": 1e-3, "rounds": 200}
    calm = learner(TASKS[label], **settings).fit(relation)
    supplier, bank = parties["supplier0"], parties["bank0"]
    schedule = {2: be(supplier, **{how: True}), 3: be(bank, **{how: True}), 4: be(supplier), 6: be(bank)}
    told: list[str] = []
    fed.events.subscribe(lambda event: told.append(f"{event.name} {event.fields.get('party')}"))
    model = learner(TASKS[label], **settings, callbacks=[at_rounds(schedule)]).fit(relation)
    assert (model.converged_, calm.converged_) == (True, True)
    assert [entry["lost"] for entry in model.history_[:3]] == [[], [], ["supplier0"]]
    assert model.history_[-1]["lost"] == []
    for party in ("supplier0", "bank0"):
        assert [what for what in told if what.endswith(party)] == [f"party.lost {party}", f"party.back {party}"]
    for name, value in calm.coef_.items():
        np.testing.assert_allclose(model.coef_[name], value, atol=1e-6)
    assert model.history_[-1]["objective"] == pytest.approx(calm.history_[-1]["objective"], rel=1e-9)
    ask = "predict" if label == "paid" else "predict_proba"
    np.testing.assert_allclose(getattr(model, ask)(relation), getattr(calm, ask)(relation), atol=1e-6)


@modes
@pytest.mark.parametrize("solver", ["lbfgs", "admm"])
def test_a_party_that_stays_lost(urls: dict[str, str], mode: Any, solver: Any) -> None:
    """The fit ends: not converged, better than no model, and what it says is what its scores give. Predictions need
    the party, which takes up where it was when it is back.
    """
    fed, parties = losing(urls, on_party_lost=mode)
    relation, supplier = relation_of(fed, "returned"), parties["supplier0"]
    ended: list[tp.Event] = []
    fed.events.subscribe(lambda event: ended.append(event) if event.name == "fitted" else None)
    schedule = {2: be(supplier, lost=True)}
    model = tp.LogisticRegression(solver=solver, l2=1e-3, callbacks=[at_rounds(schedule)]).fit(relation)
    assert (model.converged_, model.stopped_) == (False, "party lost")
    assert [entry["lost"] for entry in model.history_[2:]] == [["supplier0"]] * (len(model.history_) - 2)
    assert ended[-1].fields["lost"] == ["supplier0"]
    assert "lost: supplier0" in ended[-1].message
    with pytest.raises(tp.PartyError, match="'supplier0' does not answer"):
        model.predict(relation)
    supplier.lost = False
    loss = model.evaluate(relation)["log_loss"]
    assert max(loss, model.history_[-1]["loss"]) < np.log(2)
    if mode == "cache" and len(parties) == 3:  # else its rows have new parameters, or count again
        assert loss == pytest.approx(model.history_[-1]["loss"], rel=1e-9)


@modes
def test_a_party_lost_in_preparation_is_not_learned_without(urls: dict[str, str], mode: Any) -> None:
    """Nothing can stand in for its statistics: the warning before the error does not promise that it goes on."""
    fed, parties = losing(urls, on_party_lost=mode)
    relation = relation_of(fed, "returned")
    len(relation)
    told: list[str] = []
    fed.events.subscribe(lambda event: told.append(event.message) if event.name == "party.lost" else None)
    parties["supplier0"].lost = True
    with pytest.raises(tp.PartyError, match="'supplier0' does not answer"):
        tp.LogisticRegression().fit(relation)
    assert told == ["party 'supplier0' does not answer; a fit continues without it if its answers can be replaced"]


@modes
@pytest.mark.parametrize("network", [False, True], ids=["linear", "network"])
def test_batches_go_on(urls: dict[str, str], mode: Any, network: bool) -> None:
    """By sgd a party may be lost for some batches; the loss ends within a tenth of the undisturbed one."""
    fed, parties = losing(urls, on_party_lost=mode)
    relation = relation_of(fed, "returned")
    settings: dict[str, Any] = {"solver": "sgd", "rounds": 12, "batch_size": 60, "seed": 3}
    kind = tp.MLPClassifier if network else tp.LogisticRegression
    calm = kind(**settings).fit(relation)
    schedule = {2: be(parties["supplier0"], mute=True), 5: be(parties["supplier0"])}
    model = kind(**settings, callbacks=[at_rounds(schedule)]).fit(relation)
    assert [bool(entry["lost"]) for entry in model.history_] == [False] * 2 + [True] * 4 + [False] * 6
    assert model.history_[-1]["loss"] == pytest.approx(calm.history_[-1]["loss"], rel=0.1)
    assert model.evaluate(relation)["log_loss"] == pytest.approx(calm.evaluate(relation)["log_loss"], rel=0.1)


@modes
@pytest.mark.parametrize("solver", ["lbfgs", "admm"])
def test_networks_go_on(urls: dict[str, str], mode: Any, solver: Any) -> None:
    """A network learns on without a lost table; when it is back the loss ends within a tenth of the undisturbed one."""
    fed, parties = losing(urls, on_party_lost=mode)
    relation = relation_of(fed, "returned")
    settings: dict[str, Any] = {"solver": solver, "rounds": 20, "hidden": (4,), "l2": 1e-2, "local_steps": 10}
    calm = tp.MLPClassifier(**settings).fit(relation)
    schedule = {3: be(parties["supplier0"], mute=True), 7: be(parties["supplier0"])}
    model = tp.MLPClassifier(**settings, callbacks=[at_rounds(schedule)]).fit(relation)
    assert [bool(entry["lost"]) for entry in model.history_[:8]] == [False] * 3 + [True] * 5
    assert not model.history_[-1]["lost"]
    assert model.history_[-1]["loss"] == pytest.approx(calm.history_[-1]["loss"], rel=0.1)
    assert model.evaluate(relation)["log_loss"] == pytest.approx(model.history_[-1]["loss"], rel=1e-9)


@modes
def test_consensus_goes_on(tmp_path: Path, mode: Any) -> None:
    """Shards that agree step by step do so again when one that was lost is back."""
    urls = {name: write_party(tmp_path, name, tables) for name, tables in shop(3).items()}
    fed, parties = losing(urls, on_party_lost=mode)
    relation = relation_of(fed, "paid")
    settings: dict[str, Any] = {"inner_rounds": 5, "l2": 1e-3, "rounds": 300}
    calm = tp.LinearRegression(**settings).fit(relation)
    schedule = {2: be(parties["supplier1"], mute=True), 5: be(parties["supplier1"])}
    model = tp.LinearRegression(**settings, callbacks=[at_rounds(schedule)]).fit(relation)
    assert model.converged_
    for name, value in calm.coef_.items():
        np.testing.assert_allclose(model.coef_[name], value, atol=1e-5)


@modes
def test_validation_goes_on(urls: dict[str, str], mode: Any) -> None:
    """Rows to stop early by are measured without the lost party, too; the best round is kept and restored."""
    fed, parties = losing(urls, on_party_lost=mode)
    train, held_out = relation_of(fed, "returned").split(0.3)
    schedule = {2: be(parties["supplier0"], lost=True), 4: be(parties["supplier0"])}
    model = tp.LogisticRegression(l2=1e-3, patience=50, callbacks=[at_rounds(schedule)])
    model.fit(train, validation=held_out)
    assert [bool(entry["lost"]) for entry in model.history_[:4]] == [False, False, True, True]
    assert not model.history_[-1]["lost"]
    best = min(entry["validation_loss"] for entry in model.history_)
    assert model.history_[model.best_round_ - 1]["validation_loss"] == best
    if not model.history_[model.best_round_ - 1]["lost"]:
        assert model.evaluate(held_out)["log_loss"] == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("mode", ["fail", *MODES])
@pytest.mark.parametrize("when", ["opened", "joined"])
def test_nothing_to_go_on_with(urls: dict[str, str], mode: Any, when: str) -> None:
    """A party that is lost before labels and statistics are known is one clear error."""
    fed, parties = losing(urls, on_party_lost=mode)
    fed.events.subscribe(lambda event: be(parties["store0"], lost=True)() if event.name == when else None)
    with pytest.raises(tp.PartyError, match="'store0' does not answer"):
        tp.LogisticRegression().fit(relation_of(fed, "returned"))


def test_the_label_is_known(urls: dict[str, str]) -> None:
    """Nobody misses a party that only has the label, once it is told."""
    fed, parties = losing(urls, on_party_lost="cache")
    relation = fed.sql(f"SELECT i.weight, c.age, o.returned {JOIN}", label="returned")
    stores = [party for name, party in parties.items() if name.startswith("store")]
    schedule = {1: lambda: [be(store, lost=True)() for store in stores]}
    model = tp.LogisticRegression(callbacks=[at_rounds(schedule)]).fit(relation)  # type: ignore[arg-type]
    assert model.converged_
    assert not any(entry["lost"] for entry in model.history_)


def test_everybody_is_lost(urls: dict[str, str]) -> None:
    """Even then a fit ends, with what was learned so far."""
    fed, parties = losing(urls, on_party_lost="cache")
    schedule = {2: lambda: [be(party, lost=True)() for party in parties.values()]}
    model = tp.LogisticRegression(callbacks=[at_rounds(schedule)]).fit(relation_of(fed, "returned"))  # type: ignore[arg-type]
    assert model.stopped_ == "party lost"
    assert model.history_[-1]["lost"] == sorted(parties)
    assert model.history_[-1]["loss"] <= model.history_[1]["loss"] + 1e-12
