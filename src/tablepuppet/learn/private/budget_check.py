"""Whether parties' budgets allow a whole fit, before its first charge.

Input: the planned releases of a fit, and what each party says is left of its budgets. Output: nothing, or one
PrivacyError that names party, table, what is left, what is needed and which epsilon would fit. It uses no row data.
Nothing is reserved: if others spend the budget between this check and the last charge, the party refuses that charge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.labels.noisy import class_mechanism
from tablepuppet.learn.private.planned_releases import PlannedFit, PlannedLearner, Planning
from tablepuppet.privacy.accountant import Spending
from tablepuppet.privacy.funds import Funds, PartysFunds, label_mark
from tablepuppet.privacy.settings import Privacy
from tablepuppet.sql.plan import Plan

EPSILONS = ("label_epsilon", "feature_epsilon", "prediction_epsilon")
SMALLEST = 1e-3  # share of the requested epsilon: smaller ones are not suggested
TRIES, SLOW_TRIES = 24, 4  # epsilons to try; where each takes seconds, the first that fits is used


@dataclass(frozen=True)
class Shortage:
    """A budget that a fit would exceed."""

    party: str
    table: str
    funds: Funds
    cost: Spending
    kinds: frozenset[str]  # those of `EPSILONS` that are spent there

    @property
    def needed(self) -> float:
        """How much the fit would spend."""
        return self.funds.after(self.cost) - self.funds.spent.epsilon(self.funds.delta)

    def __str__(self) -> str:
        funds = self.funds
        whose = "this caller has" if funds.whose == "caller" else "all callers together have"
        return (
            f"party {self.party!r}, table {self.table!r}: epsilon {funds.left:.4g} is left of the {funds.epsilon:g} "
            f"that {whose} at delta {funds.delta:g}, and it needs {self.needed:.4g}"
        )


@dataclass(frozen=True)
class BudgetCheck:
    """Compares a planned fit with budgets."""

    planning: Planning
    funds: PartysFunds

    def check(self, planned: PlannedFit, privacy: Privacy, *, labels_paid: bool = False) -> bool:
        """PrivacyError if the fit exceeds a budget. Return whether it fits only because its labels are already paid.

        Labels that are in a ledger cost nothing, unless their column has changed since. With ``labels_paid`` they were
        released just now.
        """
        short = list(self._shortages(planned, privacy, labels_paid=labels_paid))
        if short:
            raise PrivacyError(self._refusal(short, privacy), rule=_rule(short[0].funds))
        return not labels_paid and any(self._shortages(planned, privacy, with_paid=True))

    def _shortages(
        self, planned: PlannedFit, privacy: Privacy, *, labels_paid: bool = False, with_paid: bool = False
    ) -> Iterator[Shortage]:
        """The budgets that the fit exceeds; ``with_paid``: count labels that are already paid too."""
        features, labels = planned.costs(labels=False), planned.costs(labels=True)
        for key in {**labels, **features}:
            for funds in self.funds.get(key, ()):
                is_paid = labels_paid or (not with_paid and label_of(self.planning, privacy) in funds.labels)
                label = Spending() if is_paid else labels.get(key, Spending())
                cost = features.get(key, Spending()) + label
                if not funds.allows(cost):
                    kinds = {"feature_epsilon", "prediction_epsilon"} if key in features else set()
                    kinds |= {"label_epsilon"} if label.pure else set()
                    yield Shortage(*key, funds, cost, frozenset(kinds))

    def _refusal(self, short: Sequence[Shortage], privacy: Privacy) -> str:
        after = 0 if privacy.prediction_epsilon is None else self.planning.predictions
        counted = f" and {after} predictions after it" if after else ""
        kinds = frozenset(kind for each in short for kind in each.kinds)
        found = self._within(privacy, kinds)
        advice = (
            "nothing that is worth asking for would fit" if found is None else f"{_spelled(found, kinds)} would fit"
        )
        return (
            f"{'; '.join(map(str, short))}. So the fit{counted} would be refused before its end; nothing was spent on "
            f"it. {advice}, or ask the party's operator (policy rule {_rule(short[0].funds)})"
        )

    def _within(self, privacy: Privacy, kinds: frozenset[str]) -> Privacy | None:
        """The same privacy with smaller epsilons of these kinds, such that the fit is within all budgets."""
        planned = self.planning.fit(privacy)
        is_slow = planned.promise is not None and planned.promise.is_sampled
        low, high = 0.0, 1.0
        for number in range(SLOW_TRIES if is_slow else TRIES):
            share = (low + high) / 2 if number or not is_slow else self._guess(planned, privacy)
            if share < SMALLEST:
                break
            low, high = (share, high) if self._fits(_scaled(privacy, kinds, share)) else (low, share)
            if is_slow and low:
                break
        found = _scaled(privacy, kinds, low) if low else None
        return found if found is not None and self._fits(found) else None

    def _guess(self, planned: PlannedFit, privacy: Privacy) -> float:
        """Roughly the share of epsilon that fits: costs grow slightly faster than linearly."""
        return 0.9 * min(each.funds.left / each.needed for each in self._shortages(planned, privacy))

    def _fits(self, privacy: Privacy) -> bool:
        try:
            return not any(self._shortages(self.planning.fit(privacy), privacy))
        except PrivacyError:  # too small for so many steps
            return False


def label_of(planning: Planning, privacy: Privacy) -> str:
    """The mark of the noisy labels that a fit asks for; empty without noise."""
    label = planning.plan.query.label
    if label is None or privacy.label_epsilon is None:
        return ""
    mechanism = class_mechanism(privacy) if planning.learner.learns_classes else "laplace"
    return label_mark(label.expression, mechanism, privacy.label_epsilon)


def funds_of(plan: Plan) -> PartysFunds:
    """The remaining budgets of a plan's tables, from the catalog."""
    shards = [shard for table in plan.tables.values() for shard in table.shards if shard.funds]
    return {(shard.party, shard.name.lower()): shard.funds for shard in shards}


def check_budget(learner: PlannedLearner, planning: Planning, funds: PartysFunds, *, labels_paid: bool = False) -> bool:
    """`BudgetCheck.check` for a learner."""
    privacy = learner.privacy
    if privacy is None or not funds or not (privacy.is_label_private or privacy.is_feature_private):
        return False
    return BudgetCheck(planning, funds).check(planning.fit(privacy), privacy, labels_paid=labels_paid)


def _rule(funds: Funds) -> str:
    return "epsilon_per_caller" if funds.whose == "caller" else "epsilon"


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


def _spelled(privacy: Privacy, kinds: frozenset[str]) -> str:
    values = [(name, getattr(privacy, name)) for name in EPSILONS if name in kinds]
    return ", ".join(f"{name}={value:g}" for name, value in values if value is not None)
