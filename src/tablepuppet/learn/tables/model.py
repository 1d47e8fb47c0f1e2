"""What the model of a table is and what it computes: the one notion that solvers, heads and ops know.

A *spec* is a Struct with a tag that is sent to parties, stored and shown. There are two families of them, since what
they release differs: outputs are scores, released as PREDICTIONS (`Spec`), or embeddings, released as EMBEDDINGS
(`Bottom`). An op that takes a family takes all its members, and nothing else has to know them. Over the columns of a
table a spec is a `TableModel`, which is the same for both: linear (linear.py), fully connected (dense.py), or any torch
module (learn/split/torch_table.py).

h are the outputs for base rows, Y (``row_gradients``) the gradient of the loss by them, per row and output, and J_r the
derivative of row r's output by the parameters.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats
from tablepuppet.errors import LearnError, PartyError, PrivacyError
from tablepuppet.operators.loj import Head, SumHead
from tablepuppet.party.allowance import check_memory, check_reply, check_time
from tablepuppet.prep.encode.encoded_table import EncodedTable, check_length

MOST_PARAMETERS = 1 << 26  # half a GiB
CHUNK = 1 << 13  # rows at a time
CHUNK_BYTES = 1 << 24  # of a chunk's forward pass, unless a single row takes more


class TableSpec(msgspec.Struct, frozen=True):
    """What the model of a table is."""

    @property
    def outputs(self) -> int:
        """Numbers per row: scores, or the width of an embedding."""
        raise NotImplementedError

    def theta_shape(self, width: int) -> tuple[int, ...] | None:
        """The shape of the parameters of a table with ``width`` encoded columns; None if it is not known here."""
        raise NotImplementedError

    def over(self, width: int, alias: str) -> TableModel:
        """The model of a table with ``width`` encoded columns; LearnError or PartyError if it is too large."""
        raise NotImplementedError


class Spec(TableSpec, frozen=True):
    """A model whose outputs are scores, one per number or class."""

    @property
    def head(self) -> Head:
        """How the outputs of tables are put together: by default they add up."""
        return SumHead()

    @property
    def adds_up(self) -> bool:
        """Whether scores are sums of the outputs of tables: noise and most solvers take that for granted."""
        return isinstance(self.head, SumHead)

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """The shape of the parameters of a table with ``width`` encoded columns."""
        raise NotImplementedError


OWN_FIELDS = ("double", "pixels", "units", "part", "categories")  # fields of bottom networks that users do not give
FIELD_NAMES = {"outputs": "embedding"}  # fields of bottom networks by the names that users give


class Bottom(TableSpec, frozen=True):
    """A network below that of the coordinator, whose outputs are embeddings. It is shown as `tp.bottom` makes it."""

    @property
    def double(self) -> bool:
        """Whether it is computed in double precision."""
        raise NotImplementedError

    def __repr__(self) -> str:
        names = [name for name in self.__struct_fields__ if name not in OWN_FIELDS]
        given = ", ".join(f"{FIELD_NAMES.get(name, name)}={getattr(self, name)!r}" for name in names)
        return f"tp.bottom.{self.__struct_config__.tag}({given})"


class Hiding(msgspec.Struct, frozen=True):
    """Random cells that a table hides from its network: a ``share`` of all, drawn from the seed and the batch.

    ``offset``: how many base rows of the batch other shards of the table hold, before those of this one.
    """

    share: Annotated[float, Meta(ge=0.0, le=1.0)]
    seed: Annotated[int, Meta(ge=0, le=2**53)]
    batch: Annotated[int, Meta(ge=0, le=2**53)]
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0


@dataclass(frozen=True)
class BatchSums:
    """Sums over all joined rows of a batch by encoded column: of its values and of their squares, (2, width)."""

    joined: int
    values: Array


@dataclass
class Forward:
    """A forward pass whose gradient is still to come."""

    outputs: Floats
    seen: Any  # the rows, as the model took them
    gradient: Callable[[Floats], Array]  # by all parameters, from that by outputs

    def backward(self, row_gradients: Floats) -> Array:
        """The gradient by all parameters, from that by outputs."""
        if row_gradients.shape != self.outputs.shape:
            raise PartyError(f"gradients of shape {row_gradients.shape} do not fit {self.outputs.shape}")
        return self.gradient(row_gradients)


def model_of(spec: TableSpec, width: int, alias: str) -> TableModel:
    """The model of a spec, which must name that spec: parts are stored by it, and loaded as what it says."""
    model = spec.over(width, alias)
    if model.spec != spec:
        raise LearnError(f"{type(model).__name__} has another spec than the {type(spec).__name__} that it is made from")
    return model


class RowModel(Protocol):
    """The same model with a bound on each row's contribution: it works on blocks of rows, in plain NumPy."""

    @property
    def width(self) -> int:
        """How many numbers per row are needed in memory, in addition to the row itself."""
        ...

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """h, in double precision."""
        ...

    def clipped_sums(self, theta: Array, table: EncodedTable, row_gradients: Array, clip: float) -> Array:
        """The sum over rows of J_r^T Y_r, each clipped to norm ``clip``."""
        ...


class TableModel(ABC):
    """The model of a table with a certain number of encoded columns.

    A new model writes ``start`` and ``forward``; the rest follows, chunk by chunk, where it has nothing better. Outputs
    of scores are (rows,) for one output, else (rows, outputs), as embeddings always are.
    """

    spec: Any  # the `TableSpec` that describes it
    cells: int = 1  # numbers per row that a forward pass holds in memory

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of its parameters."""

    @property
    def size(self) -> int:
        """The number of parameters."""
        return math.prod(self.shape)

    @property
    def multiplications(self) -> int:
        """How many a forward pass of one row takes, about."""
        return self.size

    @property
    def trained(self) -> int:
        """How many of them are trained; others, such as running means of batch norm, follow after these."""
        return self.size

    @property
    def by_row(self) -> RowModel:
        """The same model with a bound on each row's contribution; PrivacyError if it has no such form."""
        raise PrivacyError(
            "noise needs a bound on what a row adds to a gradient, which only linear models and fully connected "
            "networks (tp.bottom.mlp) have",
            rule="require_dp",
        )

    @abstractmethod
    def start(self, seed: int, alias: str, numbers: int) -> Array:
        """First parameters, the same for all shards of a table; its first ``numbers`` columns are numeric."""

    def rescaled(self, theta: Array, unit: float) -> Array:
        """Parameters whose outputs are ``unit`` times as large."""
        if unit != 1.0:
            raise PartyError("outputs of this model have no other unit")
        return theta

    def rows(self, table: EncodedTable, counts: NDArray[Any] | None = None, hiding: Hiding | None = None) -> Any:
        """Encoded rows as `forward` takes them.

        Models that see a batch as a whole use how often each row is joined in it, and which cells are hidden.
        """
        check_memory(8 * len(table.dense) * self.cells)
        return table

    @abstractmethod
    def forward(self, theta: Array, rows: Any, sums: BatchSums | None = None) -> Forward:
        """h of `rows` in training; ``sums``: of the batch over all shards, for models that see it as a whole."""

    def after(self, theta: Array) -> Array:
        """The parameters as the last forward pass in training left them."""
        return theta

    def predict(self, theta: Array, table: EncodedTable) -> Floats:
        """h after training, of rows that see nothing of each other."""
        found = self.empty(len(table.dense))
        for part in self.chunks(len(found)):
            found[part] = self.forward(theta, self.rows(table.repeated(part))).outputs
        return found

    def empty(self, rows: int) -> Floats:
        """Room for the outputs of rows."""
        outputs = self.spec.outputs
        check_reply(8 * rows * outputs)
        return np.empty((rows,) if isinstance(self.spec, Spec) and outputs == 1 else (rows, outputs))

    def gradient(self, theta: Array, table: EncodedTable, row_gradients: Floats) -> Array:
        """The sum over rows of J_r^T Y_r (Eq. 12)."""
        check_length("values", row_gradients, len(table.dense))
        return self.gradient_of(theta, table, lambda part, _: row_gradients[part])

    def gradient_of(self, theta: Array, table: EncodedTable, row_gradients: Callable[[slice, Floats], Floats]) -> Array:
        """The gradient by theta of a function of h.

        ``row_gradients(rows, outputs)`` returns Y, the derivative of that function by the outputs of these rows.
        """
        found = np.zeros_like(theta)
        for part in self.chunks(len(table.dense)):
            passed = self.forward(theta, self.rows(table.repeated(part)))
            found += passed.backward(row_gradients(part, passed.outputs))
        return found

    def gradient_bound(self, theta: Array) -> float:
        """c such that |J_r^T Y_r| <= c |t_r| |Y_r| for every row t_r."""
        raise PrivacyError("gradients of this model have no bound, which secure sums need", rule="secure_sum")

    def chunks(self, rows: int) -> Iterator[slice]:
        """The rows, some at a time: fewer if a forward pass takes much memory."""
        size = max(1, min(CHUNK, rows, CHUNK_BYTES // (8 * self.cells)))
        check_memory(8 * size * self.cells)
        for start in range(0, rows, size):
            check_time()
            yield slice(start, min(start + size, rows))


def check_size(shape: tuple[int, ...] | None) -> None:
    """LearnError or PartyError if parameters of a shape, as far as it is known, take too much room."""
    parameters = math.prod(shape or ())
    if parameters > MOST_PARAMETERS:
        raise LearnError(f"a network has {parameters:,} parameters; at most {MOST_PARAMETERS:,} are allowed")
    check_memory(4 * 8 * parameters)  # with a gradient and the memory of a solver
