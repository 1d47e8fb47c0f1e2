"""`fed.traffic` for people: what was sent, by release and party, from parties and to them."""

from __future__ import annotations

from tablepuppet.runs.figures import readable
from tablepuppet.runs.table_view import Records, TableView, aligned

_WAYS = {"up": "Sent by parties", "down": "Sent to parties"}


class TrafficRecords(Records):
    """Dicts of party, direction, release, bytes and messages; a notebook shows a table for each direction, in which a
    row is a release and a column a party.
    """

    def table_views(self) -> list[TableView]:
        """What parties sent, then what was sent to them; the largest release first."""
        return [self._way(way, title) for way, title in _WAYS.items()]

    def _repr_html_(self) -> str:
        return "".join(view.html() for view in self.table_views())

    def _way(self, way: str, title: str) -> TableView:
        entries = [entry for entry in self if entry["direction"] == way]
        parties = sorted({entry["party"] for entry in self})
        sizes: dict[str, dict[str, int]] = {}
        for entry in entries:
            sizes.setdefault(entry["release"], {})[entry["party"]] = entry["bytes"]
        largest = sorted(sizes, key=lambda release: -sum(sizes[release].values()))
        totals = {party: sum(entry["bytes"] for entry in entries if entry["party"] == party) for party in parties}
        rows = [_row(_words(release), sizes[release], parties) for release in largest]
        messages = sum(entry["messages"] for entry in entries)
        title = f"{title}: {readable(sum(totals.values()))} in {messages:,} messages"
        return TableView(title, aligned(["what"], [*parties, "all parties"]), [*rows, _row("all", totals, parties)])


def _row(what: str, sizes: dict[str, int], parties: list[str]) -> list[str]:
    return [what, *(readable(sizes[p]) if sizes.get(p) else "-" for p in parties), readable(sum(sizes.values()))]


def _words(release: str) -> str:
    """A release in plain words.

    >>> _words("KEY_DIGESTS|HISTOGRAMS")
    'key digests, histograms'
    """
    return release.lower().replace("|", ", ").replace("_", " ")
