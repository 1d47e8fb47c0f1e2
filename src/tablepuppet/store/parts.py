"""The parameters of a saved model that parties elsewhere keep, each its own: who keeps what, and the ops that ask them.

A party has a shelf for each caller (`party/kept.py`), onto which it puts a part when a model is saved (``parts.store``,
beside the parameters themselves: `learn/tables/saved.py`); predictions in later sessions read it from there. Parts
belong to no relation, so parties are asked in a session of their own, without tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PartyError, PrivacyError, TablePuppetError
from tablepuppet.operators.client import Client
from tablepuppet.party.arguments import Name, NoName
from tablepuppet.party.kept import WatchedShelf
from tablepuppet.party.ops import Values, find_op, op
from tablepuppet.party.origins import are_noisy
from tablepuppet.party.release import Release
from tablepuppet.party.request import Request, Step
from tablepuppet.party.returns import EACH, THETA, Asked, ByName, Word, check_reply
from tablepuppet.wire.engine import Engine, call_all

ASKED = "validation, `save`, `tp.load`, `tp.forget`"
FINGERPRINT = Word(r"(?:[0-9a-f]{64})?")  # of what is kept; empty if nothing is


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

    def fetched(
        self, engine: Engine, shape: Callable[[str], tuple[int, ...]], aliases: Iterable[str]
    ) -> dict[str, Array]:
        """The parameters that parties keep of tables, each of its ``shape``; PrivacyError where a policy forbids it."""
        asked, wanted = {"part": self.part, "noisy": self.noise is not None}, {a: self.kept[a] for a in aliases}
        parties = dict.fromkeys(kept.party for kept in wanted.values())
        replies = ask_shelves(engine, parties, Step("parts.parameters", "", asked))
        missing = [alias for alias, kept in wanted.items() if alias not in replies[kept.party]]
        if missing:
            raise _gone(missing[0], wanted[missing[0]].party)
        for alias, kept in wanted.items():
            if (found := replies[kept.party][alias].shape) != shape(alias):
                raise PartyError(
                    f"party {kept.party!r} keeps parameters of table {alias!r} of shape {found}, not {shape(alias)}; "
                    "ask its operator, or fit and save the model again"
                )
        return {alias: replies[kept.party][alias] for alias, kept in wanted.items()}

    def copied(self, engine: Engine, saved: str, part: str) -> Stored:
        """A copy at the parties, as part of another saved model."""
        step = Step("parts.copy", "", {"part": self.part, "saved": saved, "to": part})
        return replace(self, part=part, kept=self._kept_after(engine, step))

    def located(self, engine: Engine) -> Stored:
        """What is stored, by the names that the federation has now for the parties that keep parts.

        LearnError unless one keeps each part, and it is the one that was saved.
        """
        step, services = Step("parts.check", "", {"part": self.part}), list(filter(engine.is_service, engine.parties))
        replies = ask_shelves(engine, [party for party in self.parties if party in services], step)
        if any(_fingerprint(replies, kept.party, alias) != kept.fingerprint for alias, kept in self.kept.items()):
            for party in services:  # it may have another name now
                with suppress(TablePuppetError):
                    replies |= {} if party in replies else ask_shelves(engine, [party], step)
        return replace(self, kept={alias: _located(alias, kept, replies) for alias, kept in self.kept.items()})

    def _kept_after(self, engine: Engine, step: Step) -> dict[str, KeepingParty]:
        """What parties say that they keep; LearnError if one keeps nothing of a table."""
        replies, found = ask_shelves(engine, self.parties, step), {}
        for alias, kept in self.kept.items():
            fingerprint = str(replies[kept.party]["kept"].get(alias, ""))
            if not fingerprint:
                raise _gone(alias, kept.party)
            found[alias] = KeepingParty(kept.party, fingerprint)
        return found


Answers = Mapping[str, Mapping[str, Any]]
"""What parties answer about the parts that they keep, by party."""


def _fingerprint(replies: Answers, party: str, alias: str) -> str:
    """Of what a party says that it keeps of a table; empty if nothing."""
    return str(replies[party]["kept"].get(alias, "")) if party in replies else ""


def _located(alias: str, kept: KeepingParty, replies: Answers) -> KeepingParty:
    """Who keeps a part, by what parties answered."""
    for party in sorted(replies, key=lambda party: party != kept.party):
        if _fingerprint(replies, party, alias) == kept.fingerprint:
            return replace(kept, party=party)
    if kept.party not in replies:
        raise LearnError(
            f"the model needs party {kept.party!r}, which keeps its part for table {alias!r}: this federation has no "
            "such service, and no other service keeps it"
        )
    if not _fingerprint(replies, kept.party, alias):
        raise _gone(alias, kept.party)
    raise LearnError(
        f"party {kept.party!r} keeps another part for table {alias!r} than this model was saved with; fit and save it "
        "again"
    )


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
    opening = Request("open", session, {"scans": (), "wire": "float64", "job": engine.job}, (step,))
    try:
        replies = call_all(engine, [(party, opening) for party in listed])
    finally:
        for party in listed:
            with suppress(TablePuppetError):
                engine.call(party, Request("close", session))
    for party, reply in zip(listed, replies, strict=True):
        check_reply(party, "saved models", step.op, find_op(step.op).returns, reply[1], Asked(step.arguments))
    return {party: reply[1] for party, reply in zip(listed, replies, strict=True)}


# The party's half


@op("parts.check", asked=ASKED, releases=Release.COUNTS, on_shelf=True, returns={"kept": ByName(FINGERPRINT)})
def check(shelf: WatchedShelf, part: Name) -> Values:
    """Fingerprints of a part by table."""
    return {"kept": {kept.scan.alias: fingerprint for kept, fingerprint in shelf.all(part)}}


@op("parts.copy", asked=ASKED, releases=Release.COUNTS, on_shelf=True, returns={"kept": ByName(FINGERPRINT)})
def copy(shelf: WatchedShelf, part: Name, saved: Name, to: Name) -> Values:
    """Store a copy of a part under another name."""
    for kept, _ in shelf.all(part):
        shelf.put(msgspec.structs.replace(kept, model=saved, part=to))
    return check(shelf, to)


@op("parts.settle", asked=ASKED, releases=Release.COUNTS, on_shelf=True, returns={})
def settle(shelf: WatchedShelf, saved: Name, keep: Name | NoName) -> Values:
    """Delete all parts of a saved model except one; "": delete all."""
    shelf.keep_only(saved, keep)
    return {}


@op(
    "parts.parameters",
    asked=ASKED,
    releases=Release.PARAMETERS,
    private=("noisy",),
    on_shelf=True,
    returns={EACH: THETA},
)
def parameters(shelf: WatchedShelf, part: str, noisy: bool = False) -> Values:
    """The parameters of a part, by table; ``noisy``: made from noisy sums only, and nothing more is spent."""
    found = [kept for kept, _ in shelf.all(part)]
    for kept in found if noisy else ():
        if not are_noisy(kept.origins):
            raise PrivacyError(f"party {kept.scan.party!r}: this model was not learned with noise", rule="require_dp")
    return {kept.scan.alias: kept.theta for kept in found}
