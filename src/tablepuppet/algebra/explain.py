"""`X.explain()`: where each step on a matrix runs, its trips and bytes, and what steps have cost so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tablepuppet.algebra.costs import PricedStep
from tablepuppet.algebra.placement import Placement
from tablepuppet.algebra.products import TableProducts
from tablepuppet.errors import PrivacyError
from tablepuppet.runs.figures import shown
from tablepuppet.runs.table_view import Align, ShownAsTable, TableView


@dataclass(frozen=True)
class StepCost:
    """One kind of step: where it would run now, its trips and bytes, and what steps of this kind have cost."""

    step: str
    where: str
    trips: int
    bytes: int
    runs: int
    measured_trips: int
    measured_bytes: int
    seconds: float


class StepCosts(ShownAsTable):
    """A line for each kind of step; ``steps`` has them by name."""

    def __init__(self, plan: str, steps: list[StepCost]):
        self.plan, self.steps = plan, {each.step: each for each in steps}

    def table_view(self) -> TableView:
        """For people."""
        sides: dict[str, Align] = {
            "step": "left", "where": "left", "trips": "right", "bytes": "right", "runs so far": "right",
            "their trips": "right", "their bytes": "right", "seconds": "right",
        }  # fmt: skip
        rows = [
            [
                each.step, each.where, shown(each.trips), shown(each.bytes), shown(each.runs),
                shown(each.measured_trips), shown(each.measured_bytes), f"{each.seconds:.3f}",
            ]
            for each in self.steps.values()
        ]  # fmt: skip
        return TableView(f"Steps by plan {self.plan!r}", sides, rows)


def explain_array(
    placement: Placement, products: TableProducts, vectors: int, kept: Sequence[PricedStep] = ()
) -> StepCosts:
    """The steps that can be asked of a matrix, for a number of vectors; ``kept`` are those on vectors at parties."""
    many = dict.fromkeys(products.tables, vectors)
    steps = [
        PricedStep.times(many, products), PricedStep.transposed(many, products), PricedStep.statistic("sums", products),
        PricedStep.statistic("squares", products), PricedStep.gram(products, weighted=False),
        PricedStep.gram(products, weighted=True), PricedStep.extremes(products),
        PricedStep.extremes(products, with_places=True),
    ]  # fmt: skip
    steps = [each for each in steps if each.step not in {other.step for other in kept}] + list(kept)
    if products.tables:
        steps.append(placement.collecting(products.tables))
    return StepCosts(placement.plan, [_cost(placement, each) for each in steps])


def _cost(placement: Placement, asked: PricedStep) -> StepCost:
    """What a step would cost now."""
    there = [alias for alias in asked.up if alias not in placement.collected]
    first = sorted(there)
    trips, size, where = asked.trips if there else 0, 0, "here"
    if there:
        where = "at parties" if asked.trips else "kept at parties"
        size = asked.size(there, placement.sizes)
    try:
        collected = placement.would_collect(asked)
    except PrivacyError as error:
        collected, where, trips, size = [], f"nowhere: policy rule {error.rule}", 0, 0
    if collected:
        rest = [alias for alias in there if alias not in collected]
        cells = placement.collecting(collected)
        trips = 1 + (asked.trips if rest else 0)
        size = cells.size(collected, placement.sizes) + asked.size(rest, placement.sizes)
        where = "here, after cells are collected" if not rest else f"here: {', '.join(collected)}; else at parties"
    elif there and len(there) < len(asked.up):
        where = f"at parties: {', '.join(first)}; else here"
    done = placement.meter.measured(asked.step)
    return StepCost(asked.step, where, trips, size, done.runs, done.trips, done.bytes, done.seconds)
