"""`LocalTable`: what an op sees of a party's table, and the only place where noise is added to a release."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.party.allowance import check_memory, check_reply, check_time, count_release
from tablepuppet.party.beside import ColumnState, column_state, positions_now
from tablepuppet.party.blind import derive_key, named_key
from tablepuppet.party.bounded import Bounded, Owned
from tablepuppet.party.delivery import Deliveries
from tablepuppet.party.grant import Grant
from tablepuppet.party.kept import Shelf
from tablepuppet.party.ops import MISFITS, log_misfit
from tablepuppet.party.origins import Allow, Kept, Reached, are_noisy
from tablepuppet.party.policy import Level
from tablepuppet.party.secure_table import SecureTable
from tablepuppet.party.snapshot import Snapshot
from tablepuppet.privacy.accountant import Spending
from tablepuppet.privacy.noise import (
    SecureStream,
    discrete_gaussian,
    gaussian_grid,
    gaussian_sigma,
    poisson_sample,
    sampling_epsilon,
    summed_steps,
)
from tablepuppet.sql.plan import Scan

# The noisy releases of a session, stored before they are sent: a repeated request gets the same values. Input: names of
# releases, and their noisy values. Output: the values stored under a name. The caller may know all of it; nothing
# without noise is stored. A party in the analyst's own process is never restarted, and stores none.


class ReleaseLog(Protocol):
    """The releases of one session."""

    def get(self, name: str) -> NDArray[np.float64] | None:
        """What a release was; None if there was none of that name."""
        ...

    def put(self, name: str, values: NDArray[np.float64], size: int) -> None:
        """Write a release down as if it had ``size`` numbers, which is public; PartyError if that is impossible."""
        ...


class Unlogged:
    """Where nothing outlives the process."""

    def get(self, name: str) -> NDArray[np.float64] | None:
        """Nothing."""

    def put(self, name: str, values: NDArray[np.float64], size: int) -> None:
        """Nothing is kept."""


Charge = Callable[[Spending, str, str | None, str], None]  # cost, purpose, release, the line of releases it is in
_NUMBERS = 6  # that an op has in memory for each row of a column
_COPIES = 4  # of a release in memory: its sum, its noise, both together, and the copy for the log
_EMBEDDED = "embeddings of rows"  # the state that counts them
Place = tuple[int, int]  # of an op in its session: the number of its request, and of its step


@dataclass(frozen=True)
class RelationRows:
    """The rows of a snapshot that take part in one relation, and how often each is joined."""

    row_ids: NDArray[np.integer]
    counts: NDArray[np.integer]
    missing_row: int = -1  # the row id of the missing row of outer joins; -1: the snapshot has none

    @cached_property
    def is_each_once(self) -> bool:
        """Whether every row is listed only once."""
        return bool(self._listed_first.all())

    @cached_property
    def is_each_joined_once(self) -> bool:
        """Whether no row is joined more than once."""
        return not len(self.counts) or int(self.counts.max()) == 1

    @cached_property
    def firsts(self) -> NDArray[np.bool_]:
        """A mask of the first occurrence of each row, for the sizes of groups: a repeated row does not count, nor does
        the missing row, which everybody knows.
        """
        return self._listed_first if self.missing_row < 0 else self._listed_first & (self.row_ids != self.missing_row)

    @cached_property
    def are_all_first(self) -> bool:
        """Whether all rows that are listed count towards the sizes of groups."""
        return bool(self.firsts.all())

    @cached_property
    def is_in_order(self) -> bool:
        """Whether rows are listed by row id, each once."""
        return bool(np.all(self.row_ids[1:] > self.row_ids[:-1]))

    @cached_property
    def _listed_first(self) -> NDArray[np.bool_]:
        if self.is_in_order:  # as the mapping's rows are
            return np.ones(len(self.row_ids), bool)
        found = np.zeros(len(self.row_ids), bool)
        found[np.unique(self.row_ids, return_index=True)[1]] = True
        return found


@dataclass(frozen=True)
class RefusedRows:
    """Rows that the policy does not let take part in a relation, and why."""

    reason: str
    rule: str


@dataclass(kw_only=True)
class LocalTable:
    """What an op sees: one shard of one table use, within one session of a caller."""

    counted_elsewhere: ClassVar[bool] = True  # what refers to it does not hold it

    snapshot: Snapshot
    caller: str
    grant: Grant  # what the caller may do with it
    secure: SecureTable  # whether and how sums over its rows are masked
    wire: str  # precision of row arrays on the wire
    secret: bytes  # for blinding
    run_key: bytes  # for blinding join keys in this run only
    category_secrets: dict[str, bytes]  # of the party: those of loaded models
    noise_secret: bytes  # of the party, unknown to others: for noise that is the same whenever it is asked for
    nonce: str  # of the session: no two draw the same noise
    views: Bounded  # `RelationRows`, or why none, by the name of the relation (its view)
    _held_here: Bounded  # what ops keep in this session
    _held_models: Owned  # of all sessions of the caller
    _shelf: Shelf  # of the caller: its parts of saved models
    made: ReleaseLog  # releases with noise of this session, as they were sent
    charged: Charge
    split_by: Callable[[str], None]  # called with a choice of rows by position, before it is released
    refine: Callable[[Sequence[str]], None]  # called with columns and rows, before their histogram is refined
    _read_now: Callable[[Scan], Snapshot]  # what a scan reads now
    _read_beside: Callable[[Sequence[str]], pa.Table]  # other columns, for the snapshot's rows; see beside.py
    deliveries: Deliveries  # predictions that the party takes home
    is_repeat: bool = False  # the request was answered before: what it did outside of the session is done
    is_by_row: bool = True  # whatever the op that runs releases is one row's each
    _place: Place = field(default=(0, -1), init=False)  # of the op that runs
    _releases: int = field(default=0, init=False)  # with noise, of this op so far
    _reached: Reached | None = field(default=None, init=False)  # by the op that runs; None: none does
    _adds_noise: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Watch all ways to cells, and to what was computed from them."""
        self.snapshot = self.snapshot.watched(self._look)
        self.state, self.models = Kept(self._held_here, self._of_op), Kept(self._held_models, self._of_op)
        self.shelf = self._shelf.watched(self._of_op)

    def _of_op(self) -> Reached:
        return self._reached or Reached()

    def _look(self) -> None:
        """Cells are about to be seen. PrivacyError if the policy demands noise and nothing adds any."""
        if self._reached is None:
            return
        if self.must_hide and not self._adds_noise:
            raise self.grant.refusal(
                "require_dp",
                "its cells are seen only where noise is added; set privacy=tp.Privacy(...), as docs/privacy.md says",
            )
        self._reached.cells(noisy=self._adds_noise)

    @contextmanager
    def mechanism(self) -> Iterator[None]:
        """Inside, noise is added to all that follows from cells, which are seen by nothing else."""
        before, self._adds_noise, reached = self._adds_noise, True, self._of_op()
        kept, reached.keeps = reached.keeps, False
        try:
            yield
        finally:
            self._adds_noise, reached.keeps = before, kept

    @contextmanager
    def for_reply(self) -> Iterator[None]:
        """Inside, cells are seen for the reply only: nothing that is kept comes from them."""
        reached = self._reached
        self._reached = None if reached is None else reached.aside()
        try:
            yield
        finally:
            self._reached = reached

    @contextmanager
    def running(self, allow: Allow, place: Place | None = None) -> Iterator[None]:
        """Run an op inside; ``allow`` refuses what comes from tables that do not allow it. See `begin`."""
        self.begin(place)
        self._reached = Reached(self.snapshot.scan, allow)
        try:
            yield
        finally:
            self._reached = None

    def check_noisy(self) -> None:
        """PrivacyError unless all that the op has got hold of comes from noisy values only."""
        if not are_noisy(self._of_op().origins):
            raise PrivacyError(f"party {self.grant.party!r}: this model was not learned with noise", rule="require_dp")

    def beside(self, columns: Sequence[str]) -> pa.Table:
        """Other columns, for the snapshot's rows in its order."""
        self._look()
        return self._read_beside(columns)

    def state_of(self, output: str) -> ColumnState:
        """The state of an output over the whole table, from which noise is drawn: the caller never sees it."""
        with self.mechanism():
            return column_state(self.snapshot, output, self._read_now)

    def positions(self, row_ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """The positions of rows in the source, for code in the party's own process."""
        return np.take(positions_now(self.snapshot, self._read_now), self.snapshot.place(row_ids))

    def view(self, name: str) -> RelationRows:
        """The rows of a relation that was announced with the op ``rows.use``."""
        if name not in self.views:
            raise PartyError(f"party {self.snapshot.scan.party!r}: no rows are announced for relation {name!r}")
        found: RelationRows | RefusedRows = self.views[name]
        if isinstance(found, RefusedRows):
            raise PrivacyError(found.reason, rule=found.rule)
        return found

    def rows_of(self, view: object) -> int:
        """How many rows a relation has; those of the snapshot if it is none, or no relation is named."""
        found = self.views[view] if isinstance(view, str) and view in self.views else None
        return len(found.row_ids) if isinstance(found, RelationRows) else self.snapshot.rows

    def different_rows(self, view: object) -> int:
        """How many different rows a relation has; those of the snapshot if no relation is named."""
        found = self.views[view] if isinstance(view, str) and view in self.views else None
        return int(np.count_nonzero(found.firsts)) if isinstance(found, RelationRows) else self.snapshot.own_rows

    def begin(self, place: Place | None = None) -> None:
        """Begin an op. Its unique place among the session's requests names its noisy releases.

        So names of a refused op are never used again. A restarted party does not run a refused op again, and still
        gives the later releases the same names. None: the next place.
        """
        place = (self._place[0], self._place[1] + 1) if place is None else place
        if place <= self._place:
            raise PartyError(f"party {self.snapshot.scan.party!r}: a request came twice; open the relation again")
        self._place, self._releases = place, 0

    def measure(self) -> None:
        """Count the memory that an op used: models grow during training. PartyError if the limit is exceeded."""
        for held in (self.views, self._held_here, self._held_models):
            held.measure()

    def free(self) -> None:
        """Free everything; of models, only those that this session created."""
        self.views.clear()
        self._held_here.clear()
        self._held_models.close()

    def rows_once(self, view: str) -> RelationRows:
        """The rows of a relation, each listed once: a row that is listed twice would count twice in sums with noise."""
        found = self.view(view)
        if not found.is_each_once:
            raise self.grant.refusal("require_dp", "a row is listed twice, which noise for one would not hide")
        return found

    @property
    def must_hide(self) -> bool:
        """Whether the policy demands noise on all releases: then the caller cannot choose to go without."""
        return bool(self.grant.rules.budget.require_dp)

    def null_rows(self, outputs: Iterable[str], view: str) -> NDArray[np.bool_]:
        """Which rows of a relation are null records: every cell that the outputs are computed from is NULL.

        They add nothing to noisy releases, whatever value an expression gives to NULL. So replacing a row's cells by
        NULLs changes a release by at most the row's own contribution. An output that reads no cell does not count: a
        constant reveals nothing about a row.
        """
        return np.take(self.snapshot.is_null(outputs), self.snapshot.place(self.view(view).row_ids))

    def column(self, name: str, view: str) -> pa.ChunkedArray:
        """An output column, for the rows of a relation, by row id; PartyError if the request has had its time."""
        check_time()
        column, found = self.snapshot.outputs[name], self.view(view)
        if self.snapshot.in_source_order and len(found.row_ids) == self.snapshot.rows and found.is_in_order:
            return column  # all rows
        return self.taken(column, view)

    def taken(self, column: pa.ChunkedArray, view: str) -> pa.ChunkedArray:
        """Values of a column in the snapshot's own order, for the rows of a relation.

        A row may be listed as often as it is joined: PartyError if that many copies of it, or of the numbers that an
        op makes of it, may be too much memory, and PrivacyError where noise is demanded, as the longest value decides
        about that.
        """
        found = self.view(view)
        if not found.is_each_once:
            longest = max(_longest(column), 8 * _NUMBERS)
            self.rows_once(view) if self.must_hide else check_memory(len(found.row_ids) * longest)
        return column.take(pa.array(self.snapshot.place(found.row_ids)))

    def count_embeddings(self, view: str, width: int, places: NDArray[np.integer] | None = None) -> None:
        """Count embeddings of rows, of all that take part or those at ``places``; PrivacyError if there are too many.

        To be called before they are computed.
        """
        rule = self.grant.rules.embeddings
        assert rule is not None, "the guard checked it"
        if rule.max_width is not None and width > rule.max_width:
            reason = f"embeddings of its rows have at most {rule.max_width} numbers, not {width}"
            raise self.grant.refusal("embeddings.max_width", reason)
        if rule.max_epochs is None:
            return
        rows = self.snapshot.place(self.view(view).row_ids)
        if places is not None:
            if len(places) and (places.min() < 0 or places.max() >= len(rows)):
                raise PartyError(f"places of rows must be at least 0 and below {len(rows):,}")
            rows = rows[places]
        counted: NDArray[np.int32] = self._held_here.get(_EMBEDDED, np.zeros(self.snapshot.rows, np.int32)).copy()
        np.add.at(counted, rows, 1)
        if len(rows) and counted[rows].max() > rule.max_epochs:
            reason = (
                f"the session has had the embeddings of a row {rule.max_epochs} times, or would with these; learn in "
                "fewer epochs or larger batches, open the relation again, or ask the party's operator"
            )
            raise self.grant.refusal("embeddings.max_epochs", reason)
        self._held_here[_EMBEDDED] = counted

    def count_split(self, view: str, chosen: NDArray[np.bool_], classes: NDArray[np.integer] | None = None) -> None:
        """Count a choice of a relation's rows by their places in the source; PrivacyError if there are too many.

        To be called before anything that follows from ``chosen`` is kept or sent. It reveals one bit of the place of
        every row, and of one that is listed several times a bit each time, unless its whole class is chosen, or none
        of it: it counts as so many splits.
        """
        if self.is_repeat or not chosen.any() or chosen.all():
            return
        found = self.view(view)
        order = np.argsort(self.snapshot.place(found.row_ids), kind="stable")
        among = self.snapshot.about_positions.encode()
        what = hashlib.sha256(among + np.sort(self.snapshot.position(found.row_ids)).tobytes())
        what.update(np.packbits(chosen[order]).tobytes())
        if classes is not None:
            what.update(_numbered(classes[order]).tobytes())
        self.split_by(what.hexdigest())
        for again in range(1, 1 if found.is_each_once else _most_told(found.row_ids, chosen, classes)):
            self.split_by(f"{what.hexdigest()} {again}")

    def charge(self, cost: Spending, purpose: str, release: str | None = None, line: str = "") -> None:
        """Spend ``cost`` of the table's budget in the caller's name; PrivacyError if there is not as much left.

        To be called before anything is computed from rows; when it returns, the charge is on disk. ``release`` names
        one that is the same whenever it is asked for: it costs once. Of those in one ``line``, the last one counts:
        those before it are not asked for again. Inside the coordinator's own process there is no budget, and no charge.
        """
        self.charged(cost, purpose, release, line)

    @property
    def _line(self) -> str:
        return f"{self.nonce} {self.snapshot.scan.alias}"

    def _next_release(self) -> str:
        """A name that no other release with noise has."""
        return f"{self._line} {self._place[0]}.{self._place[1]}.{self._releases}"

    def sample(self, count: int, probability: float, given: bytes = b"") -> NDArray[np.int64]:
        """Which of ``count`` rows are in the sample of the next noisy release: drawn independently and kept secret.

        Deterministic per session and input: it comes from an independent random stream, derived from the release's name
        and ``given``, a digest of what the release depends on besides rows.
        """
        mark = f"sample {self._next_release()} {hashlib.sha256(given).hexdigest()}"
        key = hmac.digest(self.noise_secret, mark.encode(), "sha256")
        return poisson_sample(count, probability, SecureStream.keyed(key))

    def noisy(
        self,
        parts: Callable[[], Iterable[NDArray[np.float64]]],
        shape: tuple[int, ...],
        sensitivity: float,
        multiplier: float,
        purpose: str,
        sampling: float | None = None,
        tail: float = 0.0,
        is_most: bool = False,
    ) -> NDArray[np.float64]:
        """The sum of ``parts``, arrays of ``shape``, with Gaussian noise of ``multiplier`` times their L2 sensitivity.

        Each row is in one part. ``parts`` is called when all that could be refused has been, by arguments and public
        sizes alone, and the release is charged; what it computes should not fail, and no row adds more than
        ``sensitivity``, a null record nothing. If it fails nevertheless, nobody but the operator learns it: the release
        is that of no rows. ``sampling`` is the probability with which `sample` chose the rows;
        ``tail`` that of noise beyond a bound that the release depends on. With ``is_most`` the shape is the largest
        that there may be: noise and cost follow from it, and how many numbers there are is private.

        What leaves is written down first. A party that is killed and computes a session's requests again sends what it
        has written down, whatever became of the rest: nothing is compared, and nothing is charged twice. A release that
        it was killed in the middle of has left nothing; it is computed, and costs nothing more.
        """
        size = math.prod(shape)
        check_reply(8 * size)
        check_memory(8 * size * _COPIES)
        sigma = gaussian_sigma(multiplier, sensitivity, size)
        step = gaussian_grid(sigma, sensitivity)
        cost = Spending.of_gaussian(multiplier, 1, sampling) + Spending.of_pure(sampling_epsilon(max(size, 1)))
        cost = cost + Spending(tail=tail)
        asked = (
            f"{sensitivity!r} {multiplier!r} {sampling!r} {tail!r} {shape!r}"  # who asks for another one pays for it
        )
        name = f"{purpose} {self._next_release()} {asked}"
        self._releases += 1
        made = self.made.get(name)
        if made is not None:
            return made
        count_release()
        self.charge(cost, purpose, name, self._line)
        values = self._summed(parts, None if is_most else shape, step, purpose)
        mark = f"noise {name} {hmac.digest(self.noise_secret, name.encode() + values.tobytes(), 'sha256').hex()}"
        key = hmac.digest(self.noise_secret, mark.encode(), "sha256")
        noise = discrete_gaussian(SecureStream.keyed(key), values.size, sigma / step)
        released = np.asarray((values + noise.reshape(values.shape)) * step, np.float64)
        self.made.put(name, released, size)
        return released

    def _summed(
        self,
        parts: Callable[[], Iterable[NDArray[np.float64]]],
        shape: tuple[int, ...] | None,
        step: float,
        purpose: str,
    ) -> NDArray[np.int64]:
        """The sum of parts in steps; zero if it fails: whether it does may depend on a row."""
        with self.mechanism():
            try:
                return summed_steps(parts(), shape, step)
            except MISFITS as error:
                log_misfit(f"noisy {purpose} of table {self.grant.table!r}, which has noise only now", error)
                return np.zeros(shape or (0,), np.int64)

    def category_key(self, blinding: str, column: str) -> bytes:
        """The digest key of an output's categories under the secret that ``blinding`` names.

        It belongs to what the output is computed from: another expression of the same name has other digests.
        """
        secret = self.category_secrets.get(blinding) or category_secret(self.secret, blinding)
        scan = self.snapshot.scan
        return category_key(secret, blinding, scan.outputs[column], scan.made_from)

    @property
    def must_mask(self) -> bool:
        """Whether sums over its rows may leave masked only: by the policy, or since its shards have agreed so."""
        return self.grant.rules.secure_sum or self.secure.is_bound

    def level(self, output: str) -> Level:
        """The policy's level of an output column: the strictest of the columns it is made of."""
        return self.grant.outputs[output].rule.level


def _longest(column: pa.ChunkedArray) -> int:
    """Bytes of the longest value of a column."""
    if pa.types.is_primitive(column.type):
        return int(column.type.bit_width + 7) // 8
    return int(pc.max(pc.binary_length(column.cast(pa.large_string()))).as_py() or 0) + 8


def _numbered(classes: NDArray[np.integer]) -> NDArray[np.int64]:
    """Classes by numbers in the order in which they first appear: whatever a session numbered them by.

    >>> _numbered(np.array([7, 3, 7, 9])).tolist()
    [0, 1, 0, 2]
    """
    _, first, inverse = np.unique(classes, return_index=True, return_inverse=True)
    place = np.empty(len(first), np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return place[inverse]


def _most_told(row_ids: NDArray[np.integer], chosen: NDArray[np.bool_], classes: NDArray[np.integer] | None) -> int:
    """How often one row is listed in classes of which some are chosen, but not all.

    >>> _most_told(np.array([4, 4, 4, 9]), np.array([True, False, False, True]), np.array([0, 0, 1, 1]))
    3
    """
    _, groups = np.unique(np.zeros(len(row_ids)) if classes is None else classes, return_inverse=True)
    sizes, ones = np.bincount(groups), np.bincount(groups, chosen)
    told = ((ones > 0) & (ones < sizes))[groups]
    return int(np.bincount(row_ids[told]).max(initial=0))


def category_secret(blinding_key: bytes, blinding: str) -> bytes:
    """The secret under which one model's categories are blinded: saved with the model where that is possible."""
    return derive_key(blinding_key, "categories", blinding)


def category_key(secret: bytes, blinding: str, expression: str, made_from: str = "") -> bytes:
    """The digest key of the categories of one column, or of one expression, however it is spelled; over a view, which
    ``made_from`` marks, it is another one.
    """
    return derive_key(secret, "category", blinding, named_key(expression), *([made_from] if made_from else []))
