"""What a fit promises: checks that its `Privacy` can be kept and is what tables demand; computes the epsilons.

Input: a learner's privacy and a plan. Output: a PrivacyError before anything is asked of a party, or ``privacy_``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlglot import exp

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.private.report import PrivacyReport, in_one_line
from tablepuppet.operators.secure_sum import check_shards
from tablepuppet.privacy.settings import Privacy
from tablepuppet.sql.expression import checked, columns_of
from tablepuppet.sql.other_uses import known_of_features, uses_of_table
from tablepuppet.sql.plan import Plan

NOTHING = (
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
GROUPS = (
    "All of this is for one row of a table; somebody with k rows is promised less, as privacy_.for_rows(k) says: k "
    "times the epsilon of a label, and for features that of noise k times smaller."
)
LABELS_TOO = "Labels left without noise: for a label no epsilon holds."
LABELS_NOISED = "Labels were noised by their party before they left (delta 0)."


def check_supported(privacy: object) -> None:
    """PrivacyError if the privacy has a part that learners do not support yet."""
    if privacy is None:
        return
    if not isinstance(privacy, Privacy):
        raise PrivacyError(f"privacy must be tp.Privacy(...) or None, not {type(privacy).__name__}")
    if privacy.is_empty:
        raise PrivacyError(
            "this tp.Privacy promises nothing: set label_epsilon (labels are noised), feature_epsilon (what is learned "
            "from features is noised) or secure_sum, or leave privacy out"
        )
    if privacy.prediction_epsilon is not None and privacy.feature_epsilon is None:
        raise PrivacyError("prediction_epsilon is for predictions only: set feature_epsilon too, 1 is usual")


def check_demanded(plan: Plan, privacy: Privacy | None, instead: str = "") -> None:
    """PrivacyError if a party demands noise, of labels or of what is learned from features, that is not asked for.

    ``instead``: what to learn with where features cannot have noise.
    """
    label = None if plan.query.label is None else plan.query.label.alias
    features = {column.alias for column in plan.query.features}
    for alias, table in plan.tables.items():
        needs = []
        if alias == label and (privacy is None or privacy.label_epsilon is None):
            needs.append("label_epsilon")
        if alias in features:
            asked = ("feature_epsilon", "prediction_epsilon")
            needs += [name for name in asked if privacy is None or getattr(privacy, name) is None]
        demanding = [shard.party for shard in table.shards if shard.require_dp]
        if needs and demanding:
            learners = f"{instead} and " if instead and needs != ["label_epsilon"] else ""
            raise PrivacyError(
                f"party {demanding[0]!r}, table {table.name!r}: its policy demands differential privacy; learn with "
                f"{learners}privacy=tp.Privacy({', '.join(f'{name}=...' for name in needs)}) (policy rule require_dp)",
                rule="require_dp",
            )


def check_sums_demanded(plan: Plan, privacy: Privacy | None) -> None:
    """PrivacyError if a party demands secure sums, and they are not asked for or its table has too few shards."""
    for alias in dict.fromkeys(column.alias for column in plan.query.features):
        table = plan.tables[alias]
        demanding = [shard.party for shard in table.shards if shard.secure_sum]
        if demanding and (privacy is None or not privacy.secure_sum):
            raise PrivacyError(
                f"party {demanding[0]!r}, table {table.name!r}: its policy demands that sums over its rows leave only "
                "within a sum over three or more shards; learn with privacy=tp.Privacy(secure_sum=True) (policy rule "
                "secure_sum)",
                rule="secure_sum",
            )
        if demanding:
            check_shards(table, [shard.party for shard in table.shards])


def check_label_apart(plan: Plan, privacy: Privacy | None) -> None:
    """PrivacyError if labels get noise but the query reveals their columns in another way.

    A filter on whether a label is missing is allowed: this is treated as public.
    """
    label = plan.query.label
    if privacy is None or not privacy.is_label_private or label is None:
        return
    table, own = plan.tables[label.alias].name, set(columns_of(label.expression))
    for how, text in uses_of_table(plan, table):
        shared = sorted(own & set(_revealed_columns(text) if how == "filter" else columns_of(text)))
        if shared and how != "label":
            raise PrivacyError(
                f"table {table!r}, column {shared[0]!r}: it makes the label, which is noised, and is used as a "
                f"{how} too, which would reveal it without noise; leave it out there"
            )


def known_otherwise(plan: Plan, privacy: Privacy | None) -> list[str]:
    """Features whose columns the query uses in another way too, as sentences, if features are protected.

    Keys, results of filters and labels are treated as public: what they reveal of such a cell is not protected.
    """
    if privacy is None or not privacy.is_feature_private:
        return []
    return known_of_features(plan)


def _revealed_columns(text: str) -> Iterable[str]:
    """The columns of a filter of which it reveals more than whether they are missing."""
    for column in checked(text).find_all(exp.Column):
        test = column.parent
        while isinstance(test, exp.Paren):
            test = test.parent
        if not (isinstance(test, exp.Is) and isinstance(test.expression, exp.Null)):
            yield from columns_of(column.sql(dialect="duckdb"))


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

    ``epsilon`` is for the features of a row in any one table, with labels treated as public; ``total`` is for a person
    with a row in every table. ``label_epsilon`` is for a label, with features treated as public; ``total`` also has
    both together.
    """
    label = None if privacy is None or privacy.label_epsilon is None else rows * privacy.label_epsilon
    tables = {name: _of_table(use, label, promise, rows) for name, use in uses.tables.items()}
    sums = _of_sums(uses, privacy)
    values = {
        "rows": rows,
        "epsilon": _largest(tables.values(), "epsilon"),
        "epsilon_given_messages": _largest(tables.values(), "epsilon_given_messages"),
        "delta": promise.privacy.delta if promise else None if label is None else 0.0,
        "label_epsilon": label,
        "secure_sum": bool(uses.summed),
        "tables": tables,
        "parties": {party: _of_party(uses, party, promise, rows) for party in uses.parties},
        "total": _total(uses, tables.values(), promise, rows),
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
    parts = [LABELS_ONLY if of_labels else NOTHING]
    if promise is not None:
        given = promise.privacy.prediction_epsilon is None
        parts = [FEATURES, SAMPLES if promise.is_sampled else NO_SAMPLES, FEATURES_GIVEN if given else FEATURES_WHOLE]
        parts.append(LABELS_NOISED if of_labels else LABELS_TOO)
    if promise is not None or of_labels:
        parts.append(GROUPS)
    return " ".join(parts)


def _of_sums(uses: Uses, privacy: Privacy | None) -> str:
    """A sentence on secure sums, if they were asked for."""
    if privacy is None or not privacy.secure_sum:
        return ""
    return SUMS_ONLY.format(", ".join(uses.summed)) if uses.summed else NOT_SUMMED


def _of_features(aliases: Sequence[str], promise: FeaturePromise | None, rows: int) -> tuple[float, float]:
    """(epsilon, epsilon given messages) of features, for a person with rows in each of these uses of tables.

    All releases are counted together at one delta. An epsilon is infinite if a release had no noise.
    """
    if promise is None or not aliases:
        return (math.inf, math.inf) if aliases else (0.0, 0.0)
    return promise.together(aliases, rows=rows), promise.together(aliases, rows=rows, given_messages=True)


def _of_table(use: UsedTable, label: float | None, promise: FeaturePromise | None, rows: int) -> dict[str, Any]:
    """The entry of a table: epsilons are None if nothing was released, infinite if a release had no noise."""
    whole, given = _of_features(use.aliases, promise, rows) if use.aliases else (None, None)
    of_label = (math.inf if label is None else label) if use.label else None
    return {"parties": list(use.parties), "label": of_label, "epsilon": whole, "epsilon_given_messages": given}


def _largest(tables: Collection[dict[str, Any]], name: str) -> float:
    return max((table[name] or 0.0 for table in tables), default=0.0)


def _of_party(uses: Uses, party: str, promise: FeaturePromise | None, rows: int) -> dict[str, float]:
    """Epsilons for a person with a row in each table of one party."""
    aliases = [alias for use in uses.tables.values() if party in use.parties for alias in use.aliases]
    whole, given = _of_features(aliases, promise, rows)
    return {"epsilon": whole, "epsilon_given_messages": given}


def _total(
    uses: Uses, tables: Collection[dict[str, Any]], promise: FeaturePromise | None, rows: int
) -> dict[str, float]:
    """Epsilons for a person with a row in every table.

    ``moments`` counts the releases of all tables together (FedOnce, Theorem 4); the plain sum of epsilons holds at
    the sum of deltas, ``sum_delta``. ``features_and_label`` adds the label: from all features of a row to none at the
    cost of ``moments``, and then from one label to another at that of the label, whose delta is 0.
    """
    aliases = [alias for use in uses.tables.values() for alias in use.aliases]
    whole, given = _of_features(aliases, promise, rows)
    label = sum(table["label"] or 0.0 for table in tables)
    return {
        "epsilon": sum(table["epsilon"] or 0.0 for table in tables),
        "epsilon_given_messages": sum(table["epsilon_given_messages"] or 0.0 for table in tables),
        "moments": whole,
        "moments_given_messages": given,
        "sum_delta": 0.0 if promise is None else promise.privacy.delta * len(aliases),
        "features_and_label": whole + label,
        "features_and_label_given_messages": given + label,
    }
