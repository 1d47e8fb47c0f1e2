"""The names of categories: text, which a party releases only for columns that its policy makes public.

Models contain categories as digests and refer to them by codes. The coordinator asks for the names of some of them. The
op finds them among the party's rows, and returns no category with fewer rows than the policy's ``min_group``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.errors import PartyError, plain_text
from tablepuppet.operators.client import Client
from tablepuppet.party.arguments import Within
from tablepuppet.party.blind import blind
from tablepuppet.party.groups import all_grouped, rows_by
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import Numbers, OfGroups, Returns, Texts
from tablepuppet.prep.columns.selected import is_public
from tablepuppet.prep.columns.statistics import check_family, key_family
from tablepuppet.sql.query import OutputColumn

Blinding = Literal["text", "uuid", "number", "boolean", "date", "timestamp"]
Digests = Annotated[NDArray[np.uint8], Within(dimensions=(2,))]
MOST = 100_000  # categories at once
MOST_TEXT = 1000  # characters of a name; longer ones are cut
NAMED: Returns = {
    "places": OfGroups(Numbers(("names",), "iu", least=0, places_in="digests")), "names": OfGroups(Texts(MOST_TEXT)),
}  # fmt: skip


@op(
    "categories.names",
    asked="`describe`, `categories_`, `save`, of public columns",
    releases=Release.CATEGORIES,
    columns=("column",),
    returns=NAMED,
)
def category_names(
    table: LocalTable, view: str, column: str, family: Blinding, blinding: str, digests: Digests
) -> Values:
    """The names of the categories with these ``digests``, each with its position among them."""
    if digests.shape[1] != 16 or len(digests) > MOST:
        raise PartyError(f"party {table.grant.party!r}: name up to {MOST:,} categories by digests of 16 bytes")
    check_family(table, column, family)
    values = table.column(column, view)
    blinded = blind([values], [family], table.category_key(blinding, column))
    rows = rows_by(table.view(view), blinded.codes, len(blinded.digests))
    first = np.full(len(blinded.digests) + 1, -1)
    first[blinded.codes[::-1]] = np.arange(len(blinded.codes))[::-1]
    first_asked, found = (np.ascontiguousarray(each).view("V16").ravel() for each in (digests, blinded.digests))
    _, places, codes = np.intersect1d(first_asked, found, return_indices=True)
    kept = table.grant.is_group(rows[codes])  # of one that only the missing row has, there are none
    names = names_of(values.take(pa.array(first[codes[kept]])))
    return all_grouped({"places": places[kept].astype(np.int32), "names": names}, rows[codes[kept]])


def names_of(values: pa.ChunkedArray) -> list[str]:
    """Values as texts of bounded length."""
    return list(pc.utf8_slice_codeunits(values.cast(pa.string()), 0, MOST_TEXT).to_pylist())


@dataclass(frozen=True)
class Coded:
    """A column whose categories are known by digests under the secret that ``blinding`` names."""

    column: OutputColumn
    blinding: str
    digests: NDArray[np.uint8]

    @property
    def arguments(self) -> Mapping[str, Mapping[str, Any]]:
        """The question for their names, for the shards of its table."""
        named = {"column": self.column.name, "family": key_family(self.column), "blinding": self.blinding}
        return {self.column.alias: {**named, "digests": self.digests}}


class CategoryNames:
    """What categories are called: asked for at construction, read on first use."""

    def __init__(self, client: Client, coded: Iterable[Coded]):
        self.coded = list(coded)
        self._asked = [client.ask("categories.names", each.arguments) for each in self.coded]

    def by_column(self) -> dict[str, list[str | None]]:
        """The names of the categories that were asked for, by column."""
        return {each.column.name: names for each, names in zip(self.coded, self.read(), strict=True)}

    def read(self) -> list[list[str | None]]:
        """Column by column in the order of digests; None where no party says."""
        found = []
        for each, pending in zip(self.coded, self._asked, strict=True):
            names: list[str | None] = [None] * len(each.digests)
            for reply in pending.read()[each.column.alias]:
                for place, name in zip(reply["places"].tolist(), reply["names"], strict=True):
                    names[place] = plain_text(name, MOST_TEXT)
            found.append(names)
        return found


def ask_public_names(client: Client, coded: Iterable[Coded]) -> CategoryNames:
    """Ask for the names of categories of public columns; others are left out."""
    return CategoryNames(client, [e for e in coded if len(e.digests) and is_public(client.plan, e.column)])
