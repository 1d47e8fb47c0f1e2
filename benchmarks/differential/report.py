"""What a case compared, what was refused, and what differed.

A check is a function ``run(rng, folder, report)``: it draws a scene, asks both sides, and hands both answers to the
report. Tolerances are those of `tolerances.py`.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tablepuppet as tp

Run = Callable[[np.random.Generator, Path, "Report"], None]


@dataclass(frozen=True)
class Finding:
    """Something that differs: what was asked, and how far the answers are apart."""

    what: str
    detail: str


class Report:
    """Everything that one or several cases compared."""

    def __init__(self) -> None:
        self.compared: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.findings: list[Finding] = []

    def find(self, what: str, detail: object) -> None:
        """Write down a difference."""
        self.findings.append(Finding(what, " ".join(str(detail).split())[:2000]))

    def that(self, what: str, holds: bool, detail: object = "") -> None:
        """A fact that must hold."""
        self.compared[what] += 1
        if not holds:
            self.find(what, detail)

    def equal(self, what: str, ours: Any, truth: Any, detail: object = "") -> None:
        """Two values that must be the same; NaN is NaN."""
        self.that(what, _same(ours, truth), f"{detail}: {ours!r:.200} instead of {truth!r:.200}")

    def close(self, what: str, ours: Any, truth: Any, within: Any, detail: object = "") -> None:
        """Numbers that may differ by ``within``; what is missing or not finite must be so on both sides."""
        self.compared[what] += 1
        here, there, most = np.asarray(ours, float), np.asarray(truth, float), np.asarray(within, float)
        if here.shape != there.shape:
            self.find(what, f"{detail}: shape {here.shape} instead of {there.shape}")
            return
        with np.errstate(invalid="ignore"):
            good = (np.abs(here - there) <= most) | (here == there) | (np.isnan(here) & np.isnan(there))
        if not good.all():
            with np.errstate(invalid="ignore", divide="ignore"):
                far = np.where(good, 0.0, np.nan_to_num(np.abs(here - there) / most, nan=np.inf, posinf=np.inf))
            worst = np.unravel_index(int(np.argmax(far)), far.shape) if far.shape else ()
            allowed = np.broadcast_to(most, here.shape)[worst]
            self.find(
                what,
                f"{detail}: {float(here[worst]):.12g} instead of {float(there[worst]):.12g}, within {allowed:.3g}; "
                f"{np.count_nonzero(~good)} of {good.size} numbers are off",
            )

    @contextmanager
    def asking(self, what: str, detail: object = "", *, may_refuse: bool | str = False) -> Iterator[None]:
        """An error of ours is a finding unless it may be refused (in these words), any other error always is."""
        try:
            yield
        except tp.TablePuppetError as error:
            if may_refuse is True or (may_refuse and may_refuse in str(error)):
                self.refused[what] += 1
            else:
                self.find(f"{what}: refused", f"{detail}: {type(error).__name__}: {error}")
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            self.find(f"{what}: {type(error).__name__}", f"{detail}: {where}: {error}")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    return bool(one == other)
