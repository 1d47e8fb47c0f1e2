"""Secure sums at a party: what it knows about its peers for one table of one session.

In the order of calls: `hello` returns a signed key, `propose` checks the keys of all peers by certificates and policy
and signs the roster, `confirm` checks that every peer has signed the same one. After that, sums over the table's rows
are sent masked, and never otherwise. The key is created for one table of one session and held in memory only: a party
that was restarted does not have it, and the session ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from msgspec import Meta

from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.privacy.secure_sum import FEWEST, MOST_BITS, Masks, Purpose, pair_secret, to_words
from tablepuppet.privacy.signed_keys import Hello, Identity, has_signed, roster_digest

RULE = "secure_sum"
Bits = Annotated[int, Meta(ge=-MOST_BITS, le=MOST_BITS)]


class Wanted(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How a reply shall be masked: its number in the session, and the scale of each of its arrays."""

    number: Annotated[int, Meta(ge=1, le=2**53)]
    bits: dict[str, Bits]

    @classmethod
    def read(cls, op: str, names: Sequence[str], value: Any) -> Wanted:
        """Parse the argument ``secure`` of an op; PartyError if it is invalid."""
        try:
            found = msgspec.convert(value, cls)
        except msgspec.ValidationError:
            raise PartyError(f"op {op!r}: argument 'secure' is not of the kind that it takes") from None
        if set(found.bits) != set(names):
            raise PartyError(f"op {op!r}: argument 'secure' must give a scale for each of {', '.join(names) or 'none'}")
        return found


msgspec.msgpack.Decoder(Wanted)  # before two threads need it at once


@dataclass(frozen=True)
class Roster:
    """Who takes part, with which keys."""

    digest: bytes
    hellos: Mapping[str, Hello]  # by name, those of all peers and the own


@dataclass
class SecureTable:
    """One table of one session. ``peers`` are those that the policy names; None: whoever has a good certificate.

    ``others`` holds the rosters of the session by table: a table that is read twice has the same peers twice, or the
    difference of two sums would be revealed.
    """

    party: str
    table: str
    alias: str
    session: str
    caller: str
    identity: Callable[[], Identity] | None = None
    peers: frozenset[str] | None = None
    others: dict[str, frozenset[str]] = field(default_factory=dict)
    _private: X25519PrivateKey | None = field(default=None, repr=False)
    _hello: Hello | None = None
    _roster: Roster | None = None
    _masks: Masks | None = field(default=None, repr=False)
    _last: int = 0  # number of the last masked reply: none is used twice
    _ended: bool = False

    @property
    def _place(self) -> str:
        """What keys and rosters are signed for: shards of one table, or a sum could hide a shard among other rows."""
        return f"{self.table.lower()}\0{self.alias}"

    @property
    def is_bound(self) -> bool:
        """Whether sums may leave masked only."""
        return self._roster is not None

    @property
    def name(self) -> str:
        """The party's name in its certificate."""
        return self._known().name

    def hello(self) -> Hello:
        """The own key, signed: the same however often it is asked for."""
        if self._hello is None:
            self._private = X25519PrivateKey.generate()
            public = self._private.public_key().public_bytes_raw()
            self._hello = self._known().hello(self.session, self._place, public)
        return self._hello

    def propose(self, hellos: Sequence[Hello]) -> bytes:
        """Check the keys of all peers; the own signature of the roster they make."""
        roster = self._checked(hellos)
        names = frozenset(roster.hellos)
        if self._roster is not None and self._roster.digest != roster.digest:
            raise self.refusal(
                "a second roster in one session is refused: the difference of two sums would be revealed"
            )
        if self.others.setdefault(self.table.lower(), names) != names:
            raise self.refusal("the table is read twice, with other peers; another roster is a new run")
        self._roster = roster
        return self._known().sign(roster.digest)

    def confirm(self, signatures: Mapping[str, bytes]) -> None:
        """Begin to mask, if every peer has signed the roster."""
        known, roster = self._known(), self._roster
        if roster is None:
            raise self.lost()
        for name, hello in roster.hellos.items():
            if not has_signed(hello.certificates, signatures.get(name, b""), roster.digest):
                raise self.refusal(f"peer {name!r} has not signed the roster that this party was sent")
        if self._masks is None and self._private is not None:
            secrets = {
                name: pair_secret(self._private, hello.public, roster.digest)
                for name, hello in roster.hellos.items()
                if name != known.name
            }
            self._masks, self._private = Masks(known.name, secrets), None

    def begin(self, wanted: Wanted) -> None:
        """Take the number of a reply; refuse if nothing can be masked under it."""
        if self._ended:
            raise self.refusal("its secure sums have ended in this session, since a sum did not fit; start a new run")
        if self._masks is None:
            raise self.lost()
        if wanted.number <= self._last:
            raise self.refusal("one mask for two replies would reveal their difference; start a new run")
        self._last = wanted.number

    def masked(self, op: str, wanted: Wanted, values: Mapping[str, Any]) -> dict[str, Any]:
        """Mask sums over rows: the words reveal nothing, except for their sum over all peers."""
        masks, roster = self._masks, self._roster
        if masks is None or roster is None or set(values) != set(wanted.bits):
            raise self.refusal(f"op {op!r} would release more than sums")
        reply: dict[str, Any] = {"bits": wanted.bits}
        for name, value in values.items():
            try:
                words = to_words(value, wanted.bits[name], len(roster.hellos))
            except PrivacyError as error:
                self._masks, self._ended = None, True  # or many scales would reveal how large the sum is
                raise self.refusal(str(error)) from None
            reply[name] = masks.masked(words, Purpose(wanted.number, op, name, wanted.bits[name], np.shape(words)))
        return reply

    def _checked(self, hellos: Sequence[Hello]) -> Roster:
        known = self._known()
        if len(hellos) < FEWEST:
            raise self.refusal(f"{len(hellos)} shards: a sum hides a shard among {FEWEST} or more")
        if self._hello is None or self._hello.public not in [hello.public for hello in hellos]:
            raise self.lost()
        named = [(self._name_of(known, hello), hello) for hello in hellos]
        names = [name for name, _ in named]
        strange = [name for name in names if name != known.name and not self._is_peer(name)]
        if strange:
            raise self.refusal(
                f"{strange[0]!r} is not among the peers that its policy names; add it to peers, or leave it out"
            )
        if len(set(names)) < len(names):
            raise self.refusal("a peer is in the roster twice")
        if dict(named)[known.name].public != self._hello.public:
            raise self.refusal("the roster has its key under another name")
        return Roster(roster_digest(self.session, self._place, [(n, h.public) for n, h in named]), dict(named))

    def _name_of(self, known: Identity, hello: Hello) -> str:
        try:
            return known.name_of(hello, self.session, self._place)
        except PrivacyError as error:
            raise self.refusal(str(error)) from None

    def _is_peer(self, name: str) -> bool:
        return name != self.caller and (self.peers is None or name in self.peers)

    def _known(self) -> Identity:
        if self.identity is None:
            raise self.refusal("secure sums are signed with the key of a certificate, and it has none; see [tls]")
        return self.identity()

    def lost(self) -> PrivacyError:
        """The error for a party that does not know what its peers rely on."""
        return self.refusal(
            "it holds no key of this session for secure sums, as after a restart; going on without it would unmask it, "
            "so the session ends: start a new run"
        )

    def refusal(self, reason: str) -> PrivacyError:
        """The error for a request that would reveal more than a sum."""
        return PrivacyError(f"party {self.party!r}, table {self.table!r}: {reason} (policy rule {RULE})", rule=RULE)
