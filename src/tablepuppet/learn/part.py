"""A party's part of a model, whatever its family: in memory while it is learned, on a shelf once it is saved.

With ``model.keep`` a party remembers its parameters as they are, with ``model.restore`` it goes back to them. With
``parts.store`` it writes them into its ``state_dir``, from where predictions take them in later sessions; the other ops
named ``parts`` are about what stands there and need no table. The coordinator's half is in stored.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.learn.table_network import TableNetwork
from tablepuppet.party.kept import KeptPart, Shelf
from tablepuppet.party.ops import LocalTable, Values, op
from tablepuppet.party.release import Release
from tablepuppet.prep.encoded_table import EncodedTable

Array = NDArray[np.float64]


class Part(Protocol):
    """What is kept of one table: its parameters, and what an algorithm remembers beside them."""

    theta: Array
    noisy: bool  # whether all that it is made of had noise

    def descend(self, sums: Array, lr: float, momentum: float, l2: float) -> None:
        """One step of stochastic gradient descent (Eq. 13)."""
        ...

    def to_store(self, unit: float) -> tuple[Array, tuple[int, ...]]:
        """The parameters for scores ``unit`` times as large, and the sizes of layers if it is a network."""
        ...


@dataclass(frozen=True)
class StoredPart:
    """A part from the shelf: for predictions."""

    theta: Array
    network: TableNetwork | None
    noisy: bool


def encoded(table: LocalTable, view: str, encoding: str) -> EncodedTable:
    """The encoded rows that ``encode.build`` left at the party."""
    found = table.state.get(f"{view}/{encoding}")
    if not isinstance(found, EncodedTable):
        raise PartyError(f"party {table.grant.party!r} has not encoded the rows of this relation; fit the model again")
    return found


def keep_part(table: LocalTable, model: str, part: Part) -> None:
    """Keep the party's part of a model; PrivacyError where a shard may not learn by itself."""
    if table.must_mask:
        raise table.secure.refusal("what is learned from its rows leaves only within a sum over three or more shards")
    table.models[f"{model}/{table.snapshot.scan.alias}"] = part


def part_of(table: LocalTable, model: str) -> Any:
    """The party's part of a model that is being learned, or was; PartyError if it has none."""
    part = table.models.get(f"{model}/{table.snapshot.scan.alias}")
    if part is None:
        scan = table.snapshot.scan
        raise PartyError(
            f"party {scan.party!r} has no part of this model for {scan.alias!r}: if another was saved over it, load it "
            "again, else fit it again"
        )
    return part


def part_for_predictions(table: LocalTable, model: str) -> Any:
    """The party's part of a model, from the shelf if the model was loaded."""
    alias = table.snapshot.scan.alias
    if f"{model}/{alias}" not in table.models and (kept := table.shelf.get(model, alias)):
        return StoredPart(kept.theta, TableNetwork(kept.sizes) if kept.sizes else None, kept.noisy)
    return part_of(table, model)


@op("model.keep", releases=Release.COUNTS)
def keep(table: LocalTable, view: str, model: str) -> Values:
    """Remember the parameters as they are."""
    table.models[_kept(table, model)] = part_of(table, model).theta
    return {}


@op("model.restore", releases=Release.COUNTS)
def restore(table: LocalTable, view: str, model: str) -> Values:
    """Go back to the parameters that were remembered."""
    part, kept = part_of(table, model), table.models.pop(_kept(table, model), None)
    if kept is None:
        raise PartyError(f"party {table.grant.party!r} remembers no parameters of this model; fit it again")
    part.theta = kept
    return {}


def _kept(table: LocalTable, model: str) -> str:
    return f"{model}/{table.snapshot.scan.alias}/kept"


@op("parts.store", releases=Release.COUNTS)
def store(table: LocalTable, view: str, model: str, saved: str, part: str, unit: float) -> Values:
    """Keep the part of a model on the shelf, as ``part`` of the model that is saved as ``saved``.

    Answers with a fingerprint, which is empty where nothing is kept. A request that was answered before writes nothing:
    the part may be forgotten since.
    """
    if table.is_repeat or not table.shelf.keeps:
        return {"kept": ""}
    found: Part = part_of(table, model)
    theta, sizes = found.to_store(unit)
    return {"kept": table.shelf.put(KeptPart.of(saved, part, table.snapshot.scan, theta, sizes, noisy=found.noisy))}


@op("parts.check", releases=Release.COUNTS, on_shelf=True)
def check(shelf: Shelf, part: str) -> Values:
    """Fingerprints of a part by table."""
    return {"kept": {kept.scan.alias: fingerprint for kept, fingerprint in shelf.all(part)}}


@op("parts.copy", releases=Release.COUNTS, on_shelf=True)
def copy(shelf: Shelf, part: str, saved: str, to: str) -> Values:
    """Keep a part again under another name."""
    for kept, _ in shelf.all(part):
        shelf.put(msgspec.structs.replace(kept, model=saved, part=to))
    return check(shelf, to)


@op("parts.settle", releases=Release.COUNTS, on_shelf=True)
def settle(shelf: Shelf, saved: str, keep: str) -> Values:
    """Forget all parts of a saved model but one; "" is none."""
    shelf.settle(saved, keep)
    return {}


@op("parts.parameters", releases=Release.PARAMETERS, on_shelf=True)
def parameters(shelf: Shelf, part: str) -> Values:
    """The parameters of a part, by table."""
    return {kept.scan.alias: kept.theta for kept, _ in shelf.all(part)}


@op("parts.noisy_parameters", releases=Release.PARAMETERS, private=True, on_shelf=True)
def noisy_parameters(shelf: Shelf, part: str) -> Values:
    """The same of a part that was made from noisy sums only: nothing more is spent."""
    for kept, _ in shelf.all(part):
        if not kept.noisy:
            raise PrivacyError(f"party {kept.scan.party!r}: this model was not learned with noise", rule="require_dp")
    return parameters(shelf, part)
