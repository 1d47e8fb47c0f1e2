"""What the coordinator knows of a model that is a sum over tables: predictions, and the scores of joined rows.

Who holds which parameters is in holders.py; the party's ops are in ops.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.noise.plan import Noise
from tablepuppet.learn.noise.predictions import calmed
from tablepuppet.learn.tables.holders import Holders, parties_of
from tablepuppet.learn.tables.model import TableModel, model_of
from tablepuppet.learn.tables.parameters import first_parameters
from tablepuppet.learn.tables.stored import KeptNoise
from tablepuppet.mapping.table_mapping import Floats, ShardRows
from tablepuppet.operators.client import Client, Pending, Replies
from tablepuppet.operators.joined_rows import SCORES, Block, Column, JoinedRows
from tablepuppet.operators.loj import LearningOverJoin
from tablepuppet.operators.lou import Instead, LearningOverUnion
from tablepuppet.party.spec import Spec
from tablepuppet.prep.encode import Encoding

Array = NDArray[np.float64]


class FederatedModel(Holders):
    """Asks for predictions, gathers them, and sends steps. ``noise`` is None without feature privacy."""

    def __init__(
        self, client: Client, rows: JoinedRows, encoding: Encoding, wire: str, spec: Spec, l2: float, unit: float = 1.0,
        noise: Noise | None = None,
    ):  # fmt: skip
        super().__init__(client, encoding, wire, unit)
        self.spec, self.l2, self.noise = spec, l2, noise
        self.loj = LearningOverJoin(rows)
        self.mean = np.zeros(spec.outputs)  # mean prediction over training rows, absorbed by the intercept
        self._last_predictions: dict[tuple[str, str, str], Floats] = {}  # by view, alias and party

    def begin(self, seed: int, *, zero: bool = False) -> None:
        """Create the first parameters from the seed; with ``zero``, such that all predictions are zero."""
        self.lou.ask(
            "model.start", self.alone, encoding=self.encoding.id, model=self.name, spec=self.spec, seed=seed, zero=zero
        )
        self._shared = {
            alias: first_parameters(
                self.spec, seed, alias, len(self.encoding.numbers[alias]), self.width(alias), zero=zero
            )
            for alias in self.together
        }

    @property
    def outputs(self) -> int:
        """Scores per joined row."""
        return self.spec.outputs

    def table_model(self, alias: str) -> TableModel:
        """The model of a table."""
        return model_of(self.spec, self.width(alias))

    def gradient_bound(self, alias: str, rows: Floats) -> dict[str, float]:
        """A rough bound of a table's gradient, if ``rows`` are the gradients by its predictions."""
        largest = self.lou.bound(rows) * self.encoding.largest(alias)
        return {"sums": largest * self.table_model(alias).gradient_bound(self.shared[alias].theta)}

    # Predictions.

    def ask_applied(
        self, thetas: Mapping[str, Array], instead: Instead | None = None, lou: LearningOverUnion | None = None
    ) -> Pending:
        """Ask for predictions of base rows with parameters that the coordinator sends."""
        arguments = {alias: {"theta": theta, **self._with_noise(alias, theta)} for alias, theta in thetas.items()}
        return (lou or self.lou).ask(
            "model.apply",
            arguments,
            by_alias=arguments,
            instead=self._unless_noisy(instead),
            encoding=self.encoding.id,
            spec=self.spec,
        )

    def ask_predicted(
        self, aliases: list[str], instead: Instead | None, lou: LearningOverUnion | None = None
    ) -> Pending:
        """Ask for predictions of base rows with parameters that parties hold."""
        arguments = {alias: self._with_noise(alias, None) for alias in aliases}
        return (lou or self.lou).ask(
            "model.predict", aliases, by_alias=arguments, instead=self._unless_noisy(instead),
            encoding=self.encoding.id, model=self.name,
        )  # fmt: skip

    @property
    def is_noisy(self) -> bool:
        """Whether predictions have noise."""
        return self.noise is not None and self.noise.image is not None

    def _unless_noisy(self, instead: Instead | None) -> Instead | None:
        """Without substitute if predictions have noise: they are corrected for the noise, which a substitute lacks."""
        return None if self.is_noisy else instead

    def prediction_bound(self, alias: str, theta: Array | None) -> float | None:
        """The clipping bound of noisy predictions; ``theta`` is None if the party holds the parameters."""
        return None

    def _with_noise(self, alias: str, theta: Array | None) -> dict[str, Any]:
        if self.noise is None or self.noise.image is None:
            return {}
        return {"noise": self.noise.of_predictions(self.prediction_bound(alias, theta))}

    def joined(self, replies: Replies, aliases: Iterable[str]) -> dict[str, Floats]:
        """The predictions in replies, over the rows of each table."""
        return {alias: self.lou.concatenate(replies[alias], "image") for alias in aliases}

    def nothing(self, shard: ShardRows) -> Array:
        """Zero predictions for the rows of a shard."""
        rows = len(shard.row_ids)
        return np.zeros(rows if self.outputs == 1 else (rows, self.outputs))

    def instead(self, client: Client) -> Instead:
        """The substitute for predictions of a lost shard: its last ones, or zeros."""

        def stand_in(alias: str, shard: ShardRows) -> dict[str, Any]:
            last = self._last_predictions.get((client.view, alias, shard.party))
            return {"image": self.nothing(shard) if last is None else last}

        return stand_in

    def predicted(self, client: Client, replies: Replies, aliases: Iterable[str]) -> dict[str, Floats]:
        """The predictions in replies, over the rows of each table; they are stored in case a party is lost."""
        if client.outbox.when_lost.stand_in == "cache":
            for alias in aliases:
                for shard, reply in zip(client.shards(alias), replies[alias], strict=True):
                    self._last_predictions[client.view, alias, shard.party] = reply["image"]
        return self.joined(replies, aliases)

    def gather(
        self, pending: Pending, constant: Array | None = None, still: Iterable[str] = (), into: Column = SCORES
    ) -> None:
        """Set the scores of the training rows to the predictions of tables plus a constant.

        ``pending`` are the replies of tables in `alone`, except for those that are ``still`` lost.
        """
        client, instead = self.lou.client, self.instead(self.lou.client)
        shared = self.ask_applied({alias: part.theta for alias, part in self.shared.items()}, instead)
        asked = [alias for alias in self.alone if alias not in still]
        found = self.predicted(client, shared.read(), self.together) | self.predicted(client, pending.read(), asked)
        found |= {alias: instead(alias, client.shards(alias)[0])["image"] for alias in still}
        self.loj.gather(found, into, constant)

    def predict(self, constant: Array) -> None:
        """Set the scores of the training rows to the current predictions plus a constant."""
        self._count_predictions()
        self.gather(self.ask_predicted(self.alone, self.instead(self.lou.client)), constant)

    def _count_predictions(self) -> None:
        """Count one noisy prediction of all tables, whoever holds the parameters."""
        if self.noise is not None and self.noise.image is not None:
            self.noise.images += 1

    def scores(self, client: Client) -> Array:
        """Scores of the rows of a relation, without the intercept; noisy ones are shrunk by their share of noise."""
        rows = client.joined_rows(self.outputs)
        self.score(client, rows)
        return rows.hand_over(SCORES)

    def score(self, client: Client, rows: JoinedRows, *, learning: bool = False) -> None:
        """The same, written into a column of the relation's joined rows.

        While ``learning``, lost parties are replaced by substitutes; otherwise all parties are needed.
        """
        if client.outbox is not self.lou.client.outbox:
            self.lou.client.outbox.send()  # the last step may still be queued
        client.models |= {(self.name, alias): (self.encoding.id, self.spec) for alias in self.tables}
        lou = LearningOverUnion(client, self.lou.wire)
        present = [alias for alias in self.tables if client.shards(alias)]
        at_home = [alias for alias in self.alone if parties_of(client, alias) == parties_of(self.lou.client, alias)]
        sent = [alias for alias in present if alias not in at_home]  # shards that did not train: theta is sent to them
        thetas = self._thetas(sent)
        instead = self.instead(client) if learning else None
        self._count_predictions()
        held, sent_to = self.ask_predicted(at_home, instead, lou), self.ask_applied(thetas, instead, lou)
        found = self.predicted(client, sent_to.read(), thetas) | self.predicted(client, held.read(), at_home)
        LearningOverJoin(rows).gather(found)
        if self.is_noisy:
            rows.each(_calm, self.mean, self.noise_ratio)
        if self.unit != 1.0:
            rows.each(_scale, self.unit)

    @property
    def noise_ratio(self) -> float:
        """The mean square of noise in predictions, relative to that of predictions without noise."""
        return 0.0

    # What is saved.

    @property
    def are_noisy(self) -> bool:
        """Whether parameters come from noisy values only."""
        return self.noise is not None

    def _noise_to_keep(self) -> KeptNoise | None:
        """The noise of predictions after the model is loaded, in the label's own units; None: no noise."""
        if self.noise is None or self.noise.image is None:
            return None
        bounds = {alias: bound * self.unit for alias, bound in self.kept_bounds().items()}
        return KeptNoise(self.noise.image, bounds, tuple((self.unit * self.mean).tolist()), self.noise_ratio)

    def kept_bounds(self) -> dict[str, float]:
        """The clipping bound of noisy predictions, by table."""
        return {}


def _calm(block: Block, mean: Array, noise: float) -> None:
    block[SCORES][:] = calmed(block[SCORES], mean, noise)


def _scale(block: Block, unit: float) -> None:
    scores = block[SCORES]
    scores *= unit
