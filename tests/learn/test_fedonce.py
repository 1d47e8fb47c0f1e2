"""FedOnce: guests learn from their own rows, send one message, and the host learns in rounds."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.baselines import joined_tables
from tablepuppet.learn.split.nat import NatSettings, NatTraining, principal_components, targets_of
from tablepuppet.learn.split.once import input_rows
from tablepuppet.prep.encode.encode import encoded
from tests.learn.materialised import ALL, JOIN, predictions, shop
from tests.relations import federation, write_party
from tests.wire.losing import losing

torch: Any = pytest.importorskip("torch", reason="networks need the extra `deep`")

SETTINGS: dict[str, Any] = {
    "bottom": tp.bottom.mlp(hidden=(6,)), "embedding": 4, "top": (5,), "epochs": 3, "guest_epochs": 2,
    "batch_size": 64, "lr": 0.01, "seed": 5,
}  # fmt: skip
TASKS: dict[str, Any] = {"paid": tp.FedOnceRegressor, "returned": tp.FedOnceClassifier, "grade": tp.FedOnceClassifier}


@pytest.fixture(scope="module", params=[1, 2], ids=["one shard", "two shards"])
def fed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), shop(request.param), wire="float64")


def relation_of(fed: tp.Federation, label: str = "returned") -> tp.Relation:
    return fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label)


def learner(label: str = "returned", **settings: Any) -> Any:
    return TASKS[label](**SETTINGS | settings)


def asked_of(fed: tp.Federation) -> Counter[tuple[str, str]]:
    """Counts, from now on, how often parties are asked for ops: by party and op."""
    found: Counter[tuple[str, str]] = Counter()

    def read(event: tp.Event) -> None:
        if event.name == "trip":
            found.update((event.fields["party"], op) for op in event.fields["ops"])

    fed.events.subscribe(read, trips=True)
    return found


def host_and_guests(relation: tp.Relation) -> tuple[list[str], list[str]]:
    parties = {alias: [shard.party for shard in relation.client.shards(alias)] for alias in relation.mapping.tables}
    return parties["o"], [party for alias, listed in parties.items() if alias != "o" for party in listed]


@pytest.mark.parametrize("validated", [False, True], ids=["", "with validation"])
def test_each_guest_sends_exactly_one_message_of_representations(fed: tp.Federation, validated: bool) -> None:
    """Also if rows are held out: what is told of both sides is one message. The host is asked in every batch."""
    train, held_out = relation_of(fed).split(test=0.3)
    host, guests = host_and_guests(train)
    before = {(each["party"], each["direction"]): each["messages"] for each in _of_release(fed, "EMBEDDINGS")}
    asked = asked_of(fed)
    model = learner().fit(train, validation=held_out) if validated else learner().fit(train)
    after = {(each["party"], each["direction"]): each["messages"] for each in _of_release(fed, "EMBEDDINGS")}
    for party in guests:
        assert asked[party, "split.embed"] + asked[party, "split.apply"] == 1
        assert after[party, "up"] - before.get((party, "up"), 0) == 1
    for party in host:
        assert asked[party, "split.step"] + asked[party, "model.gradient"] >= 3
        assert not asked[party, "nat.train"] + asked[party, "nat.average"]
    assert len(model.history_) == 3
    assert {"bytes_up", "bytes_down", "messages"} <= model.history_[0].keys()


def _of_release(fed: tp.Federation, release: str) -> list[dict[str, Any]]:
    return [each for each in fed.traffic if each["release"] == release]


def test_averages_of_shards_are_metered_apart(fed: tp.Federation) -> None:
    """Guests with one shard release nothing before their message; shards release parameters, twice in two epochs."""
    relation = relation_of(fed)
    _, guests = host_and_guests(relation)
    asked, before = asked_of(fed), len(_of_release(fed, "PARAMETERS"))
    learner().fit(relation)
    shards = {alias: len(relation.client.shards(alias)) for alias in relation.mapping.tables}
    if max(shards.values()) == 1:
        assert {asked[party, "nat.average"] for party in guests} == {0}
        assert len(_of_release(fed, "PARAMETERS")) == before
    else:
        several = {s.party for a, n in shards.items() if a != "o" and n > 1 for s in relation.client.shards(a)}
        assert {asked[party, "nat.average"] for party in several} == {2}


@pytest.mark.parametrize("label", TASKS)
def test_one_seed_gives_one_result_and_it_learns(fed: tp.Federation, label: str, tmp_path: Path) -> None:
    """Two fits agree to the last bit; the loss falls; a model that is saved and loaded predicts the same."""
    relation = relation_of(fed, label)
    model, again = (learner(label, epochs=8).fit(relation) for _ in range(2))
    np.testing.assert_array_equal(model.predict(relation), again.predict(relation))
    losses = [entry["loss"] for entry in model.history_]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model")
    loaded = tp.load(tmp_path / "model", fed)
    np.testing.assert_allclose(predictions(loaded, relation), predictions(model, relation), atol=1e-6)
    assert loaded.evaluate(relation) == pytest.approx(model.evaluate(relation))


def test_principal_components_are_those_of_the_joined_table(fed: tp.Federation) -> None:
    """With shards too: a guest's network is the PCA of its columns in the materialised join."""
    relation = relation_of(fed)
    model = learner(method="pca").fit(relation)
    thetas = model._model.parameters()
    for alias, table in joined_tables(relation.client, model.encoding_).items():
        if alias == "o":
            continue
        columns = table.matrix()
        expected = principal_components(columns.T @ columns / len(columns), 4)
        found = thetas[alias][: expected.size].reshape(4, -1).T
        np.testing.assert_allclose(columns @ found, columns @ expected, atol=1e-6)


def test_a_guest_sees_each_base_row_once_however_often_it_is_joined(tmp_path: Path) -> None:
    """Its network is that of NAT on its distinct rows, step by step, from the same start."""
    fed = federation(tmp_path, shop(1), wire="float64")
    relation = relation_of(fed)
    model = learner().fit(relation)
    client, found = relation.client, model._model.parameters()
    for alias in ("i", "c"):
        party = client.shards(alias)[0].party
        place = client.engine.capabilities(party).table
        assert place is not None
        table = place(client.session, alias)
        data, network = encoded(table, client.view, model.encoding_.id), model._model.table_model(alias)
        assert len(data.dense) == client.tables[alias].rows < len(relation)
        start = network.start(5, alias, data.dense.shape[1])
        own = int(np.random.default_rng([5, zlib.crc32(f"{alias}/{party}".encode())]).integers(2**62))
        targets = targets_of(table.snapshot.place(table.view(client.view).row_ids), 4, own)
        work = NatTraining(network, start, input_rows(network, data), targets, NatSettings(), own)
        work.train(2)
        np.testing.assert_allclose(found[alias], work.theta, rtol=1e-12)


def test_more_rounds_go_on_as_split_learning(fed: tp.Federation) -> None:
    """Guests change only then; history goes on; bytes are those of SplitNN."""
    relation = relation_of(fed)
    _, guests = host_and_guests(relation)
    once = learner(epochs=3).fit(relation)
    asked = asked_of(fed)
    more = learner(epochs=3, rounds=4).fit(relation)
    assert [entry["round"] for entry in more.history_] == [1, 2, 3, 4, 5, 6]
    for party in guests:
        assert asked[party, "split.step"] + asked[party, "model.gradient"] > 3
    for one, other in zip(once.history_, more.history_[:3], strict=True):
        assert one["loss"] == other["loss"]
    assert more.history_[-1]["bytes_up"] > more.history_[1]["bytes_up"]
    before, after = once._model.parameters(), more._model.parameters()
    assert all((before[alias] != after[alias]).any() for alias in before)


def test_representations_have_noise_of_the_scale_that_is_asked_for(fed: tp.Federation) -> None:
    """Standard deviation ``noise`` around directions, in training and predictions; with more rounds it is refused."""
    relation = relation_of(fed)
    model = learner(noise=0.25).fit(relation)
    parts = model._model
    noisy = parts.embeddings(relation.client, parts.guests)
    parts.blur = 0.0
    plain = parts.embeddings(relation.client, parts.guests)
    for alias in parts.guests:
        unit = plain[alias] / np.linalg.norm(plain[alias], axis=1, keepdims=True)
        away = noisy[alias] - unit
        assert away.std() == pytest.approx(0.25, rel=4 / np.sqrt(away.size))
    with pytest.raises(tp.LearnError, match="one message of a guest"):
        learner(noise=0.25, rounds=2).fit(relation)


def test_it_stops_early_and_keeps_the_best(fed: tp.Federation) -> None:
    """On validation rows, with few epochs in vain."""
    train, held_out = relation_of(fed).split(test=0.3)
    model = learner(epochs=60, lr=0.1, patience=3).fit(train, validation=held_out)
    losses = [entry["validation_loss"] for entry in model.history_]
    assert model.best_round_ == 1 + int(np.argmin(losses))
    assert len(losses) < 60
    assert model.evaluate(held_out)["log_loss"] == pytest.approx(min(losses), rel=1e-6)


@pytest.fixture
def urls(tmp_path: Path) -> dict[str, str]:
    return {name: write_party(tmp_path, name, tables) for name, tables in shop(1).items()}


def _loses(party: Any, event_name: str) -> Any:
    """A reader that loses a party when a stage begins."""

    def read(event: tp.Event) -> None:
        if event.name == event_name:
            party.lost = True

    return read


def test_zeros_stand_in_for_a_guest_that_lags(urls: dict[str, str]) -> None:
    """Without ``lag`` the fit fails; with it the guest is left out, in training, predictions and the saved model."""
    fed, parties = losing(urls)
    relation = relation_of(fed)
    _, guests = host_and_guests(relation)
    lagging = guests[0]
    alias = next(a for a in relation.mapping.tables if relation.client.shards(a)[0].party == lagging)
    fed.events.subscribe(_loses(parties[lagging], "guests"))
    with pytest.raises(tp.PartyError, match="does not answer"):
        learner().fit(relation)
    parties[lagging].lost = False
    relation, told = relation_of(fed), []
    fed.events.subscribe(lambda event: told.append(event) if event.name == "guest.lags" else None)
    model = learner(lag=0.1, lr=1e-9, epochs=4).fit(relation)
    assert model.absent_ == [alias]
    assert (model.stopped_, model.converged_) == ("party lost", False)
    assert [event.fields["table"] for event in told] == [alias]
    assert len(model.history_) == 4
    found = model.predict_proba(relation)  # the party is still lost
    np.testing.assert_array_equal(model._model.embeddings(relation.client, [alias])[alias], 0)
    parties[lagging].lost = False
    np.testing.assert_allclose(model.predict_proba(relation), found)


def test_a_guest_that_lagged_joins_later_rounds(urls: dict[str, str]) -> None:
    """It comes back after the one-shot phase, and learns with the others."""
    fed, parties = losing(urls)
    relation = relation_of(fed)
    _, guests = host_and_guests(relation)
    fed.events.subscribe(_loses(parties[guests[0]], "guests"))

    def back(event: tp.Event) -> None:
        if event.name == "fit" and event.fields["round"] == 4:
            parties[guests[0]].lost = False

    model = learner(lag=0.1, epochs=2, rounds=6, callbacks=[back]).fit(relation)
    assert model.absent_ == []
    assert guests[0] in model.history_[2]["lost"]
    assert guests[0] not in model.history_[-1]["lost"]
    assert np.isfinite(model.predict_proba(relation)).all()


def test_settings_that_cannot_be(fed: tp.Federation) -> None:
    """Errors name the setting and what would be allowed."""
    relation = relation_of(fed)
    for wrong, match in (
        ({"method": "ica"}, "'nat' or 'pca'"),
        ({"lag": -1}, "seconds above 0"),
        ({"embedding": 0}, "from 1 to 10000"),
        ({"assign_every": 0}, "at least 1"),
        ({"rounds": 0}, "at least 1"),
        ({"bottom": {"o": tp.bottom.mlp()}}, "no network for table"),
    ):
        with pytest.raises(tp.LearnError, match=match):
            learner(**wrong).fit(relation)


def test_an_image_that_does_not_fit_is_refused(fed: tp.Federation) -> None:
    """The error names the table, the shape and the columns."""
    with pytest.raises(tp.LearnError, match="images of 1 x 3 x 3 = 9 columns, but the table has"):
        learner(bottom=tp.bottom.cnn(shape=(3, 3), channels=(2,))).fit(relation_of(fed))


def test_principal_components_of_shards_that_hide_small_groups(fed: tp.Federation) -> None:
    """A guest in several shards has none there: that is said before a party is asked. With NAT, or ``matrix = true``,
    it learns all the same; so does a guest with one shard, whose party has its components itself.
    """
    relation, rules = relation_of(fed), dict[str, Any](min_group=5, matrix=False)
    for settings, allowed in (({"method": "pca"}, {}), ({"method": "nat"}, {}), ({"method": "pca"}, {"matrix": True})):
        tables = {
            alias: replace(table, shards=tuple(replace(shard, **(rules | allowed)) for shard in table.shards))
            for alias, table in relation.plan.tables.items()
        }
        plan = replace(relation.plan, tables=tables)
        several = any(len(table.shards) > 1 for alias, table in tables.items() if alias != "o")
        if settings["method"] == "pca" and several and not allowed:
            with pytest.raises(tp.PrivacyError, match="set method='nat', or ask its operator for matrix = true"):
                learner(**settings).check_plan(plan)
        else:
            learner(**settings).check_plan(plan)
