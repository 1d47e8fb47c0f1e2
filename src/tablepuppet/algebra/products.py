"""Products with a matrix [S_1 T_1, ..., S_M T_M] that is never built: the coordinator's half (ops.py is the parties').

Let T_i (n_i x d_i) be the encoded rows of table i that take part, and S_i (N x n_i) the selection of a base row for
each joined row, which the mapping holds. Then

    X      = [S_1 T_1, ..., S_M T_M]
    X V    = sum_i S_i (T_i V_i)              tables multiply, the result is gathered to joined rows
    X^T U  = [T_i^T (S_i^T U)]_i              U is summed at base rows, tables multiply

Over the shards of a table T V concatenates and T^T U adds up. Nothing as long as the joined rows crosses the wire. What
is asked before a result is read shares a trip. A table computes at its parties, or here if it was collected
(`placement.py` decides). X^T X is in gram.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tablepuppet.algebra.nearest import Image, Nearest
from tablepuppet.algebra.ops import squares_of
from tablepuppet.algebra.placement import Placement, PricedStep
from tablepuppet.algebra.row_ops import Largest, largest_of_rows
from tablepuppet.arrays import are_within
from tablepuppet.errors import LearnError
from tablepuppet.mapping.table_mapping import SCATTER_CHUNK, Floats, ShardRows
from tablepuppet.operators.client import Pending
from tablepuppet.party.arguments import LARGEST
from tablepuppet.pieces import on_all_cores, over_pieces, pieces
from tablepuppet.prep.encoded_table import EncodedTable

Array = NDArray[np.float64]
Number = TypeVar("Number", bound=np.floating[Any])
ByTable = Callable[[], dict[str, Any]]


class Result:
    """An array that was asked for; the first `read` makes the trip, unless another result's has."""

    def __init__(self, finish: Callable[[], Array]):
        self._finish: Callable[[], Array] | None = finish
        self._found = np.empty(0)

    def read(self) -> Array:
        """The array."""
        if self._finish is not None:
            self._found = self._finish()
            self._finish = None  # and with it the replies, and what was asked
        return self._found


class TableProducts:
    """X by tables: ``ids`` say under which name each table's rows are encoded at its parties, ``widths`` how wide.

    ``squares`` are the largest mean square of a column by table, 1 if it is not there, for bounds of secure sums.
    """

    def __init__(
        self, placement: Placement, ids: Mapping[str, str], widths: Mapping[str, int],
        squares: Mapping[str, float] | None = None,
    ):  # fmt: skip
        self.placement, self.mapping, self._ids, self._squares = placement, placement.client.mapping, ids, squares or {}
        ends = np.cumsum([0, *widths.values()]).tolist()
        self.blocks = {alias: slice(*ends) for alias, ends in zip(widths, pairwise(ends), strict=True)}
        self.shape = (len(self.mapping), int(ends[-1]))
        self.tables = [alias for alias, width in widths.items() if width and placement.client.shards(alias)]
        self._lou = placement.lou

    def of_columns(self, places: NDArray[np.intp]) -> TableProducts:
        """The same, but only tables with these columns are asked; other columns come out as 0."""
        blocks = {alias: self.blocks[alias] for alias in self.tables}
        wanted = [a for a, block in blocks.items() if np.any((places >= block.start) & (places < block.stop))]
        if len(wanted) == len(self.tables):
            return self
        found = copy(self)
        found.tables = wanted
        return found

    def local(self, alias: str) -> EncodedTable | None:
        """The table's rows, if they were collected."""
        return self.placement.collected.get(alias)

    def ready(self) -> None:
        """Called before something is asked of it."""

    def square(self, alias: str) -> float:
        """The largest mean square of a column, at least 1."""
        return self._squares.get(alias, 1.0)

    def width(self, alias: str) -> int:
        """Columns of a table."""
        block = self.blocks[alias]
        return int(block.stop - block.start)

    def ask_times(self, directions: Array) -> Result:
        """Ask for X V, (d, k) to (N, k); a table is sent those columns of V that are not zero for it."""
        used = {alias: np.flatnonzero(directions[self.blocks[alias]].any(axis=0)) for alias in self.tables}
        used = {alias: places for alias, places in used.items() if len(places)}
        asked = PricedStep.times({alias: len(places) for alias, places in used.items()}, self)
        replies = self.ask_images({alias: directions[self.blocks[alias]][:, used[alias]] for alias in used}, asked)

        def finish() -> Array:
            images, width = replies(), directions.shape[1]
            full = [alias for alias, image in images.items() if image.shape[1] == width]  # which fill all columns
            still = next((alias for alias in full if self.mapping.tables[alias].is_identity), None)
            first = full[0] if full and still is None else None
            if still is not None:
                found: Array = images.pop(still).astype(np.float64)  # (N, k): nothing is to be moved
            else:
                found = np.empty((self.shape[0], width)) if full else np.zeros((self.shape[0], width))
            order = sorted(images, key=lambda alias: alias != first)

            def gather(part: slice) -> None:
                for alias in order:
                    image, table = images[alias], self.mapping.tables[alias]
                    here = image[part] if table.is_identity else image.take(table.index[part], 0, mode="clip")
                    if alias == first:
                        found[part] = here
                    elif image.shape[1] == width:
                        found[part] += here
                    else:
                        found[part, used[alias]] += here

            if not order:
                return found
            over_pieces(gather, len(found), max(directions.shape[1], 1))
            return found

        return Result(finish)

    def ask_nearest(self, directions: Array, constants: Array) -> Nearest:
        """Ask for the column in which X V + constants is largest, of every joined row; X V is not built."""
        asked = PricedStep.times(dict.fromkeys(self.tables, len(constants)), self)
        replies = self.ask_images({alias: directions[self.blocks[alias]] for alias in self.tables}, asked)
        tables = self.mapping.tables

        def images() -> list[Image]:
            found = replies().items()
            return [Image(None if tables[alias].is_identity else tables[alias].index, image) for alias, image in found]

        return Nearest(self.shape[0], images, constants)

    def ask_transposed_times(self, values: Array) -> Result:
        """Ask for X^T U, (N, k) to (d, k); U must not change before the result is read.

        LearnError if U is not finite: then its sums are not, which are fewer to look at.
        """
        asked = self.tables if values.size else []
        if values.shape[1] > 1:  # one column is cut into pieces
            rows = on_all_cores(lambda alias: self.scattered(alias, values), asked)
        else:
            rows = [self.scattered(alias, values) for alias in asked]
        for each in rows or [values]:
            check_finite("U of X.T @ U", each)
        return self._by_blocks(self.ask_table_sums(dict(zip(asked, rows, strict=True))), values)

    def ask_sums_by(self, labels: NDArray[np.integer], groups: int, aliases: list[str] | None = None) -> Result:
        """Ask for X^T U, (d, groups), for the 0/1 matrix U of ``labels``, (N,), numbers of groups. U is not built.

        With ``aliases`` of some tables only; sums of other columns are 0.
        """
        wanted = self.tables if aliases is None else aliases
        still = {alias for alias in wanted if self.mapping.tables[alias].is_identity}  # whose rows are the joined rows
        small, rows = labels.astype(np.min_scalar_type(groups)), dict[str, Floats]()
        for alias in wanted:
            if alias not in still:
                rows[alias] = self._counts_by(alias, small, groups)

        def ask(aliases: Iterable[str]) -> Pending:
            chosen = still & set(aliases)

            def arguments(alias: str, shard: ShardRows) -> dict[str, Any] | None:
                given = {**self.named(alias), "labels": small[shard.slice], "groups": groups}
                return given if alias in chosen else None

            grouped = self.placement.client.ask(
                "matrix.sums_by", arguments,
                bounds=lambda alias: {"sums": self.shape[0] * math.sqrt(self.square(alias))},
            )  # fmt: skip
            return grouped.and_of(self._ask_products([alias for alias in aliases if alias in rows], rows))

        def compute(alias: str, data: EncodedTable) -> Array:
            return (
                data.sums_by(small, groups) if alias in still else data.transposed_times(rows[alias].astype(np.float64))
            )

        asked = PricedStep.transposed(dict.fromkeys(wanted, groups), self)
        return self._by_blocks(self.ask_tables(asked, wanted, ask, "sums", compute), np.zeros((0, groups)))

    def _counts_by(self, alias: str, labels: NDArray[np.integer], groups: int) -> Floats:
        """How often each base row of a table is joined within each group, (n_i, groups), in the wire's precision."""
        table = self.mapping.tables[alias]

        def count(part: slice) -> NDArray[np.intp]:
            pairs = table.index[part] * np.int64(groups) + labels[part]
            return np.bincount(pairs, minlength=table.rows * groups)

        bins = table.rows * groups
        found = on_all_cores(count, pieces(len(labels), size=max(SCATTER_CHUNK, 4 * bins)))
        total = found[0] if len(found) == 1 else np.sum(found, axis=0)
        return total.reshape(table.rows, groups).astype(self._lou.wire)

    def _by_blocks(self, replies: ByTable, like: Floats) -> Result:
        def finish() -> Array:
            found = np.zeros((self.shape[1], like.shape[1]))  # (d, k)
            for alias, sums in replies().items():
                found[self.blocks[alias]] = sums
            return found

        return Result(finish)

    def ask_column_sums(self) -> Result:
        """Ask for the sums of columns, (d,)."""
        return self._statistic("matrix.column_sums", lambda data, weights: data.transposed_times(weights))

    def ask_column_squares(self) -> Result:
        """Ask for the sums of the squares of columns, (d,)."""
        return self._statistic("matrix.column_squares", squares_of)

    def _statistic(self, op: str, here: Callable[[EncodedTable, Array], Array]) -> Result:
        def ask(aliases: Iterable[str]) -> Pending:
            return self._lou.ask(
                op,
                aliases,
                by_alias=self.named_each(aliases),
                bounds=lambda alias: {"sums": self.shape[0] * self.square(alias)},
            )

        def compute(alias: str, data: EncodedTable) -> Array:
            return here(data, self.mapping.counts(alias).astype(np.float64))[:, None]

        asked = PricedStep.statistic(op.rpartition("_")[2], self)
        return _flattened(self._by_blocks(self.ask_tables(asked, self.tables, ask, "sums", compute), np.zeros((0, 1))))

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

        def ask(op: str, aliases: Iterable[str]) -> Pending:
            by_alias = {alias: {**self.named(alias), **arguments[alias]} for alias in aliases}
            return self._lou.ask(op, by_alias, by_alias=by_alias)

        step, aliases = PricedStep.extremes(list(arguments), self, with_places), list(arguments)
        values = self.ask_tables(
            step, aliases, lambda there: ask("matrix.row_largest", there), "image",
            lambda alias, data: largest_of_rows(data, **arguments[alias])[0],
        )  # fmt: skip
        places: ByTable = dict
        if with_places:
            places = self.ask_tables(
                step, aliases, lambda there: ask("matrix.row_places", there), "places",
                lambda alias, data: largest_of_rows(data, **arguments[alias])[1], is_part=True,
            )  # fmt: skip
        found, images, firsts = Largest(self.shape[0]), values(), places()
        for alias, image in images.items():
            mine = self.mapping.gather(alias, inside[alias][firsts[alias][:, 0]]) if with_places else 0
            found.offer(self.mapping.gather(alias, image[:, 0]), mine)
        return found

    def ask_images(self, directions: Mapping[str, Array], asked: PricedStep, is_part: bool = False) -> ByTable:
        """Ask for T_i V_i of some tables, (n_i, k)."""

        def ask(aliases: Iterable[str]) -> Pending:
            named = self.named_each(aliases)
            arguments = {alias: {**named[alias], "directions": _flat(directions[alias])} for alias in aliases}
            return self._lou.ask("matrix.times", arguments, by_alias=arguments)

        def compute(alias: str, data: EncodedTable) -> Array:
            return data.times(directions[alias])

        return self.ask_tables(asked, list(directions), ask, "image", compute, is_part)

    def ask_sums(self, rows: Mapping[str, Floats]) -> Result:
        """Ask for T_i^T U_i of some tables, (n_i, k) each, as (d, k); those of other columns are 0."""
        return self._by_blocks(self.ask_table_sums(rows), next(iter(rows.values())))

    def ask_table_sums(self, rows: Mapping[str, Floats], part_of: PricedStep | None = None) -> ByTable:
        """Ask for T_i^T U_i of some tables, (d_i, k)."""

        def compute(alias: str, data: EncodedTable) -> Array:
            return data.transposed_times(rows[alias])

        def ask(aliases: Iterable[str]) -> Pending:
            return self._ask_products(aliases, rows)

        asked = part_of or PricedStep.transposed({alias: each.shape[1] for alias, each in rows.items()}, self)
        return self.ask_tables(asked, list(rows), ask, "sums", compute, is_part=part_of is not None)

    def _ask_products(self, aliases: Iterable[str], rows: Mapping[str, Floats]) -> Pending:
        return self._lou.ask(
            "matrix.transposed_times", aliases, {alias: _flat(rows[alias]) for alias in aliases},
            self.named_each(aliases),
            bounds=lambda alias: {"sums": self._lou.bound(rows[alias]) * math.sqrt(self.square(alias))},
        )  # fmt: skip

    def ask_tables(
        self, asked: PricedStep, aliases: list[str], ask: Callable[[Iterable[str]], Pending], name: str,
        compute: Callable[[str, EncodedTable], NDArray[Any]], is_part: bool = False,
    ) -> ByTable:  # fmt: skip
        """Ask the parties of tables that are there, and compute here what was collected; read by calling the result.

        Replies named ``image`` or ``places`` are put together over the shards of a table, others are added up.
        ``is_part``: other ops of the step were asked before.
        """
        if not is_part:
            self.placement.prepare(asked)
        self.ready()
        here = {alias: data for alias in aliases if (data := self.local(alias)) is not None}
        there = [alias for alias in aliases if alias not in here]
        pending = ask(there) if there else None
        if pending is not None:
            self.placement.queued(asked, is_part)
        elif not is_part:
            self.placement.ran_here(asked)

        def read() -> dict[str, Any]:
            replies = {} if pending is None else self.placement.read(pending)
            found: dict[str, Any] = {}
            for alias in aliases:
                if alias in here:
                    found[alias] = _wide(compute(alias, here[alias]))
                elif name in ("image", "places"):
                    found[alias] = _wide(self._lou.concatenate(replies[alias], name))  # in the wire's precision
                else:
                    found[alias] = _wide(self._lou.add(replies[alias], name))
            return found

        return read

    def named(self, alias: str) -> dict[str, str]:
        """The argument of ops that says what a table's rows are encoded as; after `ready`."""
        return {"encoding": self._ids[alias]}

    def named_each(self, aliases: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The same for some tables."""
        return {alias: self.named(alias) for alias in aliases}

    def scattered(self, alias: str, columns: Array) -> Floats:
        """S_i^T U, (n_i, k), as it is sent: rounded to the wire's precision if the table is at its parties."""
        table = self.mapping.tables[alias]
        if columns.shape[1] == 1 or table.is_identity:
            return self.mapping.scatter_sum(alias, columns)
        precision = self._lou.wire if self.local(alias) is None else np.float64
        return self.placement.row_sums(alias).of(columns, precision)  # much faster for several columns


def _flattened(result: Result) -> Result:
    return Result(lambda: result.read()[:, 0])


def _wide(values: NDArray[Number]) -> NDArray[Number]:
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
