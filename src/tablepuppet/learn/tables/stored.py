"""Where the parameters of a saved model are: with the coordinator, or with parties elsewhere that store their own.

The coordinator's half of the ops named ``parts`` (shelf_ops.py). Parts on shelves belong to no relation, so parties are
asked in a session of their own, without tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import LearnError, PartyError, TablePuppetError
from tablepuppet.operators.client import Client
from tablepuppet.party.ops import find_op
from tablepuppet.party.reply_check import check_reply
from tablepuppet.party.request import Request, Step
from tablepuppet.party.returns import Asked
from tablepuppet.wire.engine import Engine, call_all

Array = NDArray[np.float64]


@dataclass(frozen=True)
class KeepingParty:
    """A party that keeps the parameters of a table, and the fingerprint of what it keeps."""

    party: str
    fingerprint: str


@dataclass(frozen=True)
class KeptNoise:
    """How predictions of a saved model are clipped and get noise, in the units of its parameters."""

    multiplier: float
    bounds: Mapping[str, float]  # by table
    mean: tuple[float, ...]  # mean prediction over training rows, absorbed by the intercept
    square: float  # mean square of the noise, relative to that of predictions


@dataclass(frozen=True)
class Stored:
    """The parameters of a saved model by table: those that the coordinator holds, and who keeps the others."""

    part: str  # the name under which parties keep theirs
    thetas: Mapping[str, Array]
    kept: Mapping[str, KeepingParty]
    noise: KeptNoise | None = None

    @property
    def parties(self) -> list[str]:
        """The parties that store parameters."""
        return list(dict.fromkeys(kept.party for kept in self.kept.values()))

    def fetched(self, engine: Engine, shape: Callable[[str], tuple[int, ...]]) -> dict[str, Array]:
        """The parameters that parties keep, each of its table's ``shape``; PrivacyError where a policy forbids it."""
        asked = {"part": self.part, "noisy": self.noise is not None}
        replies = ask_shelves(engine, self.parties, Step("parts.parameters", "", asked))
        missing = [alias for alias, kept in self.kept.items() if alias not in replies[kept.party]]
        if missing:
            raise _gone(missing[0], self.kept[missing[0]].party)
        for alias, kept in self.kept.items():
            if (found := replies[kept.party][alias].shape) != shape(alias):
                raise PartyError(
                    f"party {kept.party!r} keeps parameters of table {alias!r} of shape {found}, not {shape(alias)}; "
                    "ask its operator, or fit and save the model again"
                )
        return {alias: replies[kept.party][alias] for alias, kept in self.kept.items()}

    def copied(self, engine: Engine, saved: str, part: str) -> Stored:
        """A copy at the parties, as part of another saved model."""
        step = Step("parts.copy", "", {"part": self.part, "saved": saved, "to": part})
        return replace(self, part=part, kept=self._kept_after(engine, step))

    def check(self, engine: Engine) -> None:
        """LearnError unless every party still keeps its part, and it is the one that was saved."""
        found = self._kept_after(engine, Step("parts.check", "", {"part": self.part}))
        for alias, kept in self.kept.items():
            if found[alias] != kept:
                raise LearnError(
                    f"party {kept.party!r} keeps another part for table {alias!r} than this model was saved with; fit "
                    "and save it again"
                )

    def _kept_after(self, engine: Engine, step: Step) -> dict[str, KeepingParty]:
        """What parties say that they keep; LearnError if one keeps nothing of a table."""
        replies, found = ask_shelves(engine, self.parties, step), {}
        for alias, kept in self.kept.items():
            fingerprint = str(replies[kept.party]["kept"].get(alias, ""))
            if not fingerprint:
                raise _gone(alias, kept.party)
            found[alias] = KeepingParty(kept.party, fingerprint)
        return found


class Storable(Protocol):
    """Parameters that can be saved, wherever they are."""

    def parameters(self) -> dict[str, Array]:
        """Parameters by table."""
        ...

    @property
    def keepers(self) -> list[str]:
        """The parties elsewhere that keep their own part of it when it is saved."""
        ...

    def new_part(self) -> str:
        """A name for what they keep."""
        ...

    def store(self, saved: str, part: str) -> Stored:
        """Let them store their parameters; the other parameters are sent to the coordinator."""
        ...


class Model(Storable, Protocol):
    """What a fitted learner needs of its parameters."""

    def scores(self, client: Client) -> Array:
        """Scores over the rows of a relation, without the intercept."""
        ...


class Held:
    """Parameters that are all with the coordinator, by table or by another name."""

    def __init__(self, thetas: Mapping[str, Array]):
        self.thetas = dict(thetas)

    @property
    def keepers(self) -> list[str]:
        """Nobody keeps a part."""
        return []

    def new_part(self) -> str:
        """Nothing has a name."""
        return ""

    def store(self, saved: str, part: str) -> Stored:
        """All parameters."""
        return Stored(part, self.parameters(), {})

    def parameters(self) -> dict[str, Array]:
        """Parameters by name."""
        return self.thetas


def _gone(alias: str, party: str) -> LearnError:
    return LearnError(
        f"party {party!r} does not keep its part of this model for table {alias!r}: another model was saved over it, "
        "it was forgotten, its state_dir is another, or somebody else saved it, whose it is; load it again, else "
        "fit and save it again"
    )


def keep_only(engine: Engine, parties: Iterable[str], saved: str, part: str) -> bool:
    """Let parties delete all parts of a saved model except one ("": delete all); return whether all did.

    A party that cannot be reached does so when the model is saved again.
    """
    with suppress(TablePuppetError):
        ask_shelves(engine, parties, Step("parts.settle", "", {"saved": saved, "keep": part}))
        return True
    return False


def ask_shelves(engine: Engine, parties: Iterable[str], step: Step) -> dict[str, Mapping[str, Any]]:
    """What each party answers about the parts that it keeps."""
    listed = list(parties)
    if not listed:
        return {}
    session = engine.new_session()
    opening = Request("open", session, {"scans": (), "wire": "float64"}, (step,))
    try:
        replies = call_all(engine, [(party, opening) for party in listed])
    finally:
        for party in listed:
            with suppress(TablePuppetError):
                engine.call(party, Request("close", session))
    for party, reply in zip(listed, replies, strict=True):
        check_reply(party, "saved models", step.op, find_op(step.op).returns, reply[1], Asked(step.arguments))
    return {party: reply[1] for party, reply in zip(listed, replies, strict=True)}
