"""Ops: everything a party will compute for a coordinator, each with what it lets out.

An op is a function over a `LocalTable` with named arguments, plain values and NumPy arrays in and out. It
declares its releases; the service checks them. Algorithms register their ops beside their coordinator half.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.party.arguments import Parameters
from tablepuppet.party.blind import derive_key
from tablepuppet.party.grant import Grant
from tablepuppet.party.kept import Shelf
from tablepuppet.party.policy import Level, Use
from tablepuppet.party.release import Release
from tablepuppet.party.secure_table import SecureTable
from tablepuppet.party.snapshot import Snapshot
from tablepuppet.privacy.accountant import Spending
from tablepuppet.privacy.noise import (
    SecureStream,
    add_gaussian,
    gaussian_sigma,
    grid,
    poisson_sample,
    sampling_epsilon,
    steps_of,
)
from tablepuppet.sql.plan import Scan

Values = dict[str, Any]  # plain values and NumPy arrays by name
SECURE = "secure"  # the argument that asks for a masked reply
Charge = Callable[[Spending, str, str | None], None]  # cost, purpose, release


def _uncharged(cost: Spending, purpose: str, release: str | None) -> None:
    """Where nobody keeps a ledger."""


def _unread(scan: Scan) -> Snapshot:
    raise PartyError(f"party {scan.party!r}: its database is not there to be read again")


@dataclass(frozen=True)
class View:
    """The rows of a snapshot that take part in one relation, and how often each is joined."""

    row_ids: NDArray[np.integer]
    counts: NDArray[np.integer]

    @cached_property
    def is_each_once(self) -> bool:
        """Whether no row stands there twice."""
        return len(np.unique(self.row_ids)) == len(self.row_ids)


@dataclass
class LocalTable:
    """What an op sees: one shard of one table use, within one session."""

    snapshot: Snapshot
    grant: Grant  # what the caller may do with it
    secret: bytes  # for blinding
    run: str
    secure: SecureTable  # whether and how sums over its rows are masked
    wire: str = "float64"  # precision of row arrays on the wire
    views: dict[str, View] = field(default_factory=dict)
    state: Values = field(default_factory=dict)  # of this session
    models: Values = field(default_factory=dict)  # of the party: models outlive the session they were trained in
    category_secrets: dict[str, bytes] = field(default_factory=dict)  # of the party: those of loaded models
    shelf: Shelf = field(default_factory=lambda: Shelf(""))  # of the caller: its parts of saved models
    is_repeat: bool = False  # the request was answered before: what it did outside of the session is done
    noise_secret: bytes = b""  # of the party, unknown to others: for noise that is the same whenever it is asked for
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))  # of the session: no two draw the same noise
    charged: Charge = _uncharged
    read: Callable[[Scan], Snapshot] = _unread
    _releases: int = field(default=0, init=False)  # with noise, so far

    def view(self, name: str) -> View:
        """The rows of a relation that was announced with the op ``rows.use``."""
        if name not in self.views:
            raise PartyError(f"party {self.snapshot.scan.party!r}: no rows are announced for relation {name!r}")
        return self.views[name]

    def check_once(self, view: str) -> None:
        """PrivacyError if a row stands twice in a relation's list: then it would count twice in sums with noise."""
        if not self.view(view).is_each_once:
            raise self.grant.refusal("require_dp", "a row is listed twice, which noise for one would not hide")

    def column(self, name: str, view: str) -> pa.ChunkedArray:
        """An output column, for the rows of a relation, by row id."""
        column, row_ids = self.snapshot.outputs[name], self.view(view).row_ids
        if self.snapshot.in_source_order and len(row_ids) == self.snapshot.rows:
            return column
        return column.take(pa.array(self.snapshot.place(row_ids)))

    def charge(self, cost: Spending, purpose: str, release: str | None = None) -> None:
        """Spend ``cost`` of the table's budget in the caller's name; PrivacyError if there is not as much left.

        To be called before a release; when it returns, the charge is on disk. ``release`` names one that is the same
        whenever it is asked for: it costs once. Inside the coordinator's own process there is no budget, and no charge.
        """
        self.charged(cost, purpose, release)

    def sample(self, count: int, probability: float, given: bytes = b"") -> NDArray[np.int64]:
        """Which of ``count`` rows are in the sample of the next release with noise: each on its own, unseen by others.

        It is drawn as that noise is, from a stream of its own: a session that is computed again has the same one, where
        what the release is made of besides the rows, ``given``, is the same.
        """
        what = hashlib.sha256(given).hexdigest()
        mark = f"sample {self.nonce} {self.snapshot.scan.alias} {self._releases + 1} {what}"
        key = hmac.digest(self.noise_secret, mark.encode(), "sha256")
        return poisson_sample(count, probability, SecureStream.keyed(key))

    def noisy(
        self,
        values: NDArray[np.float64],
        sensitivity: float,
        multiplier: float,
        purpose: str,
        sampling: float | None = None,
    ) -> NDArray[Any]:
        """Values with Gaussian noise of ``multiplier`` times their L2 ``sensitivity``, charged before they are told.

        ``sampling`` is the probability with which `sample` chose the rows that the values are made of.

        Noise is drawn from the party's secret, the session's nonce, a number that no other release has, and the values
        themselves, rounded as they are released. A party that is killed and computes a session's requests again draws
        it again: what it told stays true, and costs once. Other values have other noise, and cost anew.
        """
        self._releases += 1
        sigma = gaussian_sigma(multiplier, sensitivity, values.size)
        rounded = steps_of(values, grid(sigma))
        what = f"{purpose} {sensitivity!r} {multiplier!r} {sampling!r} ".encode() + rounded.tobytes()
        values_mark = hmac.digest(self.noise_secret, b"values " + what, "sha256").hex()
        mark = f"{self.nonce} {self.snapshot.scan.alias} {self._releases} {values_mark}"
        cost = Spending.of_gaussian(multiplier, 1, sampling) + Spending.of_pure(sampling_epsilon(max(values.size, 1)))
        self.charge(cost, purpose, f"{purpose} {mark}")
        key = hmac.digest(self.noise_secret, f"noise {mark}".encode(), "sha256")
        return add_gaussian(values, sigma, SecureStream.keyed(key))

    def category_key(self, blinding: str, column: str) -> bytes:
        """The digest key of a column's categories under the secret that ``blinding`` names."""
        secret = self.category_secrets.get(blinding) or category_secret(self.secret, blinding)
        return derive_key(secret, blinding, f"category {column}")

    @property
    def must_mask(self) -> bool:
        """Whether sums over its rows may leave masked only: by the policy, or since its shards have agreed so."""
        return self.grant.rules.secure_sum or self.secure.is_bound

    def level(self, output: str) -> Level:
        """The policy's level of an output column: the strictest of the columns it is made of."""
        return self.grant.outputs[output].rule.level


def category_secret(blinding_key: bytes, blinding: str) -> bytes:
    """The secret under which one model's categories are blinded: saved with the model where that is possible."""
    return derive_key(blinding_key, blinding, "categories")


@dataclass(frozen=True)
class Op:
    """A registered op.

    ``columns`` are the arguments that name the outputs it works on; an op without any works on every feature.
    ``use`` is one of which those outputs must have at least one; None: what the releases are allowed for. A ``private``
    op adds noise to all that it lets out and charges for it, with `LocalTable.charge`, before it returns.
    One that is ``on_shelf`` works on the caller's parts of saved models and needs no table; what it tells of the part
    that its argument ``part`` names is held against the policy for the tables that the part was learned from.
    ``summed`` are all values of its reply, if a coordinator needs no more of them than their sums over shards.
    """

    name: str
    releases: Release
    function: Callable[..., Values]
    columns: tuple[str, ...] = ()
    use: Use | None = None
    private: bool = False
    on_shelf: bool = False
    summed: tuple[str, ...] = ()

    def __call__(self, place: LocalTable | Shelf, arguments: Mapping[str, Any]) -> Values:
        """Run the op after checking that the arguments are those it takes."""
        self.parameters.check(arguments)
        return self.function(place, **arguments)

    @cached_property
    def parameters(self) -> Parameters:
        """What the op takes."""
        return Parameters(self.name, self.function)


REGISTRY: dict[str, Op] = {}


def op(
    name: str,
    *,
    releases: Release,
    columns: tuple[str, ...] = (),
    use: Use | None = None,
    private: bool = False,
    on_shelf: bool = False,
    summed: tuple[str, ...] = (),
) -> Callable[[Callable[..., Values]], Callable[..., Values]]:
    """Register a function as an op that lets out ``releases`` of ``columns`` and nothing else; see `Op`."""

    def register(function: Callable[..., Values]) -> Callable[..., Values]:
        assert name not in REGISTRY, f"two ops are called {name}"
        REGISTRY[name] = Op(name, releases, function, columns, use, private, on_shelf, summed)
        return function

    return register


def find_op(name: str) -> Op:
    """The op of that name; PartyError if there is none."""
    if name not in REGISTRY:
        raise PartyError(f"there is no op {name!r}; is the party's version of tablepuppet the coordinator's?")
    return REGISTRY[name]
