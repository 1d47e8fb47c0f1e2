"""`Funds`: what a caller, or all callers together, may spend on a table, and what they have spent.

Input: a budget and the charges of a ledger. Output: whether a cost is within the budget, at the budget's delta. A
party's ledger checks this before every charge. The catalog contains the same `Funds`, so that a coordinator can check a
whole fit before its first charge. Charges depend on what callers asked for, and on no value of a row.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tablepuppet.errors import PrivacyError
from tablepuppet.privacy.accountant import Spending
from tablepuppet.runs.figures import number

SLACK = 1 + 1e-9  # sums of floats: ten times 0.1 is within a budget of 1


def rounded_up(epsilon: float) -> float:
    """An epsilon rounded up to two digits.

    >>> rounded_up(2.173), rounded_up(0.0)
    (2.2, 0.0)
    """
    if epsilon <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 1)
    return float(f"{math.ceil(epsilon / unit - 1e-9) * unit:.2g}")


@dataclass(frozen=True)
class Funds:
    """A budget and what is spent of it; ``labels`` are marks of noisy labels that are paid for."""

    whose: Literal["caller", "all"]
    epsilon: float
    delta: float
    spent: Spending
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < math.inf and 0 < self.delta < 1):
            raise PrivacyError("its epsilon or delta is out of range")

    @property
    def left(self) -> float:
        """What is left of epsilon.

        >>> Funds("all", 1.0, 1e-6, Spending.of_pure(0.25)).left
        0.75
        """
        return max(0.0, self.epsilon - self.spent.epsilon(self.delta))

    def after(self, cost: Spending) -> float:
        """What will be spent in all with this cost. Costs add up to less than the sum of their epsilons."""
        return (self.spent + cost).epsilon(self.delta)

    def needed(self, cost: Spending) -> float:
        """How much the cost adds to what is spent."""
        return self.after(cost) - self.spent.epsilon(self.delta)

    def allows(self, cost: Spending) -> bool:
        """Whether the cost is within the budget."""
        return self.after(cost) <= self.epsilon * SLACK

    def shortage(self, cost: Spending) -> str:
        """Why a cost is not within the budget."""
        whose = "this caller has" if self.whose == "caller" else "all callers together have"
        return (
            f"epsilon {number(self.left)} is left of the {self.epsilon:g} that {whose} at delta {self.delta:g}, and it "
            f"needs {number(self.needed(cost))}"
        )

    @property
    def rule(self) -> str:
        """The policy rule that sets the budget."""
        return "epsilon_per_caller" if self.whose == "caller" else "epsilon"


PartysFunds = Mapping[tuple[str, str], Sequence[Funds]]
"""What is left, by party and table in lower case."""


@dataclass(frozen=True)
class Shortage:
    """A budget that a cost would exceed."""

    party: str
    table: str
    funds: Funds
    cost: Spending

    def __str__(self) -> str:
        return f"party {self.party!r}, table {self.table!r}: {self.funds.shortage(self.cost)}"


def shortages(costs: Mapping[tuple[str, str], Spending], funds: PartysFunds) -> Iterator[Shortage]:
    """The budgets that costs, by party and table, would exceed."""
    for (party, table), cost in costs.items():
        for each in funds.get((party, table.lower()), ()):
            if not each.allows(cost):
                yield Shortage(party, table, each, cost)


def label_mark(expression: str, mechanism: str, epsilon: float) -> str:
    """Which noisy labels of a table: they are the same, and cost nothing more, until the label's column changes."""
    return hashlib.sha256(json.dumps([expression, mechanism, float(epsilon)]).encode()).hexdigest()[:32]
