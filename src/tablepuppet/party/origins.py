"""Where what a party keeps comes from: the one place that knows which cells an op has seen.

An op sees cells of its own table, and whatever earlier ops have kept: in its session, in models, in parts of saved
models. All that is kept carries its origins: the tables and columns that it was computed from, each with whether that
was by noisy values only. An op has the origins of everything that it has got hold of, and all that it keeps, or could
change, gets them at once: other sessions may use it meanwhile. Ops declare nothing of this and cannot forget it. Three
rules are enforced when something is reached, before its value is seen:

- Cells of a table that demands noise are seen only inside `LocalTable.mechanism`, which adds noise.
- Every table that something kept comes from must allow the op, by its policy as it is now, and is named in the audit
  log.
- What comes from a table that demands noise, but not by noisy values only, is reached by no op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, Protocol

import msgspec

from tablepuppet.sql.plan import Scan


class Origin(msgspec.Struct, frozen=True):
    """The columns of a table that something was computed from."""

    scan: Scan
    noisy: bool  # whether from noisy values of them only


Origins = tuple[Origin, ...]
"""Each scan once."""


def joined(known: Origins, more: Iterable[Origin]) -> Origins:
    """The origins of what was computed from two things; ``known`` itself if there are no more."""
    found = known
    for origin in more:
        for place, each in enumerate(found):
            if each is origin:
                break
            if each.scan is origin.scan or each.scan == origin.scan:
                if each.noisy and not origin.noisy:
                    found = (*found[:place], origin, *found[place + 1 :])
                break
        else:
            found = (*found, origin)
    return found


def are_noisy(origins: Origins) -> bool:
    """Whether something was computed from noisy values only, or from no table at all."""
    return all(origin.noisy for origin in origins)


Allow = Callable[[Origin], None]
"""Raises PrivacyError unless what comes from there may be used now."""


class Reached:
    """What one op has got hold of so far; ``aside``: in a part of it from which nothing is kept or changed."""

    def __init__(self, own: Scan | None = None, allow: Allow = lambda origin: None, *, aside: bool = False):
        self.origins: Origins = ()
        self.keeps = not aside  # whether the op may keep something now
        self._own, self._allow, self._is_aside = own, allow, aside
        self._touched: list[tuple[Kept, str]] = []

    def cells(self, *, noisy: bool) -> None:
        """Cells of the op's own table: the guard has allowed that."""
        if self._own is None:
            return
        for each in self.origins:
            if each.scan is self._own and (noisy or not each.noisy):
                return  # they are known to be seen: this runs for every column
        self._come_from([Origin(self._own, noisy)])

    def kept(self, origins: Origins) -> None:
        """Something that was kept; PrivacyError unless all that it comes from allows the op."""
        for origin in origins:
            if origin.scan is not self._own and origin.scan != self._own and origin not in self.origins:
                self._allow(origin)
        if origins is not self.origins:
            self._come_from(origins)

    def _come_from(self, origins: Iterable[Origin]) -> None:
        """All that the op has kept or may change comes from these too."""
        found = joined(self.origins, origins)
        if found is not self.origins:
            self.origins = found
            for kept, name in self._touched:
                kept.learn(name, found)

    def aside(self) -> Reached:
        """For a part of the op from which nothing is kept."""
        return Reached(self._own, self._allow, aside=True)

    def touch(self, kept: Kept, name: str) -> None:
        """Something is kept, or was and may be changed: it has the op's origins, and those to come."""
        if not self._is_aside:
            self._touched.append((kept, name))
            kept.learn(name, self.origins)


class Held(Protocol):
    """Where objects are held by name, with the origins of each."""

    origins: dict[str, Origins]

    def __getitem__(self, name: str) -> Any: ...
    def __setitem__(self, name: str, value: Any) -> None: ...
    def __delitem__(self, name: str) -> None: ...
    def __contains__(self, name: object) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...


class Kept(MutableMapping[str, Any]):
    """Objects that ops keep under names, each with its origins. ``reached`` says what the op that runs has reached."""

    def __init__(self, held: Held, reached: Callable[[], Reached]):
        self.held, self._origins, self._reached = held, held.origins, reached

    def learn(self, name: str, more: Origins) -> None:
        """An object, if it is still there, comes from all of these too."""
        known = self._origins.get(name, ())
        if more is not known and name in self.held:
            self._origins[name] = joined(known, more)

    def __getitem__(self, name: str) -> Any:
        found, reached = self.held[name], self._reached()
        if origins := self._origins.get(name):
            reached.kept(origins)
        reached.touch(self, name)
        return found

    def __setitem__(self, name: str, value: Any) -> None:
        assert self._reached().keeps, "what is computed here goes into the reply, or gets noise first"
        self.held[name] = value
        self._origins.pop(name, None)
        self._reached().touch(self, name)

    def __delitem__(self, name: str) -> None:
        del self.held[name]
        self._origins.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self.held

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)
