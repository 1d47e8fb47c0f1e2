"""FedOnce: guests train a network on their own rows, without labels; then each sends one message (Alg. 1).

A guest is a table that does not hold the label. Its party trains its network by NAT (nat.py), or computes principal
components; nothing is released meanwhile. The coordinator asks for a few epochs at a time, so that no request takes
long. The shards of a table train one network: each trains on its own rows for some epochs, the coordinator averages
their parameters, weighted by rows, and sends the mean back. Before the message, only these parameters are sent (release
PARAMETERS). The message is the reply of ``split.embed`` or ``split.apply``: EMBEDDINGS of all rows that take part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.ops import joined_counts
from tablepuppet.arrays import Array, Floats
from tablepuppet.errors import PartyError
from tablepuppet.learn.noise.plan import Noise
from tablepuppet.learn.split.model import Embeddings, SplitModel
from tablepuppet.learn.split.nat import NatSettings, NatTraining, own_seed, principal_components, targets_of
from tablepuppet.learn.split.ops import in_training
from tablepuppet.learn.tables.dense import Mlp
from tablepuppet.learn.tables.model import Bottom, TableModel
from tablepuppet.learn.tables.ops import sent_model
from tablepuppet.learn.tables.parameters import TableParameters, parameters_of
from tablepuppet.learn.tables.steps import NOTHING, Facts, RowGradients, Update, Updates, step, taken
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Client
from tablepuppet.operators.lou import Instead, LearningOverUnion
from tablepuppet.party.allowance import check_memory
from tablepuppet.party.approval import add_work
from tablepuppet.party.arguments import Seed, Some
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import THETA
from tablepuppet.prep.encode.encode import encoded
from tablepuppet.prep.encode.encoded_table import EncodedTable

add_work(("FedOnceRegressor", "FedOnceClassifier"), "split", "nat")

HELD = 1 << 26  # numbers of a table that are held as one tensor; of more, each batch is made anew
WORK = 2e9  # multiplications of one request, about: some seconds
AVERAGINGS = 10  # how often shards of one table average their parameters
ASKED = "FedOnce"


# At the party


def input_rows(network: TableModel, data: EncodedTable) -> Callable[[NDArray[np.integer]], Any]:
    """The rows at some places as a network takes them: all are made at once, if they are not too many."""
    cells = len(data.dense) * data.width
    if cells > HELD:
        return lambda places: network.rows(data.repeated(places))
    check_memory(8 * cells)
    made = network.rows(data)
    return lambda places: made[places]


def _training(
    table: LocalTable, view: str, network: TableModel, theta: Array, data: EncodedTable, seed: int,
    settings: NatSettings,
) -> NatTraining:  # fmt: skip
    """The training of a shard: its targets are its own, whatever other tables and shards have."""
    own = own_seed(table, seed)
    targets = targets_of(table.snapshot.place(table.view(view).row_ids), network.spec.outputs, own)
    return NatTraining(network, theta, input_rows(network, data), targets, settings, own)


@step("nat.train", asked=ASKED, releases=Release.COUNTS, returns={})
@dataclass(frozen=True)
class Epochs(Update):
    """Train the network of a table for some more epochs, on its own rows; nothing is released."""

    epochs: Some
    seed: Seed
    settings: NatSettings

    def run(self, table: LocalTable, view: str, encoding: str, model: str) -> Values:
        """At the party of a table with one shard."""
        data = encoded(table, view, encoding)
        part = parameters_of(table, model, Bottom)
        memory = in_training(part)
        work, memory.nat = memory.nat, None  # an op that is refused leaves none: its epochs would count in part
        if not isinstance(work, NatTraining):
            work = _training(table, view, part.model, part.theta, data, self.seed, self.settings)
        work.train(self.epochs)
        part.theta, memory.nat = work.theta, work
        return {}

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """The mean over shards, if any took part."""
        part.theta = part.theta if sums is NOTHING else sums
        return {}


@op("nat.average", asked=f"{ASKED}: tables with several shards", releases=Release.PARAMETERS, returns={"theta": THETA})
def average(
    table: LocalTable, view: str, encoding: str, model: str, spec: Bottom, theta: Array, seed: Seed, epochs: Some,
    settings: NatSettings,
) -> Values:  # fmt: skip
    """Train from the parameters that the coordinator sends; return them, to be averaged with those of other shards."""
    data = encoded(table, view, encoding)
    name = f"{model}/{view}/nat"
    work = table.state.get(name)
    if not isinstance(work, NatTraining):
        network = sent_model(table, spec, data.width, theta)
        work = _training(table, view, network, theta, data, seed, settings)
    if theta.shape != work.network.shape:
        raise PartyError(f"parameters of shape {theta.shape} do not fit: {work.network.shape} is needed")
    table.state.pop(name, None)
    work.theta = theta
    work.train(epochs)
    table.state[name] = work
    return {"theta": work.theta}


@op("nat.components", asked=f'{ASKED}: `method="pca"`', releases=Release.COUNTS, returns={})
def components(table: LocalTable, view: str, encoding: str, model: str) -> Values:
    """Let the network of a table with one shard, which is linear, be its principal components."""
    data = encoded(table, view, encoding)
    part = parameters_of(table, model, Bottom)
    data.check_gram()
    counts = joined_counts(table, view)
    weights = principal_components(data.gram(counts) / counts.sum(), part.model.spec.outputs)
    part.theta = linear_theta(part.model, weights)
    return {}


def linear_theta(network: TableModel, weights: Array) -> Array:
    """The parameters of a network without hidden layers, (columns, outputs), and no bias."""
    if not isinstance(network.spec, Mlp) or network.spec.hidden:
        raise PartyError("principal components need a network without hidden layers")
    return np.concatenate([weights.T.ravel(), np.zeros(network.spec.outputs)])


# At the coordinator


@dataclass
class Averages:
    """Each shard trains on its own rows; the coordinator averages their parameters, weighted by rows."""

    model: SplitModel
    parts: dict[str, TableParameters]

    @property
    def lou(self) -> LearningOverUnion:
        """How shards are asked."""
        return self.model.lou

    def step(self, updates: Updates, rows: RowGradients | None) -> dict[str, Facts]:
        """Some epochs at every shard, then the mean; lost shards are left out of it."""
        sent = self.model.sent({alias: part.theta for alias, part in self.parts.items() if alias in updates})
        arguments = {alias: {**updates[alias].arguments, **each} for alias, each in sent.items()}
        averaged = self.lou.ask(
            "nat.average", arguments, by_alias=arguments, model=self.model.name,
            instead=lambda alias, _: {"theta": self.parts[alias].theta},
        )  # fmt: skip
        replies, means = averaged.read() if arguments else {}, dict[str, tuple[Array, Array]]()
        for alias in arguments:
            missed, shards = averaged.missed(alias), self.lou.client.shards(alias)
            weights = [0 if gone else len(shard.row_ids) for gone, shard in zip(missed, shards, strict=True)]
            if any(weights):
                means[alias] = (
                    np.average([reply["theta"] for reply in replies[alias]], axis=0, weights=weights),
                    NOTHING,
                )
        return taken(updates, self.parts, means)


@dataclass
class Guests:
    """The tables that send one message. ``lag`` is how many seconds they have until then; None: as long as they need.

    ``report`` receives how many epochs are done.
    """

    model: SplitModel
    aliases: Sequence[str]
    lag: float | None
    report: Callable[[int], None]

    def train(self, epochs: int, settings: NatSettings, seed: int) -> None:
        """Let all guests train at the same time, each in requests of its own length."""
        began, done = time.monotonic(), dict.fromkeys(self.aliases, 0)
        lengths = {alias: self._epochs_at_once(alias, epochs) for alias in self.aliases}
        while any(count < epochs for count in done.values()):
            asked = {a: min(lengths[a], epochs - done[a]) for a in self.aliases if done[a] < epochs}
            with self._hurried(began):
                self._train_some(asked, settings, seed)
            done |= {alias: done[alias] + count for alias, count in asked.items()}
            self.report(min(done.values()))

    def _train_some(self, epochs: Mapping[str, int], settings: NatSettings, seed: int) -> None:
        self.model.over = Averages(self.model, dict(self.model.shared))
        updates = {alias: Epochs(count, seed, settings) for alias, count in epochs.items()}
        self.model.step(updates, None, lambda alias, shard: {})

    def components(self) -> None:
        """Let the networks of all guests be principal components."""
        model, lou = self.model, self.model.lou
        together = [alias for alias in self.aliases if alias in model.shared]
        alone = [alias for alias in self.aliases if alias not in together]
        lou.ask("nat.components", alone, instead=lambda alias, shard: {}, **model.at_party)
        grams = lou.ask("matrix.gram", together, joined_rows=len(lou.client.rows), encoding=model.encoding.id)
        with self._hurried(time.monotonic()):
            replies = grams.read()
        for alias in together:
            network, gram = model.table_model(alias), lou.add(replies[alias], "gram")
            model.shared[alias].theta = linear_theta(network, principal_components(gram, network.spec.outputs))

    @contextmanager
    def _hurried(self, began: float) -> Iterator[None]:
        """Inside, a guest has what is left of the lag for an answer."""
        outbox = self.model.lou.client.outbox
        left = None if self.lag is None else max(0.05, self.lag - (time.monotonic() - began))
        with nullcontext() if left is None else outbox.hurried(left):
            yield

    def _epochs_at_once(self, alias: str, epochs: int) -> int:
        """The epochs of one request: of shards, those between two averages, of which there are ten at most."""
        if alias in self.model.shared:
            return math.ceil(epochs / AVERAGINGS)
        work = self.model.rows(alias) * (2_000 + 3 * self.model.table_model(alias).multiplications)
        return max(1, int(WORK / max(work, 1)))


class OnceModel(SplitModel):
    """A model whose ``guests`` send one message: while they do not learn, it stands for their embeddings.

    Guests that lagged are ``absent``, in training as in predictions (Appendix C).
    """

    blur: float = 0.0
    noise: Noise | None = None  # of FedOnce-L1

    def __init__(self, host: str, *values: Any):
        super().__init__(*values)
        self.host, self.guests = host, [alias for alias in self.tables if alias != host]
        self._messages: dict[tuple[str, str], dict[str, Floats]] = {}  # by session and view, then by alias

    def receive(self, clients: Sequence[Client]) -> Embeddings:
        """The messages of guests about the rows of some relations, in one trip; those of the first are returned.

        Zeros stand in for a guest that is lost.
        """
        if self.noise is not None:
            self.noise.predicted += 1
        asked = [(client, super(OnceModel, self).ask_outputs(client, self.guests, self._zeros)) for client in clients]
        for client, read in asked:
            self._messages[client.session, client.view] = read()
        self.absent |= frozenset(self._lost())
        for client, _ in asked:
            found = self._messages[client.session, client.view]
            found |= {alias: self.zeros(client, alias) for alias in self.absent}
        return self._messages[clients[0].session, clients[0].view]

    def forget(self) -> None:
        """Let guests be asked again: they learn from now on, or training is over."""
        self._messages = {}

    def rejoin(self) -> None:
        """Those that lagged take part again, unless their party is still lost."""
        self.absent = frozenset(self._lost())

    def ask_outputs(
        self, client: Client, aliases: Iterable[str], instead: Instead | None = None
    ) -> Callable[[], dict[str, Floats]]:
        """Ask for embeddings of those tables that have not sent their message."""
        known, listed = self._messages.get((client.session, client.view), {}), list(aliases)
        asked = [alias for alias in listed if alias not in known]
        read = super().ask_outputs(client, asked, instead)
        if asked and self.noise is not None:
            self.noise.predicted += 1
        held = {alias: known[alias] for alias in listed if alias in known}
        return lambda: read() | held

    def noise_of(self, alias: str, theta: Array | None = None) -> dict[str, Any]:
        """The arguments for noise on a table's embeddings."""
        if self.noise is not None and self.noise.prediction is not None:
            return {"noise": self.noise.of_predictions(self.noise.clip)}
        return {"blur": self.blur} if self.blur and alias in self.guests else {}

    def begin(self, seed: int, *, zero: Collection[str] = ()) -> None:
        """Create the first parameters; of noisy steps, the host begins with embeddings of zero, as it is taken for."""
        super().begin(seed, zero=zero if self.noise is None else [self.host])

    @property
    def has_noisy_parameters(self) -> bool:
        """Whether parameters come from noisy values only."""
        return self.noise is not None

    def _zeros(self, alias: str, shard: ShardRows) -> Mapping[str, Any]:
        return {"outputs": self.nothing(alias, shard).astype(self.lou.wire)}

    def _lost(self) -> list[str]:
        """The guests with one shard whose party is lost."""
        client = self.lou.client
        lost = client.outbox.lost
        return [a for a in self.guests if a not in self.shared and client.shards(a)[0].party in lost]
