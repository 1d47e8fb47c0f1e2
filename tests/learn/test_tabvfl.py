"""TabVFL: the same as TabNet with the tables' layers on the materialised join, however tables are cut."""

from __future__ import annotations

import itertools
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.baselines import joined_tables
from tablepuppet.mapping.batches import batches
from tablepuppet.party.request import Reply, Request
from tablepuppet.prep.columns.label import ask_classes, ask_numbers, joined_classes, joined_numbers
from tests.learn.materialised import ALL, JOIN, shop
from tests.party.policed import federation as federation_of
from tests.party.policed import open_party, write_file
from tests.relations import federation, write_party
from tests.wire.losing import LosingParty, losing

torch = pytest.importorskip("torch", reason="networks need the extra `deep`")
pytest.importorskip("pytorch_tabnet", reason="TabNet needs the extra `deep`")

from tablepuppet.learn.split.pretrain import Pretraining  # noqa: E402
from tablepuppet.learn.split.tabnet import PretrainingTop, mean_at_base_rows  # noqa: E402
from tablepuppet.learn.split.tabnet_table import TabNet  # noqa: E402
from tablepuppet.learn.tables.model import Hiding  # noqa: E402
from tablepuppet.learn.tables.torch_table import FlatModule  # noqa: E402
from tablepuppet.learn.threads import seeded  # noqa: E402

TASKS: dict[str, int | None] = {"paid": None, "returned": 2, "grade": 4}
SIZE, SEED, LR, L2, HIDE, SPARSITY = 37, 5, 0.01, 1e-3, 0.3, 1e-2
PRETRAINED, EPOCHS = 2, 2


@pytest.fixture(scope="module", params=[1, 2], ids=["one shard", "two shards"])
def fed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), shop(request.param), wire="float64")


def relation_of(fed: tp.Federation, label: str = "returned") -> tp.Relation:
    return fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label)


def learner(label: str = "returned", **settings: Any) -> Any:
    given: dict[str, Any] = {
        "latent": 6, "steps": 2, "pretrain_epochs": PRETRAINED, "epochs": EPOCHS, "batch_size": SIZE, "lr": LR,
        "l2": L2, "hide": HIDE, "sparsity": SPARSITY, "seed": SEED,
    }  # fmt: skip
    return (tp.TabVFLRegressor if TASKS[label] is None else tp.TabVFLClassifier)(**given | settings)


def targets_of(relation: tp.Relation, label: str) -> Any:
    """Labels as the loss takes them: in units of their deviation, or numbers of classes."""
    client, asked = relation.client, relation.query.label
    assert asked is not None
    if TASKS[label] is None:
        numbers: Any = joined_numbers(client, asked, ask_numbers(client, asked))
        return torch.tensor(numbers / numbers.std())
    return torch.tensor(joined_classes(client, asked, ask_classes(client, asked)).numbers.astype(np.int64))


def rate(epoch: int, epochs: int) -> float:
    return float(0.5 * LR * (1 + np.cos(np.pi * (epoch + 0.5) / epochs)))


class Pooled:
    """The network of a fitted learner, trained on the rows of the materialised join by torch alone."""

    def __init__(self, relation: tp.Relation, model: Any, label: str):
        self.client, self.model = relation.client, model
        self.targets, self.label = targets_of(relation, label), label
        specs, encoding = model._model.specs, model.encoding_
        found = joined_tables(self.client, encoding)
        self.tables = {alias: torch.tensor(found[alias].matrix()) for alias in specs}
        self.networks = {a: specs[a].over(rows.shape[1], a) for a, rows in self.tables.items()}
        starts = {a: n.start(SEED, a, len(encoding.numbers[a])) for a, n in self.networks.items()}
        self.flats = {a: torch.tensor(theta, requires_grad=True) for a, theta in starts.items()}
        self.widths = {alias: spec.outputs for alias, spec in specs.items()}
        ends = list(accumulate(spec.part for spec in specs.values()))
        self.parts = {a: slice(end - s.part, end) for (a, s), end in zip(specs.items(), ends, strict=True)}

    def batches(self, epoch: int) -> Any:
        return batches(self.client.rows, list(self.networks), SIZE, SEED, epoch + 1)

    def after(self, alias: str, network: FlatModule, flats: dict[str, Any]) -> None:
        """Keep the running statistics."""
        with torch.no_grad():
            flats[alias].copy_(torch.from_numpy(network.after(flats[alias].detach().numpy())))

    def pretrain(self) -> dict[str, Any]:
        """The encoder's parameters by name."""
        top = FlatModule(seeded(SEED, "", lambda: PretrainingTop(self.widths, self.model._shape)), double=True)
        above = torch.tensor(top.first(), requires_grad=True)
        optimiser = torch.optim.Adam([*self.flats.values(), above], weight_decay=L2)
        number = 0
        for epoch in range(PRETRAINED):
            optimiser.param_groups[0]["lr"] = rate(epoch, PRETRAINED)
            for batch in self.batches(epoch):
                optimiser.zero_grad()
                self._reconstruction(top, above, batch, number).backward()
                optimiser.step()
                self.after("", top, {"": above})
                for alias, network in self.networks.items():
                    self.after(alias, network.flat, self.flats)
                number += 1
        return top.named(above.detach().numpy())

    def _reconstruction(self, top: FlatModule, above: Any, batch: Any, number: int) -> Any:
        rows = torch.from_numpy(batch.rows)
        shown, masks = {}, {}
        for alias, network in self.networks.items():
            assert isinstance(network.spec, TabNet)
            index = batch.base[alias]
            mask = network.spec.mask(Hiding(HIDE, SEED, number), alias, len(batch.places[alias]), network.width)
            masks[alias] = torch.from_numpy(mask[index]).double()
            shown[alias] = network.flat(
                self.flats[alias], self.tables[alias][rows], None, mask=masks[alias], training=True
            )
        decoded = top(above, shown, {alias: 1 - mask for alias, mask in masks.items()}, training=True)
        errors = []
        for alias, network in self.networks.items():
            index = torch.from_numpy(batch.base[alias])
            means = mean_at_base_rows(decoded[:, self.parts[alias]], index, torch.bincount(index))[index]
            last = network.flat._last  # an error moves no statistics
            errors.append(
                network.flat(
                    self.flats[alias], self.tables[alias][rows], None, mask=masks[alias], decoded=means, training=True
                )
            )
            network.flat._last = last
        return torch.stack(errors).sum()

    def finetune(self, encoder: dict[str, Any]) -> Any:
        """The top network's parameters."""
        top = self.model._top(self.widths, self._constant(), True).flat
        above = torch.tensor(top.flat(top.named(top.first()) | _shared(top, encoder)), requires_grad=True)
        optimiser = torch.optim.Adam([*self.flats.values(), above], weight_decay=L2)
        for epoch in range(EPOCHS):
            optimiser.param_groups[0]["lr"] = rate(epoch, EPOCHS)
            for batch in self.batches(epoch):
                optimiser.zero_grad()
                rows = torch.from_numpy(batch.rows)
                joined = {
                    a: n.flat(self.flats[a], self.tables[a][rows], training=True) for a, n in self.networks.items()
                }
                scores, added = top(above, joined, training=True)
                (self._loss(scores, self.targets[rows]) + added).backward()
                optimiser.step()
                self.after("", top, {"": above})
                for alias, network in self.networks.items():
                    self.after(alias, network.flat, self.flats)
        return above.detach().numpy()

    def _loss(self, scores: Any, targets: Any) -> Any:
        if TASKS[self.label] is None:
            return 0.5 * ((scores[:, 0] - targets) ** 2).mean()
        if TASKS[self.label] == 2:
            return torch.nn.functional.binary_cross_entropy_with_logits(scores[:, 0], targets.double())
        return torch.nn.functional.cross_entropy(scores, targets)

    def _constant(self) -> Any:
        if TASKS[self.label] is None:
            return np.array([float(self.targets.mean())])
        shares = np.bincount(self.targets) / len(self.targets)
        return np.log(shares) - np.log(shares).mean() if len(shares) > 2 else np.array([np.log(shares[1] / shares[0])])


def _shared(top: FlatModule, encoder: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in encoder.items() if name in top.named(top.first())}


@pytest.mark.parametrize("label", TASKS)
def test_it_is_one_tabnet_on_the_join(fed: tp.Federation, label: str) -> None:
    """After pretraining and finetuning: the top network, and the layers and running statistics of every table."""
    relation = relation_of(fed, label)
    model = learner(label).fit(relation)
    pooled = Pooled(relation, model, label)
    top = pooled.finetune(pooled.pretrain())
    assert model._model.top.theta == pytest.approx(top, abs=1e-7)
    found = model._model.parameters()
    assert found.keys() == pooled.flats.keys()
    for alias, flat in pooled.flats.items():
        assert found[alias] == pytest.approx(flat.detach().numpy(), abs=1e-7), alias


# What it is for


def test_latent_vectors_and_attention(fed: tp.Federation) -> None:
    """One latent vector per joined row, from which scores follow. Attention adds up to 1, by table and by column, or to
    0 where the latent vector is.
    """
    relation = relation_of(fed, "grade")
    model = learner("grade").fit(relation)
    latent, named = model.transform(relation), model._model.top.flat.named(model._model.top.theta)
    assert latent.shape == (len(relation), 6)
    scores = latent @ named["final.weight"].T + named["final.bias"]
    assert np.argmax(scores, axis=1) == pytest.approx(np.searchsorted(model.classes_, model.predict(relation)))
    tables, columns = model.explain(relation), model.explain(relation, by="column")
    assert sum(tables.values()) == pytest.approx(latent.any(axis=1).astype(float), abs=1e-5)
    for alias, shares in tables.items():
        of_table = [values for name, values in columns.items() if name.startswith(f"{alias}.")]
        assert len(of_table) == len(model.encoding_.names(alias))
        assert sum(of_table) == pytest.approx(shares, abs=1e-5)


def test_attention_by_column_needs_parameters(tmp_path: Path) -> None:
    """A party that releases parameters once a session refuses a second time; attention by table needs none."""
    limits, table = "max_prediction_rounds = 1", "embeddings = { max_width = 9, max_epochs = 100 }"
    fed = federation_of(open_party(write_file(tmp_path, limits, table)))
    relation = fed.sql("SELECT c.credit, c.open, c.region, c.fraud FROM cards c", label="fraud")
    model = tp.TabVFLRegressor(latent=4, steps=2, pretrain_epochs=1, epochs=1, batch_size=30).fit(relation)
    assert len(model.explain(relation, by="column")) == 5
    with pytest.raises(tp.PrivacyError) as refused:
        model.explain(relation, by="column")
    assert refused.value.rule == "max_prediction_rounds"
    assert list(model.explain(relation)) == ["c"]


def test_it_is_saved_and_loaded(fed: tp.Federation, tmp_path: Path) -> None:
    """Predictions, latent vectors, attention and both histories are the same after `tp.load`."""
    relation = relation_of(fed, "paid")
    model = learner("paid").fit(relation)
    model.save(tmp_path / "model")
    loaded: Any = tp.load(tmp_path / "model", fed)
    assert np.array_equal(loaded.predict(relation), model.predict(relation))
    assert np.array_equal(loaded.transform(relation), model.transform(relation))
    for by in ("table", "column"):
        for name, shares in model.explain(relation, by=by).items():
            assert np.array_equal(loaded.explain(relation, by=by)[name], shares)
    assert (loaded.pretraining_, loaded.history_) == (model.pretraining_, model.history_)


def test_pretraining_helps_and_one_seed_gives_one_result(fed: tp.Federation) -> None:
    """The reconstruction error falls; the same seed gives the same model, another seed another one."""
    relation = relation_of(fed)
    first, again, other = (learner(pretrain_epochs=4, seed=seed).fit(relation) for seed in (1, 1, 2))
    errors = [entry["loss"] for entry in first.pretraining_]
    assert errors[-1] < errors[0]
    assert np.array_equal(first._model.top.theta, again._model.top.theta)
    assert not np.array_equal(first._model.top.theta, other._model.top.theta)


def test_without_pretraining_it_is_finetuned_from_the_seed(fed: tp.Federation) -> None:
    model = learner(pretrain_epochs=0).fit(relation_of(fed))
    assert len(model.pretraining_) == 0
    assert len(model.history_) == EPOCHS


def test_it_stops_early_and_keeps_the_best(fed: tp.Federation) -> None:
    train, test = relation_of(fed).split(0.3, 1)
    model = learner(epochs=40, batch_size=40, lr=0.05, patience=3).fit(train, test)
    losses = [entry["validation_loss"] for entry in model.history_]
    assert model.best_round_ == 1 + int(np.argmin(losses))
    assert model.evaluate(test)["log_loss"] == pytest.approx(min(losses), abs=1e-9)


def test_trips_bytes_and_events(fed: tp.Federation) -> None:
    """One trip a batch of finetuning and two of pretraining; one more with shards. Nothing is as long as the join."""
    relation = relation_of(fed)
    told: list[tp.Event] = []
    fed.events.subscribe(told.append, trips=True)
    model = learner(batch_size=50).fit(relation)
    shards = len(relation.client.shards("c")) > 1
    batches_of_run = -(-len(relation) // 50) * 2
    ops = [str(event.fields["ops"]) for event in told if event.name == "trip" and event.fields["party"] == "bank0"]
    pretraining = [each for each in ops if "tabvfl.error" in each or "tabvfl.shard_error" in each]
    stepped = [each for each in ops if ("split.apply" if shards else "split.step") in each]
    summed = [each for each in ops if "model.gradient" in each]
    assert len(pretraining) == batches_of_run
    assert len(stepped) in (2 * batches_of_run, 2 * batches_of_run + 2)  # the last step asks for no embedding
    assert len(summed) == (2 * batches_of_run if shards else 0)
    assert (
        len([each for each in ops if "split" in each or "tabvfl" in each or "model.gradient" in each])
        <= (5 if shards else 3) * batches_of_run + 5
    )
    events = [event for event in told if event.name == "pretrain"]
    assert [event.fields["loss"] for event in events] == [entry["loss"] for entry in model.pretraining_]
    assert all(entry["bytes_up"] > 0 and entry["bytes_down"] > 0 for entry in [*model.pretraining_, *model.history_])


def test_automatic_settings_learn_an_interaction_between_tables(tmp_path: Path) -> None:
    """A product of columns of two tables, which a sum of scores cannot learn, over a join with repeated rows."""
    rng = np.random.default_rng(0)
    users, items, n = 200, 150, 3000
    a, b = rng.normal(size=users), rng.normal(size=items)
    u, i = rng.integers(users, size=n), rng.integers(items, size=n)
    parties = {
        "x": {"ratings": pa.table({"u": u, "i": i, "y": (a[u] * b[i] > 0).astype(int)})},
        "y": {"users": pa.table({"u": np.arange(users), "a": a})},
        "z": {"items": pa.table({"i": np.arange(items), "b": b})},
    }
    relation = federation(tmp_path, parties).sql(
        "SELECT s.a, t.b, r.y FROM ratings r JOIN users s USING (u) JOIN items t USING (i)", label="y"
    )
    train, test = relation.split(0.2, 0)
    assert tp.TabVFLClassifier(latent=8, pretrain_epochs=3, epochs=20).fit(train).evaluate(test)["auc"] > 0.9


# Lost parties


def away(party: LosingParty, probability: float, seed: int) -> None:
    """Let a party miss batches at random, but not in the first epochs."""
    call, rng, asked = party.call, np.random.default_rng(seed), itertools.count()

    def at_random(request: Request, patience: float | None = None) -> Reply:
        if any(step.op in ("split.step", "tabvfl.error") for step in request.steps):
            party.lost = next(asked) > 20 and rng.random() < probability
        return call(request, patience)

    party.call = at_random  # type: ignore[method-assign]


@pytest.mark.parametrize("mode", ["cache", "zeros"])
@pytest.mark.parametrize("probability", [0.2, 0.35, 0.5])
def test_it_goes_on_while_a_party_is_away(tmp_path: Path, mode: Any, probability: float) -> None:
    """In pretraining and finetuning. A party that is back stays aligned: it takes steps of batches it has computed."""
    urls = {name: write_party(tmp_path, name, tables) for name, tables in shop(1).items()}
    fed, parties = losing(urls, on_party_lost=mode, timeout=0.01)
    away(parties["supplier0"], probability, 3)
    relation = relation_of(fed)
    model = learner(pretrain_epochs=4, epochs=6).fit(relation)
    parties["supplier0"].lost = False
    assert any(entry["lost"] == ["supplier0"] for entry in model.pretraining_)
    assert any(entry["lost"] == ["supplier0"] for entry in model.history_)
    assert model.pretraining_[-1]["loss"] < model.pretraining_[0]["loss"]
    assert min(entry["loss"] for entry in model.history_) < model.history_[0]["loss"]
    assert np.isfinite(model.predict_proba(relation)).all()


def test_cached_embeddings_stand_in_with_their_masks(tmp_path: Path) -> None:
    """A party that is away for an epoch of pretraining has its last embeddings used again, with the same masks."""
    urls = {name: write_party(tmp_path, name, tables) for name, tables in shop(1).items()}
    fed, parties = losing(urls, on_party_lost="cache", timeout=0.01)
    relation = relation_of(fed)
    seen: list[tuple[bool, int, Any, Any]] = []
    drawn = Pretraining._drawn

    def watched(self: Pretraining, batch: Any) -> Any:
        masks = drawn(self, batch)
        places = batch.places["i"]
        seen.extend(
            ("i" in self.exchange.missed, int(place), masks["i"][k], self.exchange.last.of("i")[place])
            for k, place in enumerate(places)
        )
        return masks

    def lose(event: tp.Event) -> None:
        if event.name == "pretrain":
            parties["supplier0"].lost = event.fields["done"] == 1

    with mock.patch.object(Pretraining, "_drawn", watched):
        learner(pretrain_epochs=3, callbacks=[lose]).fit(relation)
    known: dict[int, tuple[Any, Any]] = {}
    compared = 0
    for missed, place, mask, embedding in seen:
        if missed and place in known:
            assert np.array_equal(mask, known[place][0])
            assert np.array_equal(embedding, known[place][1])
            compared += 1
        known[place] = (mask, embedding.copy())
    assert compared > 10


def test_with_fail_a_lost_party_ends_the_fit(tmp_path: Path) -> None:
    urls = {name: write_party(tmp_path, name, tables) for name, tables in shop(1).items()}
    fed, parties = losing(urls, timeout=0.01)
    relation = relation_of(fed)

    def lose(event: tp.Event) -> None:
        parties["supplier0"].lost = event.name == "pretrain"

    with pytest.raises(tp.PartyError, match="'supplier0' does not answer"):
        learner(callbacks=[lose]).fit(relation)


# Policies


CARDS = "SELECT c.credit, c.open, c.region, c.fraud FROM cards c"


def policed(folder: Path, table: str) -> tp.Federation:
    folder.mkdir(exist_ok=True)
    return federation_of(open_party(write_file(folder, table=table)))


def small(**settings: Any) -> Any:
    return tp.TabVFLRegressor(**{"latent": 2, "steps": 1, "pretrain_epochs": 1, "epochs": 1, **settings})


def test_policies_hold(tmp_path: Path) -> None:
    """No embeddings without an opt-in; none wider, and none more often, than a table allows, before the first one."""
    with pytest.raises(tp.PrivacyError, match=r"does not release EMBEDDINGS.*embeddings = "):
        small().fit(policed(tmp_path / "none", "").sql(CARDS, label="fraud"))
    narrow = policed(tmp_path / "narrow", "embeddings = { max_width = 2, max_epochs = 30 }")
    with pytest.raises(tp.PrivacyError, match=r"at most 2 numbers; TabVFL needs 5, as many as there are encoded"):
        small().fit(narrow.sql(CARDS, label="fraud"))
    fed = policed(tmp_path / "few", "embeddings = { max_width = 9, max_epochs = 6 }")
    relation = fed.sql(CARDS, label="fraud")
    with pytest.raises(tp.PrivacyError, match=r"released 6 times in a session; 2 epochs of pretraining and 3 after"):
        small(pretrain_epochs=2, epochs=3).fit(relation)
    assert not [line for line in fed.traffic if "EMBEDDINGS" in str(line["release"])]
    small().fit(relation)


def test_a_policy_holds_against_own_requests(tmp_path: Path) -> None:
    """Gradients of reconstruction and sums of few rows count as embeddings, whoever asks."""
    relation = policed(tmp_path, "embeddings = { max_width = 5, max_epochs = 2 }").sql(CARDS, label="fraud")
    client, encoding = relation.client, relation.fit_encoding()

    def ask(op: str, **arguments: Any) -> Any:
        return client.ask(op, lambda alias, shard: {"encoding": encoding.id, **arguments}).read()

    spec = TabNet(5, 2, (), True)
    one = {"spec": spec, "places": np.zeros(1, np.int32), "counts": np.ones(1, np.int32)}
    sent = {**one, "theta": np.zeros(spec.theta_shape(5)), "sums": np.ones((2, 5)), "joined": 2}
    sent |= {"hiding": Hiding(0.5, 0, 0), "decoded": np.zeros((1, 2))}
    ask("split.moments", **one)
    ask("tabvfl.shard_error", **sent)
    for op, given in (("split.moments", one), ("tabvfl.shard_error", sent)):
        with pytest.raises(tp.PrivacyError, match="embeddings of a row 2 times"):
            ask(op, **given)


# Bad input


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"latent": 2}, r"latent=2 is below the number of tables with features, 3 .*choose latent=3 or more"),
        ({"batch_size": 1}, "batch_size=1 leaves a batch of one joined row"),
        ({"latent": 0}, "latent must be"),
        ({"hide": 1.0}, "hide must be a number above 0 and below 1"),
        ({"pretrain_epochs": -1}, "pretrain_epochs must be"),
        ({"privacy": tp.Privacy(feature_epsilon=1.0)}, "no form with noise on features"),
        ({"bottom": tp.bottom.mlp()}, "has no setting 'bottom'"),
    ],
)
def test_bad_settings_have_clear_errors(fed: tp.Federation, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(tp.TablePuppetError, match=match):
        learner(**settings).fit(relation_of(fed))


def test_a_last_batch_of_one_row_is_refused_or_avoided(fed: tp.Federation) -> None:
    """With a batch size that leaves one row over; "auto" takes another size."""
    relation = relation_of(fed)
    size = next(size for size in range(2, len(relation)) if len(relation) % size == 1)
    with pytest.raises(tp.LearnError, match=rf"batch_size={size} leaves a batch of one joined row out of"):
        learner(batch_size=size).fit(relation)
    learner(batch_size="auto", pretrain_epochs=1, epochs=1).fit(relation)


def test_one_class_and_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are said before anything is learned."""
    table = pa.table({"a": np.arange(20.0), "b": np.arange(20.0) % 3, "y": np.ones(20, int)})
    relation = federation(tmp_path, {"x": {"t": table}}).sql("SELECT t.a, t.b, t.y FROM t", label="y")
    with pytest.raises(tp.LearnError, match="one class"):
        tp.TabVFLClassifier(latent=2, epochs=1, pretrain_epochs=1).fit(relation)
    monkeypatch.setattr("tablepuppet.learn.split.bottoms.find_spec", lambda name: None)
    with pytest.raises(tp.LearnError, match=r"TabNet needs pytorch-tabnet: pip install 'tablepuppet\[deep\]'"):
        tp.TabVFLRegressor(latent=2, epochs=1, pretrain_epochs=1).fit(relation)


def test_a_bottom_of_tabnet_serves_splitnn(fed: tp.Federation) -> None:
    """`tp.bottom.tabnet` is batch norm over joined rows and a layer; shards agree with one party."""
    relation = relation_of(fed)
    model: Any = tp.SplitNNClassifier(bottom=tp.bottom.tabnet(4), top=(5,), epochs=6, batch_size=40, seed=1)
    losses = [entry["loss"] for entry in model.fit(relation).history_]
    assert losses[-1] < losses[0]
    assert losses == pytest.approx(_tabnet_losses.setdefault("losses", losses), rel=1e-6)


_tabnet_losses: dict[str, list[float]] = {}
