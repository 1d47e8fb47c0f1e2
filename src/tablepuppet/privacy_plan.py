"""What a job's fit will cost in privacy, and which noise it will have, before anything is asked.

Input: a job file, and the catalog of its federation: parties are asked what they publish, and no table is read.
Output: what each party's ledger will be charged for which releases, with which noise; what is promised for one row and
for several; and which parts will be useless because of noise. It uses no row data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tablepuppet.errors import PrivacyError
from tablepuppet.federation import Federation
from tablepuppet.jobs import make_learner, read_job
from tablepuppet.learn.private.checks import check_budget, funds_of, known_otherwise
from tablepuppet.learn.private.feature_promise import FeaturePromise, known_columns
from tablepuppet.learn.private.fit_plan import PlannedFit, Planning
from tablepuppet.learn.private.report import GROUPS, PrivacyReport, Uses, promised, shown
from tablepuppet.learn.private.report import NOTHING as WITHOUT
from tablepuppet.learn.private.usefulness import (
    TableSize,
    epsilon_for,
    help_for_features,
    help_for_labels,
    rows_for_encoders,
)
from tablepuppet.privacy.funds import PartysFunds
from tablepuppet.privacy.noise_plan import NoisyLabels, NoisyRelease, charges
from tablepuppet.privacy.settings import Privacy
from tablepuppet.run_folder import RunFolder
from tablepuppet.runs.figures import NOT_APPLICABLE, number
from tablepuppet.runs.table_view import Align, TableView
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.types import Family, family

COUNTS = (
    "Rows are those of the catalog, before joins and filters: fewer may take part. What is promised holds for any "
    "number of them; with fewer, noise weighs more, and noise on samples is larger."
)
COLUMNS = (
    "Text counts as one column. Columns with bounds or categories in the policies of all their parties cost nothing."
)
NOTHING = "Nothing will be promised: the job has no [learner.privacy]."
SLOW = "counting what noise on samples costs, which may take a minute"
HERE = "Databases in the analyst's own process keep no ledger."
BUDGETS = (
    "Budgets are as of now, and nothing is reserved: what others spend until the fit ends is gone. Predictions after "
    "`train` cost more, if they have noise."
)
PAID = (
    "Labels with this noise were sent before: they cost nothing, unless the label's column has changed since. The fit "
    "asks for them first, and checks again."
)
ONLY_PAID = "What is left of budgets is enough only if labels cost nothing because they were sent before."
CLASSES = "Two classes are assumed: how many there are is known when labels are asked for."
POLICIES = "Whether policies allow each column's use is known when parties open the query."


NO_BUDGET = "no budget"
RELEASED: Mapping[str, Align] = {
    "table": "left", "what": "left", "releases": "right", "noise": "left", "sampling": "right",
}  # fmt: skip
CHARGED: Mapping[str, Align] = {
    "party": "left", "table": "left", "rows at most": "right", "epsilon": "right", "delta": "right", "budget": "left",
}  # fmt: skip


@dataclass(frozen=True)
class PrivacyPlan:
    """What will be released and charged, what holds then, and what is to be expected of it."""

    report: PrivacyReport
    rows: Mapping[str, int]  # by table: at most so many take part
    releases: tuple[NoisyRelease | NoisyLabels, ...]
    funds: PartysFunds
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def promise(self) -> str:
        """In one line."""
        return NOTHING if self.report["promise"] == WITHOUT else str(self.report["promise"])

    def charges(self) -> list[dict[str, Any]]:
        """What each party's ledger will be charged for a table, at the delta of the promise, and of which budgets."""
        delta = self.report["delta"]
        return [
            {
                "party": party, "table": table, "rows": self.rows[table], "epsilon": cost.epsilon(delta),
                "delta": delta, "budgets": [
                    {"of": each.whose, "epsilon": each.epsilon, "delta": each.delta, "left": each.left,
                     "needed": each.needed(cost)}
                    for each in self.funds.get((party, table.lower()), ())
                ],
            }
            for (party, table), cost in charges(self.releases).items()
        ]  # fmt: skip

    def tables(self) -> Iterator[TableView]:
        """For people; none where nothing is promised."""
        if self.report["delta"] is None:
            return
        rows = [
            [self._where(each), each.what, f"{each.times:,}", each.noise,
             NOT_APPLICABLE if each.sampling in (None, 1) else number(each.sampling, 3)]
            for each in self.releases
        ]  # fmt: skip
        yield TableView("Noisy releases", RELEASED, rows)
        charged = [
            [each["party"], each["table"], f"{each['rows']:,}", shown(each["epsilon"]), f"{each['delta']:g}",
             _budgets(each["budgets"])]
            for each in self.charges()
        ]  # fmt: skip
        sides = {
            name: side
            for name, side in CHARGED.items()
            if name != "budget" or any(row[-1] != NO_BUDGET for row in charged)
        }
        yield TableView("Charged to ledgers", sides, [row[: len(sides)] for row in charged])
        yield self.report.table_view()

    def _where(self, found: NoisyRelease | NoisyLabels) -> str:
        """The table, and its parties if others of them release something else of this kind."""
        alike = [each for each in self.releases if (each.table, each.what) == (found.table, found.what)]
        uses = {each.parties for each in alike}
        return found.table if len(uses) == 1 else f"{found.table} ({', '.join(found.parties)})"

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "promise": self.promise,
            "rows": dict(self.rows),
            "releases": [
                {"parties": list(each.parties), "table": each.table, "what": each.what, "releases": each.times,
                 "noise": each.noise, "multiplier": each.multiplier,
                 "sampling": None if each.sampling == 1 else each.sampling}
                for each in self.releases
            ],
            "charges": self.charges() if self.report["delta"] is not None else [],
            "for_rows": {str(rows): dict(self.report.for_rows(rows)) for rows in (1, *GROUPS)},
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }  # fmt: skip


def _budgets(budgets: list[dict[str, Any]]) -> str:
    """What is needed of what is left, of the budget that has least."""
    if not budgets:
        return NO_BUDGET
    least = min(budgets, key=lambda each: float(each["left"] - each["needed"]))
    return f"{number(least['needed'])} of {number(least['left'])} left at {least['delta']:g}"


def plan_privacy(path: Path, notify: Callable[[str], None] = lambda _: None) -> PrivacyPlan:
    """The plan of a job file; the error of `train` for a job that it would refuse, as far as the catalog shows.

    ``notify`` gets a message before work that takes long.
    """
    job = read_job(path)
    learner = make_learner(job.learner)
    federation = Federation.load(path.parent / job.federation)
    planned = job.plan(federation)
    planning = job.check(learner, planned.plan)
    here = not any(map(federation.engine.is_service, planned.plan.parties))
    found, problem = _planned(planning, learner.privacy, notify, here), RunFolder(path.parent / job.output).problem()
    return found if problem is None else replace(found, warnings=(*found.warnings, f"train: {problem}"))


def _planned(planning: Planning, privacy: Privacy | None, notify: Callable[[str], None], here: bool) -> PrivacyPlan:
    plan, promise = planning.plan, planning.learner._promise
    if promise is not None and promise.is_sampled:
        notify(SLOW)
    fit = PlannedFit(None, {}) if privacy is None else planning.fit(privacy)
    report = promised(Uses.of(plan, privacy), privacy, fit.promise)
    report.shows_groups = True
    counts: dict[str, int] = {}
    for alias, table in plan.tables.items():
        counts[table.name] = max(counts.get(table.name, 0), planning.rows[alias])
    funds = funds_of(plan)
    notes = tuple(_notes(planning, fit, funds, here)) if report["delta"] is not None else ()
    warnings = tuple(_warnings(planning, privacy, fit, funds))
    return PrivacyPlan(report, counts, fit.releases, funds, notes, warnings)


def _notes(planning: Planning, fit: PlannedFit, funds: PartysFunds, here: bool) -> Iterator[str]:
    yield COUNTS
    if fit.promise is not None:
        yield COLUMNS
    if planning.learner.learns_classes and planning.listed_classes is None:
        yield CLASSES
    yield HERE if here else f"{BUDGETS} {POLICIES}"
    if any(fit.label in each.labels for pair in funds.values() for each in pair):
        yield PAID


def _warnings(planning: Planning, privacy: Privacy | None, fit: PlannedFit, funds: PartysFunds) -> Iterator[str]:
    yield from known_otherwise(planning.plan, privacy)
    yield from _of_budgets(planning, funds)
    promise, sizes, label = fit.promise, fit.sizes, planning.plan.query.label
    if promise is not None:
        yield from _of_delta(promise.privacy, sizes)
        yield from (text for alias, size in sizes.items() for text in _of_encoders(promise, planning.plan, alias, size))
        yield from help_for_features(promise, sizes)
    if privacy is not None and privacy.is_label_private and label is not None:
        parameters = sum(size.parameters for size in sizes.values())
        yield from help_for_labels(privacy, planning.classes, planning.rows[label.alias], parameters)


def _of_budgets(planning: Planning, funds: PartysFunds) -> Iterator[str]:
    """What is not certain of budgets: noise on samples depends on how many rows take part, labels on their column."""
    try:
        if check_budget(planning, funds):
            yield ONLY_PAID
    except PrivacyError as error:  # else the job was refused before
        yield f"With the rows of the catalog: {error}. The fit checks again with the rows that take part."


def _of_delta(privacy: Privacy, sizes: Mapping[str, TableSize]) -> Iterator[str]:
    for size in sizes.values():
        try:
            privacy.check_rows(size.rows)
        except PrivacyError as error:
            yield f"Table {size.name}: if all its rows take part, {error}"


def _of_encoders(promise: FeaturePromise, plan: Plan, alias: str, size: TableSize) -> Iterator[str]:
    needed = rows_for_encoders(promise, alias)
    features = plan.query.features
    columns = [column for column in features if column.alias == alias and column.name not in known_columns(plan)]
    if size.rows < needed and any(family(column.type) is not Family.BOOLEAN for column in columns):
        factor = needed / max(size.rows, 1)
        yield (
            f"Table {size.name}: noise will hide columns without bounds or categories in the policy of "
            f"{', '.join(size.parties)}: they need about {needed:,.0f} rows, and it has {size.rows:,} at most; or use "
            f"feature_epsilon={epsilon_for(promise, factor)}, or fewer columns."
        )
