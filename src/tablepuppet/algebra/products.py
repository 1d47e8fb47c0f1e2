"""Products with a matrix [S_1 T_1, ..., S_M T_M] that is never built: the coordinator's half (ops.py is the parties').

Let T_i (n_i x d_i) be the encoded rows of table i that take part, and S_i (N x n_i) the selection of a base row for
each joined row, which `JoinedRows` holds. Then

    X      = [S_1 T_1, ..., S_M T_M]
    X V    = sum_i S_i (T_i V_i)              tables multiply, the result is gathered to joined rows
    X^T U  = [T_i^T (S_i^T U)]_i              U is summed at base rows, tables multiply

Over the shards of a table T V concatenates and T^T U adds up. Nothing as long as the joined rows crosses the wire. What
is asked before a result is read shares a trip. A table computes at its parties, or here if it was collected
(`placement.py` decides). X^T X is in column_products.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tablepuppet.algebra.costs import PricedStep, Run
from tablepuppet.algebra.nearest import Nearest
from tablepuppet.algebra.ops import Largest, counted_sums, largest_of_rows, weighed_sums
from tablepuppet.algebra.placement import Placement
from tablepuppet.arrays import Array, Floats, Places, are_within, lossless
from tablepuppet.errors import LearnError
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Bounds
from tablepuppet.party.arguments import LARGEST
from tablepuppet.pieces import on_all_cores
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.prep.encode.encoded_table import EncodedTable

Number = TypeVar("Number", bound=np.floating[Any])
ByTable = Callable[[], dict[str, Any]]


class Result:
    """An array that was asked for; the first `read` makes the trip, unless another result's has.

    ``is_flat``: of an array (n, 1) it is the column, (n,).
    """

    def __init__(self, finish: Callable[[], Array], is_flat: bool = False):
        self._finish: Callable[[], Array] | None = finish
        self._found, self._is_flat = np.empty(0), is_flat

    def read(self) -> Array:
        if self._finish is not None:
            found = self._finish()
            self._found = found[:, 0] if self._is_flat else found
            self._finish = None  # and with it the replies, and what was asked
        return self._found


class TableProducts:
    """X by tables: ``ids`` say under which name each table's rows are encoded at its parties, ``widths`` how wide.

    ``numbers`` are how many columns of each table are numbers; they are the first. Of columns that an ``encoding``
    makes, the centres that were subtracted and the spreads are known; of others they are 0 and 1.
    """

    def __init__(
        self, placement: Placement, ids: Mapping[str, str], widths: Mapping[str, int], numbers: Mapping[str, int],
        encoding: Encoding | None = None,
    ):  # fmt: skip
        self.placement, self.rows, self._ids, self._numbers = placement, placement.client.rows, ids, numbers
        ends = np.cumsum([0, *widths.values()]).tolist()
        self.blocks = {alias: slice(*ends) for alias, ends in zip(widths, pairwise(ends), strict=True)}
        self.centres, self.spreads, self._squares = np.zeros(ends[-1]), np.ones(ends[-1]), dict[str, float]()
        self.is_number = np.zeros(ends[-1], bool)
        for alias, block in self.blocks.items():
            here = slice(block.start, block.start + numbers[alias])
            self.is_number[here] = True
            if encoding is not None:
                self.centres[here], self.spreads[here] = encoding.offsets(alias), encoding.spreads(alias)
                self._squares[alias] = max([1.0, *(each.centred_square for each in encoding.numbers[alias])])
        self.shape = (len(self.rows), int(ends[-1]))
        self.tables = [alias for alias, width in widths.items() if width and placement.client.shards(alias)]
        self.cells, self._firsts = dict[str, EncodedTable](), dict[str, Places]()  # see `over`
        self._lou = placement.lou

    def of_columns(self, places: NDArray[np.intp]) -> TableProducts:
        """Products that ask only tables with these columns; other columns come out as 0."""
        blocks = {alias: self.blocks[alias] for alias in self.tables}
        wanted = [a for a, block in blocks.items() if np.any((places >= block.start) & (places < block.stop))]
        if len(wanted) == len(self.tables):
            return self
        found = copy(self)
        found.tables = wanted
        return found

    def over(self, rows: JoinedRows, firsts: dict[str, Places], cells: dict[str, EncodedTable]) -> TableProducts:
        """Products over other joined rows (`distinct.py`).

        If ``firsts`` has a table, only these of its base rows are left. ``cells`` are of tables whose rows are here. It
        has what programs ask of such rows: `ask_nearest`, `ask_sums_by` and `gathered`.
        """
        found = copy(self)
        found.rows, found.shape = rows, (len(rows), self.shape[1])
        found._firsts, found.cells = firsts, cells
        return found

    def uncentred(self) -> TableProducts:
        """Products with columns from which parties subtract nothing: equal numbers stay equal."""
        if not self.centres.any():
            return self
        found = copy(self)
        found._ids, found.centres = dict.fromkeys(self._ids, self.placement.encoding_id), np.zeros(self.shape[1])
        return found

    def local(self, alias: str) -> EncodedTable | None:
        """The table's rows, if they were collected."""
        data, centres = self.placement.collected.get(alias), self.placement.centres[alias]
        return data if data is None or self._ids[alias] == self.placement.names[alias] else data.centred(-centres)

    def ready(self) -> Mapping[str, str]:
        """By table the name under which its parties have its encoded rows; they are asked for what they lack."""
        return self._ids

    def square(self, alias: str) -> float:
        """The largest mean square of a column, at least 1; for bounds of secure sums."""
        return self._squares.get(alias, 1.0)

    def width(self, alias: str) -> int:
        block = self.blocks[alias]
        return int(block.stop - block.start)

    def numbers(self, alias: str) -> int:
        """Those of them that are numbers, not categories."""
        return self._numbers[alias]

    def ask_times(self, directions: Array, exact: bool = False) -> Result:
        """Ask for X V, (d, k) to (N, k); a table is sent those columns of V that are not zero for it.

        Outputs are rounded to the wire's precision, unless they have to be ``exact``.
        """
        used = {alias: np.flatnonzero(directions[self.blocks[alias]].any(axis=0)) for alias in self.tables}
        used = {alias: places for alias, places in used.items() if len(places)}
        wanted = {alias: directions[self.blocks[alias]][:, used[alias]] for alias in used}
        replies = self.ask_outputs(wanted, exact=exact)
        return Result(lambda: self.gathered(replies(), directions.shape[1], used))

    def gathered(self, given: Mapping[str, Floats], width: int, used: Mapping[str, NDArray[np.intp]]) -> Array:
        """S_1 A_1 + ... + S_M A_M, (N, width), of outputs A_i, (n_i, k); their columns are those of ``used``."""
        return self.rows.added({alias: self._moved(alias, values) for alias, values in given.items()}, width, used)

    def _moved(self, alias: str, values: Floats) -> Floats:
        """Numbers of a table's rows that its joined rows come from."""
        is_whole = alias in self.cells or alias not in self._firsts
        return values if is_whole else values[self._firsts[alias]]

    def ask_nearest(self, directions: Array, constants: Array, weights: Array | None = None) -> Nearest:
        """Ask for the column in which X V + constants is largest, of every joined row; X V is not built.

        With ``weights`` a row counts as so many.
        """
        replies = self.ask_outputs({alias: directions[self.blocks[alias]] for alias in self.tables})

        def outputs() -> dict[str, Floats]:
            found = replies()
            found |= {
                alias: found[alias].astype(self.placement.sizes[alias].wire) for alias in self.cells
            }  # as parties do
            return {alias: self._moved(alias, each) for alias, each in found.items()}

        return Nearest(self.rows, outputs, constants, weights)

    def ask_transposed_times(self, values: Array, exact: bool = False) -> Result:
        """Ask for X^T U, (N, k) to (d, k); U must not change before the result is read.

        U is rounded as it is sent, unless it has to be ``exact``. LearnError if U is not finite: then its sums are not,
        which are fewer to look at.
        """
        asked = self.tables if values.size else []
        if values.shape[1] > 1:  # one column is cut into pieces
            rows = on_all_cores(lambda alias: self.scattered(alias, values, exact), asked)
        else:
            rows = [self.scattered(alias, values, exact) for alias in asked]
        for each in rows or [values]:
            check_finite("U of X.T @ U", each)
        found = self.ask_sums_by_table(dict(zip(asked, rows, strict=True)), exact=exact)
        return self._by_blocks(found, values.shape[1])

    def ask_sums_by(
        self, labels: NDArray[np.integer], groups: int, aliases: list[str] | None = None, weights: Array | None = None
    ) -> Result:
        """Ask for X^T U, (d, groups), for the 0/1 matrix U of ``labels``, (N,), numbers of groups. U is not built.

        With ``aliases`` of some tables only; sums of other columns are 0. With ``weights`` a row counts as so many.
        """
        wanted, tables = self.tables if aliases is None else aliases, self.rows.tables
        small, by = labels.astype(np.min_scalar_type(groups)), dict[str, NDArray[Any]]()
        for alias in wanted:
            if weights is None and tables[alias].is_identity:  # its rows are the joined rows
                by[alias] = small
            else:
                by[alias] = self._spread(alias, self.rows.counts_by(alias, small, groups, weights))
        there = [alias for alias in wanted if alias not in self.cells]
        run = self.placement.begin(PricedStep.transposed(dict.fromkeys(there, groups), self))
        return self._by_blocks(self.ask_sums_by_table(by, run, groups=groups), groups)

    def _spread(self, alias: str, counts: NDArray[Any]) -> Floats:
        """Counts of a table's rows as they are multiplied; base rows that others stand for have 0."""
        if alias in self.cells:
            return counts.astype(np.float64)
        if alias not in self._firsts:
            return counts.astype(self.placement.sizes[alias].wire)
        size = self.placement.sizes[alias].rows, counts.shape[1]
        found: Floats = np.zeros(size, self.placement.sizes[alias].wire)
        found[self._firsts[alias]] = counts
        return found

    def _by_blocks(self, replies: ByTable, columns: int, is_flat: bool = False) -> Result:
        def finish() -> Array:
            found = np.zeros((self.shape[1], columns))  # (d, k)
            for alias, sums in replies().items():
                found[self.blocks[alias]] = sums
            return found

        return Result(finish, is_flat)

    def ask_column_sums(self) -> Result:
        """Ask for the sums of columns, (d,)."""
        return self._ask_statistic("sums", {})

    def ask_column_squares(self, centres: Array | None = None) -> Result:
        """Ask for the sums of the squares of columns, (d,); with ``centres``, (d,), of numbers less these."""
        by_alias = {} if centres is None else {a: centres[self.blocks[a]][: self._numbers[a]] for a in self.tables}
        return self._ask_statistic("squares", by_alias)

    def _ask_statistic(self, kind: str, centres: Mapping[str, Array]) -> Result:
        run = self.placement.begin(PricedStep.statistic(kind, self))
        squared = {"squared": True} if kind == "squares" else {}

        def compute(alias: str, data: EncodedTable) -> Array:
            moved = data.centred(centres[alias]) if alias in centres else data
            return counted_sums(moved, self.rows.tables[alias].counts.astype(np.float64), kind == "squares")

        replies = self.ask_tables(
            run, "matrix.sums", "sums", self.tables,
            lambda alias, _: squared | ({"centres": centres[alias]} if alias in centres else {}), compute,
            lambda alias: {"sums": self.shape[0] * self.square(alias)},
        )  # fmt: skip
        return self._by_blocks(replies, 1, is_flat=True)

    def row_largest(self, columns: NDArray[np.intp], scale: Array, shift: Array, with_places: bool = False) -> Largest:
        """The largest of ``scale * X[:, columns] + shift`` in every joined row, perhaps with its place; one trip."""
        inside = {
            alias: np.flatnonzero((columns >= self.blocks[alias].start) & (columns < self.blocks[alias].stop))
            for alias in self.tables
        }
        arguments = {
            alias: {"places": columns[each] - self.blocks[alias].start, "scale": scale[each], "shift": shift[each]}
            for alias, each in inside.items()
            if len(each)
        }
        run = self.placement.begin(PricedStep.extremes(self, with_places, arguments))

        def ask(arg: bool) -> ByTable:
            return self.ask_tables(
                run, "matrix.row_max", "outputs", list(arguments),
                lambda alias, _: arguments[alias] | ({"arg": True} if arg else {}),
                lambda alias, data: largest_of_rows(data, **arguments[alias])[arg],
            )  # fmt: skip

        values, places = ask(arg=False), ask(arg=True) if with_places else dict
        found, outputs, firsts = Largest(self.shape[0]), values(), places()
        for alias, each in outputs.items():
            mine = self.rows.taken(alias, inside[alias][firsts[alias][:, 0]]) if with_places else 0
            found.offer(self.rows.taken(alias, each[:, 0]), mine)
        return found

    def ask_outputs(
        self, directions: Mapping[str, Array], run: Run | None = None, exact: bool = False
    ) -> ByTable:  # fmt: skip
        """Ask for T_i V_i of some tables, (n_i, k); as a part of a ``run``, or as a step of its own."""
        there = {alias: each.shape[1] for alias, each in directions.items() if alias not in self.cells}
        return self.ask_tables(
            run or self.placement.begin(PricedStep.times(there, self)), "matrix.times", "outputs", list(directions),
            lambda alias, _: {"directions": _flat(directions[alias]), "exact": exact or self.placement.is_exact(alias)},
            lambda alias, data: data.times(directions[alias]),
        )  # fmt: skip

    def ask_sums_by_table(
        self, by: Mapping[str, NDArray[Any]], run: Run | None = None, exact: bool = False, groups: int = 1
    ) -> ByTable:  # fmt: skip
        """Ask for T_i^T U_i of some tables, (d_i, k), by U_i, (n_i, k), or by the group of each row, (n_i,), of so many
        ``groups``; as `ask_outputs`.
        """
        vectors = {alias: each.shape[1] if each.ndim == 2 else groups for alias, each in by.items()}

        def sent(alias: str, shard: ShardRows) -> Mapping[str, Any]:
            rows = by[alias]
            part = rows[shard.slice] if rows.ndim == 1 else self.cut(alias, _flat(rows), shard, exact)
            return {"by": part, "vectors": vectors[alias]}

        def bounds(alias: str) -> Mapping[str, float]:
            largest = self.shape[0] if by[alias].ndim == 1 else self._lou.bound(by[alias])
            return {"sums": largest * math.sqrt(self.square(alias))}

        return self.ask_tables(
            run or self.placement.begin(PricedStep.transposed(vectors, self)), "matrix.sums_by", "sums", list(by), sent,
            lambda alias, data: weighed_sums(data, by[alias], vectors[alias]), bounds,
        )  # fmt: skip

    def cut(self, alias: str, rows: Floats, shard: ShardRows, exact: bool = False) -> Floats:
        """A shard's part of an array over a table's rows, as it is sent."""
        part = rows[shard.slice]
        return lossless(part) if exact else part.astype(self.placement.sizes[alias].wire, copy=False)

    def ask_tables(
        self, run: Run, op: str, reply: str, aliases: list[str],
        arguments: Callable[[str, ShardRows], Mapping[str, Any]],
        compute: Callable[[str, EncodedTable], NDArray[Any]], bounds: Bounds | None = None,
    ) -> ByTable:  # fmt: skip
        """Ask the parties of tables that are there, and ``compute`` here what is here; read by calling the result.

        Replies named ``outputs`` are put together over the shards of a table, others are added up.
        """
        here = dict(self.cells)
        here |= {alias: data for alias in aliases if alias not in here and (data := self.local(alias)) is not None}
        there = [alias for alias in aliases if alias not in here]
        known = self.ready() if there else {}

        def given(alias: str, shard: ShardRows) -> Mapping[str, Any] | None:
            return {"encoding": known[alias], **arguments(alias, shard)} if alias in there else None

        pending = self.placement.client.ask(op, given, bounds=bounds) if there else None
        if set(aliases) - self.cells.keys():
            self.placement.meter.note(run, is_asked=pending is not None)

        def read() -> dict[str, Any]:
            replies = {} if pending is None else self.placement.read(pending)
            found: dict[str, Any] = {}
            for alias in aliases:
                if alias in here:
                    found[alias] = wide(compute(alias, here[alias]))
                elif reply == "outputs":
                    found[alias] = wide(self._lou.concatenate(replies[alias], reply))  # in the wire's precision
                else:
                    found[alias] = wide(self._lou.add(replies[alias], reply))
            return found

        return read

    def scattered(self, alias: str, columns: Array, exact: bool = False) -> Floats:
        """S_i^T U, (n_i, k), as it is sent: rounded to the wire's precision if it travels, and may be."""
        precision = np.float64 if exact or self.local(alias) is not None else self.placement.sizes[alias].wire
        return self.rows.many_sums(alias, columns, precision)


def wide(values: NDArray[Number]) -> NDArray[Number]:
    """With two dimensions."""
    return values[:, None] if values.ndim == 1 else values


def _flat(values: Floats) -> Floats:
    """Without a second dimension of one: so ops take and answer a single vector."""
    return values[:, 0] if values.shape[1] == 1 else values


def checked(what: str, given: ArrayLike, length: int, unit: str) -> Array:
    """Real, finite numbers of one or two dimensions; LearnError if they are others, or of another length."""
    values = checked_shape(what, given, length, unit)
    check_finite(what, values)
    return values


def check_finite(what: str, values: Floats) -> None:
    """LearnError if there are numbers that parties do not take."""
    if not are_within(values, LARGEST):
        raise LearnError(f"{what} has numbers that are not finite, or above {LARGEST:g}")


def checked_shape(what: str, given: ArrayLike, length: int, unit: str) -> Array:
    """Real numbers of one or two dimensions, as `checked` has them, but for their size."""
    try:
        values = np.asarray(given)
        if values.dtype.kind not in "biuf":
            raise TypeError
    except (TypeError, ValueError):
        raise LearnError(f"{what} must be an array of real numbers") from None
    if values.ndim not in (1, 2) or len(values) != length:
        raise LearnError(f"{what} has shape {values.shape}, and X has {length:,} {unit}: ({length},) or ({length}, k)")
    return values.astype(np.float64, copy=False)
