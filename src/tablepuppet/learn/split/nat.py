"""Noise as targets (NAT; Bojanowski and Joulin 2017): a network of one table learns from the table's rows alone.

Input: a network, the encoded rows of a table, settings and a seed. Output: its trained parameters. It runs at the party
that has the rows (Alg. 1 of FedOnce, lines 3 to 15), and nothing here is released.

Every row i has a target c_i, a random point on the unit sphere. z_i is the output of the network, divided by its
length. Training minimises, over the parameters and over the assignment of targets to rows,

    1 / 2n sum_i |z_i - c_i|^2  =  1 - 1/n sum_i z_i . c_i                                       (Eq. 1)

In every ``assign_every``-th epoch the rows of a batch exchange their targets so that this is least for the batch; in
other epochs they keep them. Each base row is used once per epoch, however often it is joined: NAT spreads rows over the
sphere, and copies of one row would get different targets. PCA has no targets, so it weights each row by how often it is
joined (`principal_components`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Codes, Floats, upright
from tablepuppet.learn.tables.model import TableModel
from tablepuppet.learn.tables.parameters import Adam
from tablepuppet.learn.threads import need_torch, one_thread
from tablepuppet.party.allowance import check_memory, check_time
from tablepuppet.party.arguments import NotNegative, Some
from tablepuppet.party.local_table import LocalTable

Singles = NDArray[np.float32]
SHORTEST = 1e-12  # outputs of this length or less have no direction


class NatSettings(msgspec.Struct, frozen=True):
    """How a table's network is trained by NAT."""

    batch_size: Some = 64
    lr: NotNegative = 1e-3
    l2: NotNegative = 1e-5
    assign_every: Some = 1


def own_seed(table: LocalTable, seed: int) -> int:
    """A seed that no other table or shard has: else rows of two tables with one id would have one target."""
    scan = table.snapshot.scan
    return int(np.random.default_rng([seed, zlib.crc32(f"{scan.alias}/{scan.party}".encode())]).integers(2**62))


def targets_of(row_ids: Codes, outputs: int, seed: int) -> Singles:
    """Targets on the unit sphere, (rows, outputs), uniformly distributed.

    The target of a row follows from the seed and its own id: whatever other rows there are, it is the same.

    >>> both = targets_of(np.array([0, 5]), 3, seed=1)
    >>> bool((both[1:] == targets_of(np.array([5]), 3, seed=1)).all())
    True
    """
    ids = int(row_ids.max()) + 1 if len(row_ids) else 0
    check_memory(4 * 4 * ids * outputs)
    drawn = np.random.default_rng([seed, 0]).standard_normal((ids, outputs), np.float32)[row_ids]
    return np.asarray(drawn / np.maximum(np.linalg.norm(drawn, axis=1, keepdims=True), 1e-12), np.float32)


def assigned(agreement: Floats) -> Codes:
    """The column of each row, every column once, with the largest sum: the best assignment of targets to rows.

    ``agreement`` is z . c for every row and target of a batch. The largest value of each column is subtracted first.
    That changes no assignment's rank, and the search ends in half the time.

    >>> assigned(np.array([[0.9, 0.8], [0.8, 0.1]])).tolist()
    [1, 0]
    """
    from scipy.optimize import linear_sum_assignment  # loaded when it is needed, as for all of a party

    return np.asarray(linear_sum_assignment(agreement.max(axis=0) - agreement)[1])


def derivatives(outputs: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """By row: the loss 1 - z . c, and its derivative by the output h = |h| z, which is ((z . c) z - c) / |h|.

    A row depends on its own output and target only. An output of length zero has no direction: its loss is 1, and its
    derivative -c.
    """
    lengths = np.linalg.norm(outputs, axis=1, keepdims=True)
    unit = outputs / np.where(lengths > SHORTEST, lengths, 1)
    agreement = np.einsum("ij,ij->i", unit, targets)[:, None]
    return 1 - agreement[:, 0], (agreement * unit - targets) / np.where(lengths > SHORTEST, lengths, 1)


class NatTraining:
    """A network that is being trained. `train` may be called again and again: an epoch follows from those before.

    ``rows`` gives the encoded rows at some places, (places, width); ``theta`` are the parameters so far.
    """

    def __init__(
        self, network: TableModel, theta: Array, rows: Callable[[Codes], Any], targets: Singles,
        settings: NatSettings, seed: int,
    ):  # fmt: skip
        self.network, self.theta, self.rows, self.settings, self.seed = network, theta, rows, settings, seed
        check_memory(3 * 8 * min(2 * settings.batch_size, len(targets)) ** 2)  # of an assignment within a batch
        self.targets, self.epochs = targets.copy(), 0
        self.adam = Adam.over(len(theta))

    def train(self, epochs: int) -> list[float]:
        """The mean loss of each epoch, measured while the network learns."""
        with one_thread(need_torch()):
            return [self._epoch() for _ in range(epochs)]

    def _epoch(self) -> float:
        assigns = self.epochs % self.settings.assign_every == 0
        total = sum(self._step(places, assigns) for places in self._batches())
        self.epochs += 1
        return total / max(1, len(self.targets))

    def _batches(self) -> Iterator[Codes]:
        """The rows in another order each epoch, in batches that differ by at most one row: none is left alone."""
        rows = len(self.targets)
        order = np.random.default_rng([self.seed, 1, self.epochs]).permutation(rows)
        yield from np.array_split(order, max(1, round(rows / self.settings.batch_size))) if rows else ()

    def _step(self, places: Codes, assigns: bool) -> float:
        """One step; the sum of the losses of its rows before it."""
        check_time()
        passed = self.network.forward(self.theta, self.rows(places))
        outputs, targets = passed.outputs, self.targets[places]  # (batch, outputs)
        if assigns:
            # the lengths of outputs matter: targets are assigned to directions
            unit = outputs / np.maximum(np.linalg.norm(outputs, axis=1, keepdims=True), SHORTEST)
            targets = targets[assigned(unit @ targets.T)]
            self.targets[places] = targets
        losses, slopes = derivatives(outputs, targets)
        gradient, network = passed.backward(slopes / len(places)), self.network
        self.theta = self.adam.stepped(
            network.after(self.theta), gradient, self.settings.lr, self.settings.l2, network.trained
        )
        return float(losses.sum())


def principal_components(gram: Array, components: int) -> Array:
    """The first principal components of a table, (columns, components), each scaled to variance 1 over the joined rows.

    ``gram`` is T^T diag(G) T / N of encoded columns: rows are weighted by how often they are joined, G, as all columns
    of the joined table are. Where a table has fewer components than that, the others are zero. A component's sign is
    that of `upright`.
    """
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1][:components], vectors[:, ::-1][:, :components]
    kept = values > 1e-10 * max(float(values[0]), 0.0) if len(values) else values > 0
    scaled = upright(vectors[:, kept]) / np.sqrt(values[kept])
    found = np.zeros((len(gram), components))
    found[:, : scaled.shape[1]] = scaled
    return found
