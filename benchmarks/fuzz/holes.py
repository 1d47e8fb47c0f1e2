"""Guards taken out one by one: each of these holes was open once, and sessions of the kind named must find it.

`python -m benchmarks.fuzz --holes` opens all of them; the tests open them too. Where the final check on small groups
(`tablepuppet.party.groups`) would refuse a reply before it tells something, it is taken out as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

import tablepuppet.party.groups as groups
import tablepuppet.prep.columns.statistics as statistics
import tablepuppet.prep.encode.encode as encode
import tablepuppet.prep.encode.frame as frame
import tablepuppet.prep.explore.crosstab as crosstab
from tablepuppet.party.blind import derive_key
from tablepuppet.party.grant import Grant
from tablepuppet.party.local_table import LocalTable, category_secret
from tablepuppet.party.origins import Reached
from tablepuppet.prep.columns.pair_groups import Patterns
from tablepuppet.prep.encode.encoded_table import EncodedTable
from tablepuppet.prep.encode.frame import Frame
from tablepuppet.prep.explore.cells import ColumnWords


@dataclass(frozen=True)
class Hole:
    """What is taken out, (owner, name) by what stands there instead; and the kind of sessions that finds it."""

    instead: Mapping[tuple[Any, str], Any]
    kind: str
    checked: bool = False  # whether the final check is left in: it does not stand in the way

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Inside, the hole is open."""
        with ExitStack() as stack:
            unchecked = {} if self.checked else {(groups, "_are_enough"): lambda *_: True}
            for (owner, name), value in {**self.instead, **unchecked}.items():
                stack.enter_context(mock.patch.object(owner, name, value))
            yield


def _seen_by_all(table: LocalTable) -> None:
    """Cells of a table that demands noise are seen outside of what adds it."""
    if table._reached is not None:
        table._reached.cells(noisy=table._adds_noise)


def _by_name(table: LocalTable, blinding: str, column: str) -> bytes:
    return derive_key(category_secret(table.secret, blinding), "category", blinding, column)


def _all_pairs(of: Callable[..., Patterns]) -> Any:
    return lambda present, firsts, least: of(present, firsts, 0)


def _any_cell(of: Callable[..., ColumnWords]) -> Any:
    def changed(table: LocalTable, view: str, name: str, asked: Any) -> ColumnWords:
        found = of(table, view, name, asked)
        return ColumnWords(found.words, found.weights, found.firsts, 1, found.group)

    return changed


def _as_it_is(_: Any, column: Any) -> Any:
    return column


HOLES: dict[str, Hole] = {
    "A.1: what is kept forgets where it comes from": Hole(
        {(LocalTable, "_look"): _seen_by_all, (Reached, "kept"): lambda *_: None}, "run_kept"
    ),
    "A.2: cells are seen without noise": Hole({(LocalTable, "_look"): _seen_by_all}, "run_kept"),
    "A.3: the final check and what ops hide": Hole({(Grant, "is_group"): lambda *_: np.True_}, "run_pooled"),
    "A.3: small cells of a crosstab": Hole({(crosstab, "are_enough"): lambda *_: True}, "run_together"),
    "A.3: ends of cells": Hole({(ColumnWords, "of"): _any_cell(ColumnWords.of)}, "run_together"),
    "A.3: sums of products of flags": Hole({(Frame, "_varied"): _as_it_is}, "run_planned"),
    "A.3: sums of filled columns": Hole({(frame, "shown"): lambda table, view, present: present}, "run_planned"),
    "A.3: sums over rows to predict": Hole(
        {(encode, "sealed"): lambda table, view, name: encode._encoded(table, view, name).data}, "run_planned"
    ),
    "A.3: sums over nested rows": Hole({(Patterns, "of"): _all_pairs(Patterns.of)}, "run_planned"),
    "A.3: pairs in a Gram matrix": Hole(
        {(EncodedTable, "unrelated_gram"): EncodedTable.gram}, "run_planned", checked=True
    ),
    "A.3: numbers that few rows have": Hole(
        {(statistics, "shown"): lambda table, view, present: present}, "run_planned"
    ),
    "A.3: digests by the name of an output": Hole(
        {(LocalTable, "category_key"): _by_name}, "run_planned", checked=True
    ),
}
