"""Ops on a party's parts of saved models: the parameters that it stores for a caller (its shelf, party/kept.py).

With ``parts.store`` a party writes a part into its ``state_dir``; predictions in later sessions read it from there. The
other ops manage stored parts and need no table. The coordinator's half is in stored.py.
"""

from __future__ import annotations

import msgspec

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.tables.parameters import held_parameters
from tablepuppet.party.arguments import Name, NoName
from tablepuppet.party.kept import KeptCategories, KeptPart, WatchedShelf
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.origins import are_noisy
from tablepuppet.party.release import Release
from tablepuppet.party.returns import EACH, THETA, ByName, Word
from tablepuppet.prep.encode.encode import EncodedShard

ASKED = "validation, `save`, `tp.load`, `tp.forget`"
FINGERPRINT = Word(r"(?:[0-9a-f]{64})?")  # of what is kept; empty if nothing is


@op("parts.store", asked=ASKED, releases=Release.COUNTS, returns={"kept": FINGERPRINT})
def store(table: LocalTable, view: str, model: str, saved: Name, part: Name, unit: float, encoding: str = "") -> Values:
    """Store the party's parameters as ``part`` of the model that is saved as ``saved``.

    With it go the digests of the categories that ``encoding`` encodes by: the owner can find out what codes mean.

    Answers with a fingerprint, which is empty where nothing is kept. A request that was answered before writes nothing:
    the part may be forgotten since.
    """
    if table.is_repeat or not table.shelf.keeps:
        return {"kept": ""}
    found = held_parameters(table, model)
    theta = found.model.rescaled(found.theta, unit)
    kept = KeptPart.of(saved, part, table.snapshot.scan, theta, found.model.spec)
    built = table.state.get(f"{view}/{encoding}")
    if isinstance(built, EncodedShard):
        named = tuple(
            KeptCategories(each.column, each.family, each.digests.tobytes()) for each in built.data.empty.known
        )
        kept = msgspec.structs.replace(kept, encoding=encoding, categories=named)
    return {"kept": table.shelf.put(kept)}


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
def keep_only(shelf: WatchedShelf, saved: Name, keep: Name | NoName) -> Values:
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
