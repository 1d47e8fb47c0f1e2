"""Lists of fitted steps (specs.py), applied to names, to rows, to bounds, and backwards to encoded values.

`Shapes` applies them to names alone: which columns exist, and whether they contain numbers or codes. So a step that
does not fit is refused before a row is read. The coordinator does the same, and knows which columns a party will
create. A party's ops read columns (`read_frame`), refuse steps that may not run (`check_steps`), and run them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import PartyError
from tablepuppet.mapping.join import number_digests
from tablepuppet.party.allowance import check_memory, check_time
from tablepuppet.party.local_table import LocalTable
from tablepuppet.prep.columns.given_bounds import Bounds
from tablepuppet.prep.columns.statistics import check_family
from tablepuppet.prep.columns.values import numbers
from tablepuppet.prep.encode.frame import Frame
from tablepuppet.prep.encode.specs import NUMBERS, Drop, FittedStep, FoldLookup, within

DIGEST = 16  # bytes of a digest


@dataclass
class Shapes:
    """The columns that steps leave, in order: `NUMBERS`, or how many codes there are."""

    sizes: dict[str, int] = field(default_factory=dict)
    unchanged: set[str] = field(default_factory=set)  # categories that no step has changed yet
    listed: set[str] = field(default_factory=set)  # columns whose first codes are those of the digests still

    @classmethod
    def of(cls, numbers: Iterable[str], categories: Mapping[str, int], steps: Iterable[FittedStep]) -> Shapes:
        """The shapes after ``steps``, from columns of numbers and columns of categories with their numbers of codes.

        Raises PartyError if a step does not fit.
        """
        found = cls(dict.fromkeys(numbers, NUMBERS) | dict(categories), set(categories), set(categories))
        for step in steps:
            found.follow(step)
        return found

    @property
    def numbers(self) -> list[str]:
        return [name for name, size in self.sizes.items() if size == NUMBERS]

    @property
    def coded(self) -> dict[str, int]:
        return {name: size for name, size in self.sizes.items() if size != NUMBERS}

    def follow(self, step: FittedStep) -> None:
        """One step more; a column that gets codes or numbers instead is placed after the existing ones."""
        for each in step.reads:
            if each not in self.sizes:
                raise PartyError(f"a step reads column {each[:100]!r}, which is not there")
            if step.wants != "either" and (self.sizes[each] == NUMBERS) != (step.wants == "numbers"):
                raise PartyError(f"a step needs {step.wants} in column {each[:100]!r}")
        name = step.writes
        if isinstance(step, Drop):
            del self.sizes[name]
        elif hasattr(step, "output"):
            if name in self.sizes:
                raise PartyError(f"a step makes column {name[:100]!r}, which is there already")
            self.sizes[name] = NUMBERS
        else:
            before, after = self.sizes[name], step.size_after(self.sizes[name], name in self.unchanged)
            if (before == NUMBERS) != (after == NUMBERS):
                del self.sizes[name]
                self.listed.discard(name)
            self.sizes[name] = after
            self.unchanged.discard(name)


def needed_for(steps: Sequence[FittedStep], names: Iterable[str]) -> list[FittedStep]:
    """Those of the steps that some columns depend on."""
    wanted = set(names)
    found: list[FittedStep] = []
    for step in reversed(steps):
        if step.writes in wanted and not isinstance(step, Drop):
            wanted.update(step.reads)
            found.append(step)
    return found[::-1]


def to_predict(steps: Iterable[FittedStep]) -> tuple[FittedStep, ...]:
    """The steps for rows that were not learned from: what folds have of their own is for training rows."""
    return tuple(step.full if isinstance(step, FoldLookup) else step for step in steps)


def read_frame(
    table: LocalTable, op_name: str, view: str, blinding: str, columns: Sequence[str],
    categories: Sequence[tuple[str, str]], steps: Sequence[FittedStep], digests: Mapping[str, NDArray[np.uint8]],
    private: bool = False, learned: bool = False,
) -> tuple[Frame, Shapes]:  # fmt: skip
    """The columns that an op reads, and the shapes of those that steps leave; no row is read yet.

    PartyError unless columns are of types that can be read so, and steps fit them.
    """
    where = f"party {table.grant.party!r}: {op_name}"
    if set(digests) != {f"digests{place}" for place in range(len(categories))}:
        raise PartyError(f"{where} needs digests for each of its categories")
    if any(each.ndim != 2 or each.shape[1] != DIGEST for each in digests.values()):
        raise PartyError(f"{where} needs digests of {DIGEST} bytes")
    if any(number_digests([each])[1] < len(each) for each in digests.values()):
        raise PartyError(f"{where}: a category is listed twice")  # codes of others would depend on each other
    if len({*columns, *(name for name, _ in categories)}) < len(columns) + len(categories):
        raise PartyError(f"{where} reads each column once")
    for name, kind in categories:
        check_family(table, name, kind)
    if steps:
        for name in columns:
            numbers(table.snapshot.nothing_of(name))
    known = {name: (kind, digests[f"digests{place}"]) for place, (name, kind) in enumerate(categories)}
    try:
        shapes = Shapes.of(columns, {name: len(listed) for name, (_, listed) in known.items()}, steps)
    except PartyError as error:
        raise PartyError(f"{where}: {error}") from None
    return Frame(table, view, blinding, known, private, learned and not private), shapes


def check_steps(steps: Sequence[FittedStep], frame: Frame) -> None:
    """Refuse steps that are not to run over a party's rows, before a cell is seen."""
    _check_folds(steps, frame)
    touched = {step.writes for step in steps} | {name for step in steps for name in step.reads}
    check_memory(9 * len(frame.table.view(frame.view).row_ids) * len(touched))


def run(steps: Sequence[FittedStep], frame: Frame) -> None:
    """Run steps over a party's rows, after `check_steps`."""
    for step in steps:
        check_time()
        if isinstance(step, Drop):
            frame.drop(step.column)
        else:
            frame.put(step.writes, step.run(frame), step.linear)


def _check_folds(steps: Sequence[FittedStep], frame: Frame) -> None:
    """PartyError for folds that single out a few rows: numbers by fold are of the caller's choice.

    Two ways to deal the rows would cut each other's folds.
    """
    grant = frame.table.grant
    dealt = {(step.folds, step.seed, step.shuffle) for step in steps if isinstance(step, FoldLookup)}
    if len(dealt) > 1:
        raise PartyError(
            f"party {grant.party!r}: steps with folds must deal rows alike, by the same folds, seed and shuffle"
        )
    for folds, _, _ in dealt:
        least = folds * grant.rules.min_group
        if int(frame.table.view(frame.view).firsts.sum()) < least:
            raise PartyError(
                f"party {grant.party!r}, table {grant.table!r}: {folds} folds need {least:,} rows that take part, the "
                "`min_group` of its policy in each, and there are fewer; take fewer folds, or folds=1"
            )


def bounds_after(steps: Iterable[FittedStep], known: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """Bounds by column after steps; ``known`` are the bounds of numeric columns as they are read.

    With noise, the result of a step is scaled by these bounds and not by statistics, each of which would cost a
    release. They need not hold for every value: parties clip values far outside.

    >>> from tablepuppet.prep.encode.specs import Clipped, Scale
    >>> bounds_after([Scale("x", 2.0, 4.0), Clipped("x", 0.0, 9.0)], {"x": (-2.0, 10.0)})
    {'x': (0.0, 2.0)}
    """
    found = dict(known)
    for step in steps:
        bounds = step.bounds(found)
        if bounds is not None:
            found[step.writes] = (within(bounds[0]), within(bounds[1]))
    return found


def inverse(steps: Sequence[FittedStep], name: str, values: Array) -> Array:
    """What a column was before steps, from what it is after them; LearnError where steps cannot be undone."""
    for step in reversed(steps):
        if step.writes == name:
            values = step.undo(values)
    return values
