"""What travels between a caller and a party, by its names: ops with their arguments and releases, and what they hold.

``python -m tests.wire.protocol_words`` writes it down beside the number of the protocol, which must be another one
than that of the file.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import pyarrow as pa
from msgspec import Struct

import tablepuppet.learn.party_ops  # noqa: F401 - registers every op
from tablepuppet.party.arguments import one_of
from tablepuppet.party.blind import blind
from tablepuppet.party.local_table import category_key, category_secret
from tablepuppet.party.ops import REGISTRY, Op
from tablepuppet.party.service import Party
from tablepuppet.sql.catalog import Shard
from tablepuppet.sql.types import Family
from tablepuppet.versions import PROTOCOL
from tablepuppet.wire.protocol import _Head, _Opening

GOLDEN = Path(__file__).parent / "golden" / "protocol.txt"
ADVICE = "raise PROTOCOL in src/tablepuppet/versions.py, then run python -m tests.wire.protocol_words"


def words() -> list[str]:
    """A line for each op and for each kind of record that travels."""
    own = [each for _, each in sorted(REGISTRY.items()) if each.function.__module__.startswith("tablepuppet.")]
    ops = [_op(each) for each in own]  # not those that a test registers
    records: dict[str, str] = {}
    hints = [hint for each in own for hint in each.parameters.hints.values()]
    for hint in (*hints, _Head, _Opening, Shard):
        records |= _records(hint)
    return [*ops, *(line for _, line in sorted(records.items())), _digests()]


def _digests() -> str:
    """What becomes of a key and a category under a key of zeros: all parties of a session must compute the same."""
    key, values = bytes(32), pa.chunked_array([pa.array(["a", "b"])])
    party: Any = Party("p", cast(Any, None), key)
    joined = blind([values], [Family.TEXT.value], key).digests.tobytes()
    category = category_key(category_secret(key, "e"), "e", "lower(genre)")
    return f"digests: {party.key_mark} {hashlib.sha256(joined + category).hexdigest()[:16]}"


def _op(found: Op) -> str:
    needed, known = found.parameters.names
    named = [name if name in needed else f"{name}?" for name in sorted(known)]
    others = [] if found.parameters.others is None else ["..."]
    returns = ", ".join(sorted(found.returns)) if isinstance(found.returns, dict) else "..."
    return f"op {found.name}({', '.join([*named, *others])}) -> {returns}; {', '.join(found.releases.names)}"


def _records(hint: Any) -> dict[str, str]:
    """The records that a type names, and those within them."""
    found: dict[str, str] = {}
    for kind in _named(one_of(hint)):
        fields = get_type_hints(kind, include_extras=True)
        own = kind.__struct_fields__ if issubclass(kind, Struct) else [each.name for each in dataclasses.fields(kind)]
        tag = f" {kind.__struct_config__.tag!r}" if issubclass(kind, Struct) and kind.__struct_config__.tag else ""
        found[kind.__name__] = f"record {kind.__name__}{tag}: {', '.join(own)}"
        for name in own:
            found |= _records(fields[name])
    return found


def _named(hint: Any) -> Iterator[Any]:
    is_record = isinstance(hint, type) and (issubclass(hint, Struct) or dataclasses.is_dataclass(hint))
    if is_record and hint.__module__.startswith("tablepuppet."):  # not a member of a family that a test defines
        yield hint
    for part in get_args(hint):
        yield from _named(one_of(part))


def recorded() -> tuple[int, list[str]]:
    """The number and the words of the file."""
    first, *lines = GOLDEN.read_text().splitlines()
    return int(first.removeprefix("version ")), lines


def write() -> None:
    """Write the words down under a new number."""
    if GOLDEN.exists() and recorded()[0] == PROTOCOL and recorded()[1] != words():
        raise SystemExit(f"the number is still {PROTOCOL}: {ADVICE}")
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text("\n".join([f"version {PROTOCOL}", *words(), ""]))


if __name__ == "__main__":
    write()
