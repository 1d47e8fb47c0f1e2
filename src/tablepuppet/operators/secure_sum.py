"""The coordinator's half of secure sums: it adds masked words, and sees the sum over a table's shards only.

Shards agree on them by a roster (rosters.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tablepuppet.errors import PrivacyError
from tablepuppet.privacy.secure_sum import FEWEST, scale_bits
from tablepuppet.sql.catalog import VerticalTable

Bounds = Callable[[str], Mapping[str, float]]
"""By alias: about how large each value of a reply can be, from what the coordinator knows."""


@dataclass
class SecureTables:
    """The tables of a session whose shards have a roster."""

    parties: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by alias
    _asked: Counter[str] = field(default_factory=Counter)

    def wanted(self, alias: str, parties: tuple[str, ...], bounds: Bounds | None) -> dict[str, Any]:
        """What shards must be sent to mask their next sums; nothing if the table has no roster."""
        if bounds is None or alias not in self.parties:
            return {}
        self.check(alias, parties)
        self._asked[alias] += 1
        bits = {name: scale_bits(bound, len(parties)) for name, bound in bounds(alias).items()}
        return {"secure": {"number": self._asked[alias], "bits": bits}}

    def check(self, alias: str, parties: tuple[str, ...]) -> None:
        """PrivacyError unless the roster of a table has exactly these parties."""
        if self.parties[alias] != parties:
            raise PrivacyError(
                f"table {alias!r}: this session sums over the shards of {', '.join(self.parties[alias])}, and the "
                f"relation has rows of {', '.join(parties)}; another roster is a new run: open it with fed.sql"
            )


def check_shards(table: VerticalTable, parties: Sequence[str]) -> None:
    """PrivacyError if the shards of a table that take part are too few for a secure sum.

    One shard alone adds nothing up: it is learned from by itself, unless its party demands otherwise.
    """
    demanding = [shard.party for shard in table.shards if shard.secure_sum and shard.party in parties]
    if len(parties) >= FEWEST or (len(parties) < 2 and not demanding):
        return
    found = f"rows of {len(parties)} shards in the relation ({', '.join(parties)})"
    if demanding:
        raise PrivacyError(
            f"party {demanding[0]!r}, table {table.name!r}: its policy lets sums over its rows leave only within a sum "
            f"over three or more shards, and the table has {found}. Add shards, or leave out its columns (policy rule "
            "secure_sum)",
            rule="secure_sum",
        )
    raise PrivacyError(
        f"secure_sum: table {table.name!r} has {found}, and in a sum of two each knows the other's part. It takes "
        f"{FEWEST} or more: add a shard, or learn without secure_sum"
    )
