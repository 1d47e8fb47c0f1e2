"""A model that was loaded: parties are told the parameters that the coordinator holds, and use those they keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.feature_promise import Spent
from tablepuppet.learn.image_noise import calmed
from tablepuppet.learn.placed import ask_images, parties_of
from tablepuppet.learn.stored import KeptNoise, Stored
from tablepuppet.operators.client import Client, Replies
from tablepuppet.operators.loj import LearningOverJoin
from tablepuppet.operators.lou import LearningOverUnion
from tablepuppet.prep.encode import Encoding
from tablepuppet.wire.engine import Engine

Array = NDArray[np.float64]


class SavedModel:
    """Parameters of a model loaded from a folder, for predictions only."""

    def __init__(
        self, family: str, encoding: Encoding, stored: Stored, engine: Engine, wire: str, outputs: int,
        shape: Mapping[str, Any] | None = None,
    ):  # fmt: skip
        self.family, self.encoding, self.stored, self.engine = family, encoding, stored, engine
        self.wire, self.outputs, self.shape = wire, outputs, dict(shape or {})
        self.spent: Spent | None = None  # where predictions with noise are counted

    def scores(self, client: Client) -> Array:
        """The sum over tables for the rows of a relation, without the intercept."""
        lou = LearningOverUnion(client, self.wire)
        present = {alias for alias in (*self.stored.thetas, *self.stored.kept) if client.shards(alias)}
        at_home = [a for a, kept in self.stored.kept.items() if parties_of(client, a) == [kept.party]]
        thetas = dict(self.stored.thetas)
        if present - set(at_home) - set(thetas):  # shards that did not train: they are told theta
            thetas |= self.stored.fetched(self.engine)
        told = {alias: theta for alias, theta in thetas.items() if alias in present and alias not in at_home}
        noise = self.stored.noise
        kept, images = self._ask(lou, at_home, told) if noise is None else self._ask_noisy(lou, at_home, told, noise)
        found = {alias: lou.concatenate(images[alias], "image") for alias in told}
        found |= {alias: lou.concatenate(kept[alias], "image") for alias in at_home}
        scores = LearningOverJoin(client.mapping).gather(found, self.outputs)
        return scores if noise is None else calmed(scores, np.array(noise.mean), noise.square)

    def _ask(self, lou: LearningOverUnion, kept: list[str], told: Mapping[str, Array]) -> tuple[Replies, Replies]:
        """Ask for predictions of base rows, for parameters that parties keep and for those they are told."""
        held = lou.ask(f"{self.family}.predict", kept, encoding=self.encoding.id, model=self.stored.part)
        return held, ask_images(lou, self.family, self.encoding, told, self.shape)

    def _ask_noisy(
        self, lou: LearningOverUnion, kept: list[str], told: Mapping[str, Array], noise: KeptNoise
    ) -> tuple[Replies, Replies]:
        """The same with noise, as in the run that fitted it."""
        assert self.spent is not None, "it comes with the noise"
        self.spent.images += 1
        asked: dict[str, Any] = {"encoding": self.encoding.id, "image_multiplier": noise.multiplier}
        within = {alias: {"bound": noise.bounds[alias]} for alias in kept}
        held = lou.ask("private.predict_within", kept, by_alias=within, model=self.stored.part, **asked)
        given = {alias: {"bound": noise.bounds[alias], "theta": theta} for alias, theta in told.items()}
        asked |= {"hidden": self.shape.get("hidden"), "outputs": self.outputs}
        return held, lou.ask("private.image_within", given, by_alias=given, **asked)

    def parameters(self) -> dict[str, Array]:
        """Parameters by table; parties are asked for those that they keep."""
        return dict(self.stored.thetas) | self.stored.fetched(self.engine)

    @property
    def keepers(self) -> list[str]:
        """The parties that keep their own part."""
        return self.stored.parties

    def new_part(self) -> str:
        """A name for what parties keep of it when it is saved once more."""
        return f"{self.engine.new_session()}.0"

    def store(self, saved: str, part: str) -> Stored:
        """Let parties keep their part once more; from now on this is the one that is used."""
        self.stored = self.stored.copied(self.engine, saved, part)
        return self.stored
