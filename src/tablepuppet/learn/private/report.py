"""`PrivacyReport`: ``model.privacy_``, a dict that prints as a small table with a one-line summary.

Input: epsilons by table, party and in total (promise.py). Output: the same, for people: as text, and as HTML in a
notebook. `for_rows` gives the promise for a person with several rows. It uses no row data.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Self

from tablepuppet.errors import PrivacyError
from tablepuppet.runs.figures import NO_PROMISE, NOT_APPLICABLE, number
from tablepuppet.runs.table_view import Align, TableView

WIDTH = 118
NOTHING = "Nothing is promised: the model was fitted without privacy."
MOST_ROWS = 2**31 - 1  # of a table
NO_NOISE = "No epsilon is promised: nothing has noise."
GROUPS = (2, 10)  # rows of one person for which the table has columns
Again = Callable[[int], "PrivacyReport"]


class PrivacyReport(dict[str, Any]):
    """What a fit promised: a dict with the keys that docs/privacy.md lists, shown as a table."""

    again: Again | None = None
    shows_groups = False  # whether figures for several rows are quick to compute

    @classmethod
    def of(cls, values: Mapping[str, Any], again: Again | None, *, shows_groups: bool) -> Self:
        """``again(rows)`` computes the report for a person with ``rows`` rows in each table."""
        report = cls(values)
        report.again, report.shows_groups = again, shows_groups
        return report

    def for_rows(self, rows: int) -> PrivacyReport:
        """The report for a person with ``rows`` rows in each table, at the same delta.

        Labels cost ``rows`` times as much. Noisy sums are counted with a bound that is ``rows`` times as large; with
        samples of rows this may take some seconds.
        """
        if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= MOST_ROWS:
            given = "a larger one" if isinstance(rows, int) and rows > MOST_ROWS else repr(rows)
            raise PrivacyError(f"rows must be a whole number of at least 1 and at most {MOST_ROWS:,}, not {given}")
        if rows == self.get("rows", 1) or self.again is None:
            return self
        return self.again(rows)

    def table_view(self) -> TableView:
        """Epsilons by table, for one row and, if quick to compute, for several.

        If predictions had no noise, the figures for several rows treat them as public: no other figure is finite.
        """
        groups = GROUPS if self.shows_groups and self.get("rows", 1) == 1 else ()
        of_groups = [self.for_rows(rows)._figures() for rows in groups]
        given = math.isinf(self["epsilon"]) and math.isfinite(self["epsilon_given_messages"])
        names = ["epsilon" if self.get("rows", 1) == 1 else f"epsilon, {_rows(self['rows'])}", *map(_rows, groups)]
        names.insert(1 if given else len(names), "given predictions")
        columns: dict[str, Align] = {
            "what": "left",
            "of table": "left",
            **dict.fromkeys(names, "right"),
            "delta": "right",
        }
        rows = []
        for (what, table, epsilon, given_it), *others in zip(self._figures(), *of_groups, strict=True):
            cells = [epsilon, *(other[3] if given and other[3] is not None else other[2] for other in others)]
            cells.insert(1 if given else len(cells), given_it)
            rows.append([what, table, *map(shown, cells), f"{0 if given_it is None else self['delta'] or 0:g}"])
        return TableView("", columns, rows)

    def _figures(self) -> list[tuple[str, str, float, float | None]]:
        """(what, table, epsilon, the same given predictions): None for labels, which no prediction reveals."""
        found: list[tuple[str, str, float, float | None]] = []
        for name, table in self["tables"].items():
            if table["label"] is not None:
                found.append(("labels", name, table["label"], None))
            if table["epsilon"] is not None:
                found.append(("features", name, table["epsilon"], table["epsilon_given_messages"]))
        whole, given = (self["total"][f"features_and_label{which}"] for which in ("", "_given_messages"))
        return [*found, ("features and label", "all tables", whole, given)]

    def __str__(self) -> str:
        sentence = textwrap.fill(self.get("promise", ""), WIDTH)
        if self["delta"] is None:
            return sentence
        return f"{sentence}\n{self.table_view().text()}\n{self._hint()}"

    def _hint(self) -> str:
        return (
            "Somebody with k rows in each table: model.privacy_.for_rows(k). In words: model.privacy_['assumptions']."
        )

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        sentence = f"<p>{html.escape(self.get('promise', ''))}</p>"
        if self["delta"] is None:
            return sentence
        return f"{sentence}{self.table_view().html()}<p>{html.escape(self._hint())}</p>"


def shown(epsilon: float | None) -> str:
    """An epsilon for people; None is that of something which has none, such as labels given predictions.

    >>> shown(1.23456), shown(math.inf), shown(None)
    ('1.235', 'no promise', '-')
    """
    return NOT_APPLICABLE if epsilon is None else NO_PROMISE if math.isinf(epsilon) else number(epsilon)


def in_one_line(values: Mapping[str, Any], sums: str = "") -> str:
    """The promises in plain words, for readers who are not experts; ``sums`` is the sentence on secure sums."""
    if values["delta"] is None:
        return f"{NO_NOISE} {sums}" if sums else NOTHING
    labels = [name for name, table in values["tables"].items() if table["label"] is not None]
    features = [name for name, table in values["tables"].items() if table["epsilon"] is not None]
    rows, parts = values["rows"], []
    whose = "any one row" if rows == 1 else f"somebody with {_rows(rows)} in each table"
    if labels:
        label = values["label_epsilon"]
        text = "nothing is promised" if label is None else _hidden("the label of", whose, label, 0.0)
        parts.append(f"Labels ({', '.join(labels)}): {text}.")
    if features:
        parts.append(f"Features ({', '.join(features)}): {_of_features(values, whose)}.")
    return " ".join([*parts, sums] if sums else parts)


def _of_features(values: Mapping[str, Any], whose: str) -> str:
    whole, given, delta = values["epsilon"], values["epsilon_given_messages"], values["delta"]
    if math.isinf(given):
        return "nothing is promised"
    if math.isfinite(whole):
        return _hidden("the values of", whose, whole, delta)
    return (
        "nothing is promised against the coordinator, who saw predictions without noise; beyond these, parameters "
        f"change nobody's odds about {whose} by more than a factor of {_factor(given)} (epsilon_given_messages "
        f"{number(given)}), but for a chance of {delta:g}"
    )


def _hidden(what: str, whose: str, epsilon: float, delta: float) -> str:
    but = f", but for a chance of {delta:g}" if delta else ""
    return (
        "all that left, the model included, changes the odds of anybody but the owner about "
        f"{what} {whose} by a factor of {_factor(epsilon)} at most (epsilon {number(epsilon)}){but}"
    )


def _factor(epsilon: float) -> str:
    return number(math.exp(min(epsilon, 700.0)), 2)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
