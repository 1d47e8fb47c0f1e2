"""What the coordinator knows of a model that is a sum over tables: predictions, and the scores of joined rows.

Who holds which parameters is in holders.py; the party's ops are in ops.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from tablepuppet.arrays import Array, Floats
from tablepuppet.errors import PartyError
from tablepuppet.learn.noise.plan import Noise
from tablepuppet.learn.tables.holders import Holders
from tablepuppet.learn.tables.model import Spec
from tablepuppet.learn.tables.saved import calm
from tablepuppet.learn.tables.steps import ShardSums
from tablepuppet.mapping.joined_rows import SCORES, Block, Column, JoinedRows
from tablepuppet.operators.client import Client
from tablepuppet.operators.loj import LearningOverJoin
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.store.parts import KeptNoise


class FederatedModel(Holders):
    """Asks for predictions, gathers them, and sends steps. ``noise`` is None without feature privacy."""

    held_op, sent_op = "model.predict", "model.apply"

    def __init__(
        self, client: Client, rows: JoinedRows, encoding: Encoding, wire: str, spec: Spec, l2: float, unit: float = 1.0,
        noise: Noise | None = None,
    ):  # fmt: skip
        super().__init__(client, encoding, wire, unit)
        self.spec, self.l2, self.noise = spec, l2, noise
        self.loj = LearningOverJoin(rows, spec.head)
        self.mean = np.zeros(spec.outputs)  # mean prediction over training rows, absorbed by the intercept
        self.square = 0.0  # |theta|^2, as the last noisy steps left it

    def begin(self, seed: int, *, zero: Collection[str] = ()) -> None:
        """Create the first parameters from the seed; outputs of the tables in ``zero`` are zero at first."""
        super().begin(seed, zero=zero)
        self.over = ShardSums(
            self.lou, self.together, lambda alias: self.sent_shared()[alias],
            lambda alias: self.table_model(alias).shape, self._gradient_bound, parts=self._shared,
        )  # fmt: skip

    @property
    def outputs(self) -> int:
        """Scores per joined row."""
        return self.spec.outputs

    def spec_of(self, alias: str) -> Spec:
        """The same for every table."""
        return self.spec

    def _gradient_bound(self, alias: str, rows: Floats) -> float:
        """A rough bound of a table's gradient, if ``rows`` are the gradients by its predictions."""
        largest = self.lou.bound(rows) * self.encoding.largest(alias)
        return largest * self.table_model(alias).gradient_bound(self.shared[alias].theta)

    def check_products(self, by_table: Mapping[str, Array], size: int) -> None:
        """PartyError unless each table, by alias, returned the inner products of ``size`` stored vectors."""
        client = self.lou.client
        for alias, products in by_table.items():
            if products.shape[1] != size:
                raise PartyError(
                    f"party {client.shards(alias)[0].party!r}, table {client.plan.tables[alias].name!r}: it returns "
                    f"inner products of {products.shape[1]} vectors, not of {size}; ask its operator, and whether it "
                    "runs the same version"
                )

    # Predictions.

    @property
    def has_noisy_outputs(self) -> bool:
        """Whether predictions have noise."""
        return self.noise is not None and self.noise.prediction is not None

    def prediction_bound(self, alias: str, theta: Array | None) -> float | None:
        """The clipping bound of noisy predictions; ``theta`` is None if the party holds the parameters."""
        return None if self.noise is None else self.noise.clip

    def noise_of(self, alias: str, theta: Array | None = None) -> dict[str, Any]:
        """The noise of predictions, with their clipping bound."""
        if self.noise is None or self.noise.prediction is None:
            return {}
        return {"noise": self.noise.of_predictions(self.prediction_bound(alias, theta))}

    def set_scores(
        self, predictions: Mapping[str, Floats], constant: Array | None = None, into: Column = SCORES
    ) -> None:
        """Set the scores of the training rows to the predictions of tables plus a constant.

        They are stored in case a party is lost; of a table without predictions here, those stored before are used, or
        zeros.
        """
        client = self.lou.client
        instead = self.instead(client)
        absent = [alias for alias in self.alone if alias not in predictions]
        found = dict(predictions) | {a: instead(a, client.shards(a)[0])["outputs"] for a in absent}
        self._remember(client, found)
        self.loj.gather(found, into, constant)

    def predict(self, constant: Array, into: Column = SCORES) -> None:
        """Set the scores of the training rows, or another column, to the current predictions plus a constant."""
        self._count_predictions()
        self.set_scores(self.ask_outputs(self.lou.client, self.tables, self.instead(self.lou.client))(), constant, into)

    def _count_predictions(self) -> None:
        """Count one noisy prediction of all tables, whoever holds the parameters."""
        if self.noise is not None and self.has_noisy_outputs:
            self.noise.predicted += 1

    def score(self, client: Client, rows: JoinedRows, *, learning: bool = False) -> None:
        """Write the scores of a relation's rows; noisy ones are shrunk by their share of noise."""
        read = self.ask_outputs(client, self.tables, self.instead(client) if learning else None)
        self._count_predictions()  # after parameters were fetched, which may be refused
        LearningOverJoin(rows, self.spec.head).gather(read())
        if self.has_noisy_outputs:
            rows.each(calm, self.mean, self.noise_ratio)
        if self.unit != 1.0:
            rows.each(_scale, self.unit)

    @property
    def noise_ratio(self) -> float:
        """The mean square of noise in predictions, relative to that of predictions without noise.

        These are about as large as parameters, and bounded.
        """
        if self.noise is None or self.noise.prediction is None:
            return 0.0
        most = len(self.tables) * self.noise.clip**2
        return most * self.noise.prediction**2 / max(min(self.square, most), 1e-300)

    # What is saved.

    @property
    def has_noisy_parameters(self) -> bool:
        """Whether parameters come from noisy values only."""
        return self.noise is not None

    def _noise_to_keep(self) -> KeptNoise | None:
        """The noise of predictions after the model is loaded, in the label's own units; None: no noise."""
        if self.noise is None or self.noise.prediction is None:
            return None
        bounds = {alias: bound * self.unit for alias, bound in self.kept_bounds().items()}
        return KeptNoise(self.noise.prediction, bounds, tuple((self.unit * self.mean).tolist()), self.noise_ratio)

    def kept_bounds(self) -> dict[str, float]:
        """The clipping bound of noisy predictions, by table."""
        return {} if self.noise is None else dict.fromkeys(self.tables, self.noise.clip)


def _scale(block: Block, unit: float) -> None:
    scores = block[SCORES]
    scores *= unit
