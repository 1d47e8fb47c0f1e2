"""What a party file says otherwise than the party that is being served: `tablepuppet party check --diff`.

Input: two party files as plain values. Output: what was added, removed and changed, setting by setting. The URL of the
database, which may hold a password, is compared by its digest and not shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from tablepuppet.party.config import PartyFile
from tablepuppet.party.table_entry import ColumnEntry


class Change(msgspec.Struct, frozen=True):
    """A setting that is another in the file than in the party that is being served."""

    kind: Literal["added", "removed", "changed"]
    setting: str
    served: Any = None
    file: Any = None

    def __str__(self) -> str:
        if self.kind == "changed":
            return f"changed: {self.setting}: {_shown(self.served)} is served, the file says {_shown(self.file)}"
        value = self.file if self.kind == "added" else self.served
        where = "the file has it" if self.kind == "added" else "it is served"
        return f"{self.kind}: {self.setting}: {where}, {_shown(value)}"


def plain_settings(settings: PartyFile) -> dict[str, Any]:
    """A party file as plain values that its operator may see."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings))  # as it travels: no tuples
    for table in found["tables"].values():
        table["columns"] = {name: _in_full(entry) for name, entry in table["columns"].items()}
    return found | {"database": f"digest {hashlib.sha256(settings.database.encode()).hexdigest()[:12]}"}


def _in_full(entry: str | list[str] | dict[str, Any]) -> dict[str, Any]:
    """A column's rule however it was written, so that only what it means is compared."""
    given = entry if isinstance(entry, dict) else {"uses": entry}
    uses = [given["uses"]] if isinstance(given["uses"], str) else given["uses"]
    rule: dict[str, Any] = msgspec.to_builtins(ColumnEntry(uses))
    return rule | given | {"uses": uses}


def differences(served: dict[str, Any], file: dict[str, Any]) -> list[Change]:
    """What the file says otherwise."""
    return list(_between("", served, file))


def _between(path: str, served: dict[str, Any], file: dict[str, Any]) -> Iterator[Change]:
    for name in sorted({*served, *file}):
        where = f"{path}.{name}" if path else name
        if name not in served:
            yield Change("added", where, file=file[name])
        elif name not in file:
            yield Change("removed", where, served=served[name])
        elif isinstance(served[name], dict) and isinstance(file[name], dict):
            yield from _between(where, served[name], file[name])
        elif served[name] != file[name]:
            yield from _of_values(where, served[name], file[name])


def _of_values(where: str, served: Any, file: Any) -> Iterator[Change]:
    """Of lists, what was added and removed; callers are such a list."""
    if not isinstance(served, list) or not isinstance(file, list) or where.endswith(("bounds", "categories")):
        yield Change("changed", where, served, file)
        return
    for value in (each for each in file if each not in served):
        yield Change("added", where, file=value)
    for value in (each for each in served if each not in file):
        yield Change("removed", where, served=value)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        if isinstance(columns := value.get("columns"), dict):
            return f"with columns {', '.join(columns)}"
        return f"{', '.join(value['uses'])} at level {value['level']}" if "uses" in value else f"{len(value)} settings"
    return "nothing" if value is None else repr(value)
