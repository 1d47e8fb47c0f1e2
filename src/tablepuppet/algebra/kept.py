"""Vectors as long as the joined rows that stay at parties (kept_ops.py is the parties' half).

Under ``plan="parties"`` every X @ V does. Under ``plan="cost"`` a program's does where that is cheaper: X.T @ f(X @ V),
as in each step of conjugate gradients, takes one trip instead of two, and no vector travels.

X @ V is then a `KeptArray`: an array for NumPy code whose numbers are at the shards of the table. Elementwise functions
of it are computed there, and the results stay there. A sum, a mean, a norm, an inner product or X.T @ u returns
numbers, one trip each. A function that parties do not have collects the vector, in one trip, and is computed here.

This requires that each joined row is one row of one table, in the same order: a vector over a join belongs to no party.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, NDArray

from tablepuppet.algebra.costs import PricedStep
from tablepuppet.algebra.functions import CONDITIONS, OF_ONE, OF_TWO, choose, clip, real_numbers
from tablepuppet.algebra.placement import Placement
from tablepuppet.algebra.products import Result, TableProducts
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Pending

SENT = 8  # arrays of the caller's own that parties keep for when they are used again


class Slot:
    """A name under which parties keep a vector; another takes it over when nobody refers to it any more.

    Steps reach a party in the order in which they were asked, so those before it have used the old vector by then.
    """

    def __init__(self, names: str, number: int, free: list[int]):
        self.name, self._number, self._free = f"{names}.{number}", number, free

    def __del__(self) -> None:
        self._free.append(self._number)


class Keeper:
    """Asks the parties of one table to keep vectors, and for sums and products of them.

    ``owner`` is what keeps the session open for as long as a vector is used.
    """

    def __init__(self, placement: Placement, alias: str, owner: object):
        self.placement, self.alias, self.rows = placement, alias, len(placement.client.rows)
        self._owner = owner
        self._name, self._made, self._free = placement.client.new_name(), 0, list[int]()
        self._sent: OrderedDict[bytes, Slot] = OrderedDict()
        self._kept_times = "X @ V" if placement.plan == "parties" else "keep X @ V"  # by cost, others come here

    @classmethod
    def of(cls, placement: Placement, owner: object) -> Keeper | None:
        """That of a matrix; None if by its plan, or by its rows, no vectors stay at parties.

        Sums that are masked need a bound of what is added up, which such vectors have not.
        """
        tables = placement.client.tables
        if placement.plan not in ("parties", "cost") or len(tables) != 1 or placement.client.secured.parties:
            return None
        [(alias, table)] = tables.items()
        return cls(placement, alias, owner) if table.is_identity and placement.client.shards(alias) else None

    def keeps(self, columns: int, sums: int | None) -> bool:
        """Whether X @ V, of so many columns, stays at the parties.

        ``sums``: how many sums of functions of it are read one after another, beside products X.T @ f(X @ V); None if
        that is not known. By cost it stays if so many trips take less than the vector does, here and back; unless trips
        cost nothing, or cells are here or would be collected.
        """
        placement = self.placement
        if placement.plan == "parties" or sums is None:
            return placement.plan == "parties"
        if not placement.sizes[self.alias].is_remote or self.alias in placement.collected:
            return False
        size = self.rows * columns * placement.wire_bytes
        if placement.line.seconds(sums, 0) >= placement.line.seconds(0, 2 * size):
            return False
        return not placement.would_collect(self._step(self._kept_times))

    def steps(self, products: TableProducts, vectors: int) -> list[PricedStep]:
        """What may be asked, for this number of vectors."""
        width, names = products.width(self.alias), ("send u", "f(u)", "u.sum()", "X.T @ u", "collect u")
        return [self._step(name, vectors, width) for name in (self._kept_times, *names)]

    def _step(self, name: str, columns: int = 0, width: int = 0) -> PricedStep:
        """A step on a vector of so many columns, over a matrix of this width."""
        size = self.placement.sizes[self.alias]
        rows, sums = size.rows * columns * self.placement.wire_bytes, 8 * columns * size.shards
        down = {self._kept_times: width * sums, "send u": rows}.get(name, 0)
        up = {"u.sum()": sums, "X.T @ u": width * sums, "collect u": rows}.get(name, 0)
        return PricedStep(name, {self.alias: down}, {self.alias: up}, int(up > 0))

    def times(self, products: TableProducts, directions: Array) -> Slot:
        """Keep X V; V is (d, k)."""
        step, slot = self._step(self._kept_times, directions.shape[1], len(directions)), self._slot()
        self._ask(step, "matrix.keep_times", products, into=slot.name, directions=directions)
        return slot

    def send(self, values: Array) -> Slot:
        """Send numbers to be kept, (N,) or (N, k); numbers that were sent before are not sent again."""
        digest = hashlib.sha256(values.tobytes()).digest() + bytes(str(values.shape), "ascii")
        if digest not in self._sent:
            step, slot = self._step("send u", values[:1].size), self._slot()
            self._ask(step, "matrix.keep_rows", rows={self.alias: values}, into=slot.name)
            self._sent[digest] = slot
            if len(self._sent) > SENT:
                self._sent.popitem(last=False)
        self._sent.move_to_end(digest)
        return self._sent[digest]

    def function(self, name: str, operands: list[Slot | float | Array]) -> Slot:
        """Keep an elementwise function of vectors and numbers."""
        given, slot = [each.name if isinstance(each, Slot) else each for each in operands], self._slot()
        values: dict[str, Any] = dict(zip(("left", "right"), given, strict=False))
        self._ask(self._step("f(u)"), "matrix.keep_function", function=name, into=slot.name, **values)
        return slot

    def ask_sums(self, slot: Slot, columns: int) -> Result:
        """Ask for the sums of a vector's columns, (k,)."""
        pending = self._ask(self._step("u.sum()", columns), "matrix.kept_sums", kept=slot.name, vectors=columns)
        return Result(lambda: self._sums(pending, columns))

    def ask_transposed_times(self, products: TableProducts, slot: Slot, columns: int) -> Result:
        """Ask for X^T u, (d, k)."""
        step = self._step("X.T @ u", columns, products.width(self.alias))
        pending = self._ask(step, "matrix.sums_by", products, by=slot.name, vectors=columns)
        return Result(lambda: self._sums(pending, columns))

    def _sums(self, pending: Pending, columns: int) -> Array:
        replies = self.placement.read(pending)[self.alias]
        return self.placement.lou.add(replies, "sums").reshape(-1, columns)

    def collect(self, slot: Slot, columns: int) -> Array:
        """The vector itself, (N, k); one trip."""
        pending = self._ask(self._step("collect u", columns), "matrix.kept_rows", kept=slot.name, vectors=columns)
        replies = self.placement.read(pending)[self.alias]
        return self.placement.lou.concatenate(replies, "outputs").astype(np.float64).reshape(self.rows, columns)

    def _ask(self, step: PricedStep, op: str, products: TableProducts | None = None, **values: Any) -> Pending:
        """Ask the parties of the table for an op; for one with the rows of a matrix, ``products``."""
        run = self.placement.begin(step)
        if products is not None:
            values["encoding"] = products.ready()[self.alias]
        pending = self.placement.lou.ask(op, [self.alias], **values)
        self.placement.meter.note(run, is_asked=True)
        return pending

    def _slot(self) -> Slot:
        if not self._free:
            self._free.append(self._made)
            self._made += 1
        return Slot(self._name, self._free.pop(), self._free)


def _collecting(name: str) -> Callable[..., Any]:
    """A method of arrays that parties do not have: the vector is collected for it."""

    def method(self: KeptArray, *args: Any, **settings: Any) -> Any:
        return getattr(np.asarray(self), name)(*map(_here, args), **settings)

    return method


class KeptArray(NDArrayOperatorsMixin):
    """Numbers for every joined row, (N,) or (N, k), at the parties of their rows; an array for NumPy.

    ``np.asarray`` collects it. Parties keep a condition, whose ``dtype`` is bool, as 0 and 1.
    """

    __hash__ = object.__hash__  # == is elementwise
    min, max, argmin, argmax = map(_collecting, ("min", "max", "argmin", "argmax"))
    std, var, prod, any, all = map(_collecting, ("std", "var", "prod", "any", "all"))
    cumsum, argsort, round, tolist = map(_collecting, ("cumsum", "argsort", "round", "tolist"))
    astype, reshape, ravel = map(_collecting, ("astype", "reshape", "ravel"))

    def __init__(self, keeper: Keeper, slot: Slot, shape: tuple[int, ...], dtype: type = np.float64):
        self.keeper, self.slot, self.shape, self.dtype = keeper, slot, shape, np.dtype(dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return self.shape[0] * self.columns

    @property
    def columns(self) -> int:
        """Numbers for each row."""
        return self.shape[1] if self.ndim == 2 else 1

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<KeptArray of shape {self.shape} at parties; np.asarray collects it>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("its numbers are at parties, and a copy of them is needed")
        return self.keeper.collect(self.slot, self.columns).reshape(self.shape).astype(dtype or self.dtype)

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[_here(key)]

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        """Itself if it has one dimension; else it is collected."""
        return self if self.ndim == 1 else np.asarray(self).T

    # ---- what brings numbers here

    def ask_sums(self) -> Result:
        """Ask for the sum, (), or the sums of its columns, (k,)."""
        asked = self.keeper.ask_sums(self.slot, self.columns)
        return Result(lambda: asked.read()[0] if self.ndim == 2 else asked.read()[0, 0])

    def sum(self, axis: int | None = None, **settings: Any) -> Any:
        """Its sum, or the sums of its columns (axis 0); one trip."""
        if axis in (None, 0, -self.ndim) and not settings:
            found = self.ask_sums().read()
            return found if axis is not None and self.ndim == 2 else float(found.sum())
        return np.asarray(self).sum(axis, **settings)

    def mean(self, axis: int | None = None, **settings: Any) -> Any:
        """Its mean, or those of its columns (axis 0); one trip."""
        if axis in (None, 0, -self.ndim) and not settings:
            return self.sum(axis) / (self.size if axis is None else self.shape[0])
        return np.asarray(self).mean(axis, **settings)

    def dot(self, other: Any) -> Any:
        """The inner product with another vector, one trip; as `np.dot`."""
        return _dot(self, other)

    # ---- what stays at the parties

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **settings: Any) -> Any:
        """Functions of `functions.py`, products and sums; others collect the vector."""
        found = self._of(ufunc, method, inputs, settings)
        if found is None:
            given = tuple(map(_here, inputs))
            found = getattr(ufunc, method)(*given, **{name: _here(value) for name, value in settings.items()})
        if out is None:
            return found
        [target] = out
        if isinstance(target, KeptArray):
            moved = found if isinstance(found, KeptArray) else self.placed(found)
            if moved.shape != target.shape:
                raise LearnError(f"an array of shape {moved.shape} does not fit one of shape {target.shape}")
            target.slot, target.dtype = moved.slot, np.result_type(target.dtype, moved.dtype)
        else:
            np.copyto(target, np.asarray(found), casting="same_kind")
        return target

    def _of(self, ufunc: Any, method: str, inputs: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """The function at the parties; None if they do not have it."""
        name = ufunc.__name__
        if method == "reduce" and ufunc is np.add and settings.keys() <= {"axis"}:
            return inputs[0].sum(settings.get("axis", 0))
        if method != "__call__" or settings:
            return None
        if ufunc is np.matmul:
            return self._product(*inputs)
        if ufunc is np.positive:
            return self.copy()
        return self.elementwise(name, *inputs) if name in OF_ONE or name in OF_TWO else None

    def copy(self) -> KeptArray:
        """A vector of these numbers, which stays as it is when this one is changed in place; nothing is asked."""
        return KeptArray(self.keeper, self.slot, self.shape, self.dtype.type)

    def elementwise(self, name: str, *inputs: Any) -> KeptArray:
        """A function of `functions.py` of this and other arrays or numbers, at the parties."""
        shape = _shape(name, self, inputs)
        slot = self.keeper.function(name, [self._operand(name, each, shape) for each in inputs])
        return KeptArray(self.keeper, slot, shape, np.bool_ if name in CONDITIONS else np.float64)

    def _operand(self, name: str, given: Any, shape: tuple[int, ...]) -> Slot | float | Array:
        """What a function takes: a vector at the parties, a number, or a number for each of its columns."""
        if isinstance(given, KeptArray) and given.keeper is self.keeper:
            return given.slot
        values = real_numbers(f"np.{name} of a vector at parties", given)
        if not values.ndim or (values.size == 1 and self.shape[0] != 1):
            return float(values.reshape(()))
        if values.ndim == len(shape) and len(values) == shape[0]:
            return self.keeper.send(values)
        return values.reshape(-1)

    def _product(self, one: Any, two: Any) -> Any:
        """The inner product of two vectors, or X^T u."""
        if isinstance(one, KeptArray) and hasattr(two, "transposed_times"):
            return two.transposed_times(one) if one.ndim == 1 else None
        if np.shape(one) != np.shape(two) or len(np.shape(one)) != 1:
            return None
        return (one * two).sum()

    def placed(self, values: ArrayLike) -> KeptArray:
        """Numbers that are here as a vector at the same parties, sent with the next trip."""
        given = np.asarray(values)
        slot = self._operand("add", given, given.shape)
        if given.ndim not in (1, 2) or len(given) != len(self) or not isinstance(slot, Slot):
            raise LearnError(f"an array of shape {given.shape} has no number for each of {len(self):,} joined rows")
        return KeptArray(self.keeper, slot, given.shape, np.bool_ if given.dtype == np.bool_ else np.float64)

    def __array_function__(self, function: Any, types: Any, args: Any, settings: Any) -> Any:
        """NumPy's own functions: some at the parties, others after the vector was collected."""
        if function in _AT_PARTIES and _takes(_AT_PARTIES[function], args, settings):
            return _AT_PARTIES[function](*args, **settings)
        return function(*map(_here, args), **{name: _here(value) for name, value in settings.items()})


def _shape(name: str, like: KeptArray, inputs: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape of a function of arrays; LearnError unless it has one number, or k, for every joined row."""
    shapes = [np.shape(each) for each in inputs]
    try:
        found = np.broadcast_shapes(*shapes)
    except ValueError:
        found = ()
    kept = [np.ndim(each) for each in inputs if isinstance(each, KeptArray)]
    if found[:1] != like.shape[:1] or len(found) > 2 or any(each != len(found) for each in kept):
        raise LearnError(f"np.{name}: arrays of shapes {', '.join(map(str, shapes))} do not fit each other")
    return found


def _here(value: Any) -> Any:
    """Collected, if it is a vector at parties, or a list of such."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_here, value))
    return np.asarray(value) if isinstance(value, KeptArray) else value


def _takes(function: Callable[..., Any], args: Any, settings: Any) -> bool:
    """Whether a function has these arguments."""
    try:
        inspect.signature(function).bind(*args, **settings)
    except TypeError:
        return False
    return True


def _norm(values: Any, ord: Any = None, axis: Any = None) -> Any:
    """The Euclidean norm at the parties; others of the vector as it is collected."""
    if ord is None or (ord == 2 and (values.ndim == 1 or isinstance(axis, int))):
        return np.sqrt(np.square(values).sum(axis))
    return np.linalg.norm(np.asarray(values), ord, axis)


def _dot(one: Any, two: Any) -> Any:
    return one * two if np.ndim(one) == 0 or np.ndim(two) == 0 else one @ two


_AT_PARTIES: dict[Any, Callable[..., Any]] = {
    np.sum: lambda values, axis=None: values.sum(axis),
    np.mean: lambda values, axis=None: values.mean(axis),
    np.count_nonzero: lambda values, axis=None: (values != 0).sum(axis),
    np.linalg.norm: _norm,
    np.dot: _dot,
    np.where: choose,
    np.clip: clip,
    np.shape: lambda values: values.shape,
    np.ndim: lambda values: values.ndim,
    np.size: lambda values: values.size,
    np.zeros_like: lambda values: np.zeros(values.shape, values.dtype),
    np.ones_like: lambda values: np.ones(values.shape, values.dtype),
}
