"""Checks before a fit: what parties demand of it, what its query would reveal beside its noise, and their budgets.

Input: a learner's privacy and a plan; for a fit, or all fits of a search, the planned releases, and what each party
says is left of its budgets. Output: nothing, sentences on what is not protected, or one PrivacyError, of a budget with
party, table, what is left, what is needed and which epsilon would fit. It uses no row data, and comes before the first
charge. Nothing is reserved: if others spend the budget between this check and the last charge, the party refuses that
charge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.private.fit_plan import PlannedFit, Planning
from tablepuppet.operators.secure_sum import check_shards
from tablepuppet.privacy.accountant import Spending
from tablepuppet.privacy.funds import PartysFunds, Shortage, rounded_up, shortages
from tablepuppet.privacy.noise_plan import TableCosts
from tablepuppet.privacy.settings import Privacy
from tablepuppet.runs.figures import number
from tablepuppet.sql.expression import checked, columns_of
from tablepuppet.sql.plan import Plan, known_of_features, uses_of_table


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


MARGIN = 1.05  # rows that take part may be fewer than the catalog says, which changes costs a little
EPSILONS = ("label_epsilon", "feature_epsilon", "prediction_epsilon")
SMALLEST = 1e-3  # share of the requested epsilon: smaller ones are not suggested
TRIES, SLOW_TRIES = 24, 4  # epsilons to try; where each takes seconds, the first that fits is used


def check_budget(planning: Planning, funds: PartysFunds, *, labels_paid: bool = False) -> bool:
    """PrivacyError if the fit exceeds a budget. Return whether it fits only because its labels are already paid.

    Labels that are in a ledger cost nothing, unless their column has changed since. With ``labels_paid`` they were
    released just now.
    """
    privacy = planning.learner.privacy
    if privacy is None or not funds:
        return False
    planned = planning.fit(privacy)
    short = list(_exceeded(planned, funds, labels_paid=labels_paid))
    if short:
        raise PrivacyError(_refusal(planning, funds, privacy, short), rule=short[0][0].funds.rule)
    return not labels_paid and any(_exceeded(planned, funds, with_paid=True))


def funds_of(plan: Plan) -> PartysFunds:
    """The remaining budgets of a plan's tables, from the catalog."""
    shards = [shard for table in plan.tables.values() for shard in table.shards if shard.funds]
    return {(shard.party, shard.name.lower()): shard.funds for shard in shards}


def approved_epsilons(costs: TableCosts, delta: float) -> dict[str, float]:
    """What operators are asked to approve: the most that is spent on a table, by party, with a margin, rounded up."""
    found: dict[str, float] = {}
    for (party, _), cost in costs.items():
        found[party] = max(found.get(party, 0.0), rounded_up(MARGIN * cost.epsilon(delta)))
    return found


def check_together(
    what: str, costs: TableCosts, funds: PartysFunds, approved: Mapping[str, float], delta: float
) -> None:
    """PrivacyError if several fits exceed a budget together, or what operators were asked to approve, by party."""
    ending = f"So the {what} would be refused before its end; nothing was spent on it"
    for short in shortages(costs, funds):
        raise PrivacyError(
            f"{short}. {ending}. Try fewer settings or folds, or a smaller epsilon, or ask the party's operator "
            f"(policy rule {short.funds.rule})",
            rule=short.funds.rule,
        )
    for (party, table), cost in costs.items():
        if party in approved and cost.epsilon(delta) > approved[party]:
            raise PrivacyError(
                f"party {party!r}, table {table!r}: the {what} spends up to epsilon {number(cost.epsilon(delta))} at "
                f"delta {delta:g}, and the operator was asked to approve {number(approved[party])}. {ending}. Open the "
                "relation with fed.sql(..., learner=search), so that the operator approves all of it (policy rule "
                "require_approval)",
                rule="require_approval",
            )


def _exceeded(
    planned: PlannedFit, budgets: PartysFunds, *, labels_paid: bool = False, with_paid: bool = False
) -> Iterator[tuple[Shortage, frozenset[str]]]:
    """The budgets that the fit exceeds, and those of `EPSILONS` that are spent there.

    ``with_paid``: count labels that are already paid too.
    """
    features, labels = planned.costs(labels=False), planned.costs(labels=True)
    for key in {**labels, **features}:
        party, table = key
        for funds in budgets.get((party, table.lower()), ()):
            is_paid = labels_paid or (not with_paid and planned.label in funds.labels)
            label = Spending() if is_paid else labels.get(key, Spending())
            cost = features.get(key, Spending()) + label
            if not funds.allows(cost):
                kinds = {"feature_epsilon", "prediction_epsilon"} if key in features else set[str]()
                kinds |= {"label_epsilon"} if label.pure else set()
                yield Shortage(party, table, funds, cost), frozenset(kinds)


def _refusal(
    planning: Planning, funds: PartysFunds, privacy: Privacy, short: Sequence[tuple[Shortage, frozenset[str]]]
) -> str:
    after = 0 if privacy.prediction_epsilon is None else planning.predictions
    counted = f" and {after} predictions after it" if after else ""
    kinds = frozenset(kind for _, of_one in short for kind in of_one)
    found = _within(planning, funds, privacy, kinds)
    advice = "nothing that is worth asking for would fit"
    if found is not None:
        values = [(name, getattr(found, name)) for name in EPSILONS if name in kinds]
        advice = f"{', '.join(f'{name}={value:g}' for name, value in values if value is not None)} would fit"
    return (
        f"{'; '.join(str(each) for each, _ in short)}. So the fit{counted} would be refused before its end; nothing "
        f"was spent on it. {advice}, or ask the party's operator (policy rule {short[0][0].funds.rule})"
    )


def _within(planning: Planning, funds: PartysFunds, privacy: Privacy, kinds: frozenset[str]) -> Privacy | None:
    """The privacy with smaller epsilons of these kinds, such that the fit is within all budgets, or None."""

    def fits(tried: Privacy) -> bool:
        try:
            return not any(_exceeded(planning.fit(tried), funds))
        except PrivacyError:  # too small for so many steps
            return False

    planned = planning.fit(privacy)
    is_slow = planned.promise is not None and planned.promise.is_sampled
    low, high = 0.0, 1.0
    for tried in range(SLOW_TRIES if is_slow else TRIES):
        share = (low + high) / 2
        if is_slow and not tried:  # roughly what fits: costs grow slightly faster than linearly
            share = 0.9 * min(each.funds.left / each.funds.needed(each.cost) for each, _ in _exceeded(planned, funds))
        if share < SMALLEST:
            break
        low, high = (share, high) if fits(_scaled(privacy, kinds, share)) else (low, share)
        if is_slow and low:
            break
    found = _scaled(privacy, kinds, low) if low else None
    return found if found is not None and fits(found) else None


def _scaled(privacy: Privacy, kinds: frozenset[str], share: float) -> Privacy:
    """Epsilons of these kinds times a share, to two digits, rounded down."""
    asked = {name: getattr(privacy, name) for name in EPSILONS if name in kinds}
    values: dict[str, Any] = {name: _down(share * value) for name, value in asked.items() if value is not None}
    return replace(privacy, **values)


def _down(value: float) -> float:
    """The value rounded down to two digits.

    >>> _down(0.4567), _down(12.9)
    (0.45, 12.0)
    """
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.floor(value / unit + 1e-9) * unit:.2g}")
