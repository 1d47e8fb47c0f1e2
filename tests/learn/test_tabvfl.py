"""TabVFL: the same as TabNet with the tables' layers on the materialised join, however tables are cut."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.baselines.pooled import joined_tables
from tablepuppet.operators.batches import batches
from tablepuppet.prep.label import ask_classes, ask_numbers, joined_classes, joined_numbers
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import federation

torch = pytest.importorskip("torch", reason="networks need the extra `deep`")
pytest.importorskip("pytorch_tabnet", reason="TabNet needs the extra `deep`")

from tablepuppet.learn.split.flat import FlatModule, seeded  # noqa: E402
from tablepuppet.learn.split.hiding import draw_mask  # noqa: E402
from tablepuppet.learn.split.table import TorchTable  # noqa: E402
from tablepuppet.learn.split.tabnet import PretrainingTop, mean_at_base_rows  # noqa: E402
from tablepuppet.party.spec import Hiding  # noqa: E402

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
        specs, encoding = model.model_.specs, model.encoding_
        found = joined_tables(self.client, encoding)
        self.tables = {alias: torch.tensor(found[alias].matrix()) for alias in specs}
        self.networks = {a: TorchTable(specs[a], rows.shape[1], a) for a, rows in self.tables.items()}
        starts = {a: n.start(SEED, a, len(encoding.numbers[a])) for a, n in self.networks.items()}
        self.flats = {a: torch.tensor(theta, requires_grad=True) for a, theta in starts.items()}
        self.widths = {alias: spec.outputs for alias, spec in specs.items()}
        ends = list(accumulate(spec.part for spec in specs.values()))
        self.parts = {a: slice(end - s.part, end) for (a, s), end in zip(specs.items(), ends, strict=True)}

    def batches(self, epoch: int) -> Any:
        return batches(self.client.mapping, list(self.networks), SIZE, SEED, epoch + 1)

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
            sizes, index = network.spec.categories, batch.index[alias]
            numbers = network.width - sum(sizes)
            mask = draw_mask(Hiding(HIDE, SEED, number), alias, len(batch.places[alias]), numbers, sizes)
            masks[alias] = torch.from_numpy(mask[index]).double()
            shown[alias] = network.flat(
                self.flats[alias], self.tables[alias][rows], None, mask=masks[alias], training=True
            )
        decoded = top(above, shown, {alias: 1 - mask for alias, mask in masks.items()}, training=True)
        errors = []
        for alias, network in self.networks.items():
            index = torch.from_numpy(batch.index[alias])
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
    assert model.model_.top.theta == pytest.approx(top, abs=1e-7)
    found = model.model_.parameters()
    assert found.keys() == pooled.flats.keys()
    for alias, flat in pooled.flats.items():
        assert found[alias] == pytest.approx(flat.detach().numpy(), abs=1e-7), alias
