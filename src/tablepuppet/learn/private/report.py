"""`PrivacyReport`: ``model.privacy_``, what a fit promised, computed from its plan of noise (`feature_promise.py`).

Output: a dict of epsilons by table, party and in total, which prints as a small table with a one-line summary, and
shows as HTML in a notebook. `for_rows` gives the promise for a person with several rows. It uses no row data.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.private.checks import known_otherwise
from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.privacy.settings import Privacy
from tablepuppet.runs.figures import NO_PROMISE, NOT_APPLICABLE, number
from tablepuppet.runs.table_view import Align, TableView
from tablepuppet.sql.plan import Plan

WIDTH = 118
NOTHING = "Nothing is promised: the model was fitted without privacy."
MOST_ROWS = 2**31 - 1  # of a table
NO_NOISE = "No epsilon is promised: nothing has noise."
GROUPS = (2, 10)  # rows of one person for which the table has columns
Again = Callable[[int], "PrivacyReport"]
WITHOUT = (
    "No epsilon is promised: the model was fitted without differential privacy. Parties release what docs/privacy.md "
    "lists, and the coordinator is trusted not to solve it for rows."
)
LABELS_ONLY = (
    "Labels were noised by their party before they left: whoever sees all that left, the model included, can "
    "distinguish two tables that differ in one row's label only as well as label_epsilon allows (delta 0). Which rows "
    "take part, and features, are taken as known: what is learned from features left without noise, so for them no "
    "epsilon holds."
)
SUMS_ONLY = (
    "Secure sums ({}): what shards of the table add up reaches the coordinator as their sum only; that is no "
    "differential privacy."
)
NOT_SUMMED = (
    "Secure sums: none, as no table with features has several shards; what a table computes reaches the coordinator by "
    "itself."
)


FEATURES = (
    "Neighbours are two tables that differ in the feature cells of one row, which are replaced by a null record; keys, "
    "labels, filters' outcomes and how often rows are joined are taken as known. Noise is Gaussian, of the party's own "
    "drawing; every row's part of a sum was clipped after all it is joined with was added up. A row of "
    "several shards is in one of them; a person with rows in several tables has the total."
)
NO_SAMPLES = "Nothing is gained from sampling."
SAMPLES = "Each step used a sample of rows that the party drew, each row independently (Poisson), and sent to nobody."
FEATURES_GIVEN = (
    "Predictions left without noise: they are functions of the row itself, and a row of one table reaches another's "
    "parameters through them. So epsilon is infinite, and epsilon_given_messages, the paper's accounting, holds for "
    "somebody who sees a table's parameters and takes all predictions as known anyway."
)
FEATURES_WHOLE = (
    "Predictions were clipped and noised too, each time they left, also after the fit: epsilon counts all of it and "
    "grows with every evaluation or prediction."
)
SEVERAL_ROWS = (
    "All of this is for one row of a table; somebody with k rows is promised less, as privacy_.for_rows(k) says: k "
    "times the epsilon of a label, and for features that of noise k times smaller."
)
LABELS_TOO = "Labels left without noise: for a label no epsilon holds."
LABELS_NOISED = "Labels were noised by their party before they left (delta 0)."


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
        columns: dict[str, Align] = {"what": "left", **dict.fromkeys(names, "right"), "delta": "right"}
        rows = []
        for (what, table, epsilon, given_it), *others in zip(self._figures(), *of_groups, strict=True):
            cells = [epsilon, *(other[3] if given and other[3] is not None else other[2] for other in others)]
            cells.insert(1 if given else len(cells), given_it)
            promised = math.isfinite(epsilon if given_it is None else min(epsilon, given_it))
            delta = f"{0 if given_it is None else self['delta'] or 0:g}" if promised else NOT_APPLICABLE
            # In one column: where a window takes several tables, each has the first one beside it.
            rows.append([f"{what} of {table}", *map(shown, cells), delta])
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


@dataclass(frozen=True)
class UsedTable:
    """What a fit uses of one table."""

    parties: tuple[str, ...]
    label: bool
    aliases: tuple[str, ...]  # of its uses that have features


@dataclass(frozen=True)
class Uses:
    """What a fit uses, by table: all that ``privacy_`` needs of its plan."""

    tables: Mapping[str, UsedTable]
    parties: tuple[str, ...]
    known: tuple[str, ...]  # of features, by keys, filters and labels: as sentences
    summed: tuple[str, ...] = ()  # tables whose shards reach the coordinator as their sum only

    @classmethod
    def of(cls, plan: Plan, privacy: Privacy | None, rosters: Collection[str] | None = None) -> Uses:
        """By name: a table that is used twice has both of its uses.

        ``rosters`` are the uses whose shards have agreed to mask their sums; if not known yet, those of several shards.
        """
        label = None if plan.query.label is None else plan.query.label.alias
        features = {column.alias for column in plan.query.features}
        tables = {}
        for table in plan.tables.values():
            uses = {alias for alias, other in plan.tables.items() if other.name == table.name}
            tables[table.name] = UsedTable(table.parties, label in uses, tuple(sorted(uses & features)))
        summed: list[str] = []
        if privacy is not None and privacy.secure_sum:
            several = [alias for alias in features if len(plan.tables[alias].shards) > 1]
            summed = sorted({plan.tables[alias].name for alias in (several if rosters is None else rosters)})
        return cls(tables, plan.parties, tuple(known_otherwise(plan, privacy)), tuple(summed))


def promised(
    uses: Uses, privacy: Privacy | None, promise: FeaturePromise | None = None, rows: int = 1
) -> PrivacyReport:
    """``privacy_`` of a model, for a person with ``rows`` rows in each table.

    ``epsilon`` is for the features of a row in any one table, with labels treated as public; ``label_epsilon`` is for a
    label, with features treated as public. An epsilon is None if nothing was released, infinite if a release had no
    noise. ``total`` is for a person with a row in every table: ``moments`` counts the releases of all tables together
    (FedOnce, Theorem 4); the plain sum of epsilons holds at the sum of deltas, ``sum_delta``. ``features_and_label``
    adds the label: from all features of a row to none at the cost of ``moments``, and then from one label to another at
    that of the label, whose delta is 0.
    """

    def of_features(aliases: Sequence[str]) -> tuple[float, float]:
        """(epsilon, epsilon given messages) of these uses of tables, together."""
        if promise is None or not aliases:
            return (math.inf, math.inf) if aliases else (0.0, 0.0)
        return promise.epsilon(aliases, rows=rows), promise.epsilon(aliases, rows=rows, given_messages=True)

    label = None if privacy is None or privacy.label_epsilon is None else rows * privacy.label_epsilon
    tables: dict[str, dict[str, Any]] = {}
    for name, use in uses.tables.items():
        whole, given = of_features(use.aliases) if use.aliases else (None, None)
        of_label = (math.inf if label is None else label) if use.label else None
        tables[name] = {
            "parties": list(use.parties), "label": of_label, "epsilon": whole, "epsilon_given_messages": given,
        }  # fmt: skip
    parties = {}
    for party in uses.parties:
        whole, given = of_features([a for use in uses.tables.values() if party in use.parties for a in use.aliases])
        parties[party] = {"epsilon": whole, "epsilon_given_messages": given}
    aliases = [alias for use in uses.tables.values() for alias in use.aliases]
    moments, given = of_features(aliases)
    labels = sum(table["label"] or 0.0 for table in tables.values())
    alone, alone_given = (
        [table[name] or 0.0 for table in tables.values()] for name in ("epsilon", "epsilon_given_messages")
    )
    sums = _of_sums(uses, privacy)
    values = {
        "rows": rows,
        "epsilon": max(alone, default=0.0),
        "epsilon_given_messages": max(alone_given, default=0.0),
        "delta": promise.privacy.delta if promise else None if label is None else 0.0,
        "label_epsilon": label,
        "secure_sum": bool(uses.summed),
        "tables": tables,
        "parties": parties,
        "total": {
            "epsilon": sum(alone),
            "epsilon_given_messages": sum(alone_given),
            "moments": moments,
            "moments_given_messages": given,
            "sum_delta": 0.0 if promise is None else promise.privacy.delta * len(aliases),
            "features_and_label": moments + labels,
            "features_and_label_given_messages": given + labels,
        },
        "assumptions": " ".join(filter(None, [_assumptions(privacy, promise), sums, *uses.known])),
    }
    values["promise"] = in_one_line(values, sums)
    return reported(values, uses, privacy, promise)


def reported(
    values: Mapping[str, Any], uses: Uses, privacy: Privacy | None, promise: FeaturePromise | None
) -> PrivacyReport:
    """``privacy_`` that was computed before, for instance of a saved model."""
    quick = promise is None or not promise.is_sampled
    return PrivacyReport.of(values, partial(promised, uses, privacy, promise), shows_groups=quick)


def _assumptions(privacy: Privacy | None, promise: FeaturePromise | None) -> str:
    of_labels = privacy is not None and privacy.is_label_private
    parts = [LABELS_ONLY if of_labels else WITHOUT]
    if promise is not None:
        given = promise.privacy.prediction_epsilon is None
        parts = [FEATURES, SAMPLES if promise.is_sampled else NO_SAMPLES, FEATURES_GIVEN if given else FEATURES_WHOLE]
        parts.append(LABELS_NOISED if of_labels else LABELS_TOO)
    if promise is not None or of_labels:
        parts.append(SEVERAL_ROWS)
    return " ".join(parts)


def _of_sums(uses: Uses, privacy: Privacy | None) -> str:
    """A sentence on secure sums, if they were asked for."""
    if privacy is None or not privacy.secure_sum:
        return ""
    return SUMS_ONLY.format(", ".join(uses.summed)) if uses.summed else NOT_SUMMED
