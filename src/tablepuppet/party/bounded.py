"""What a caller makes a party hold in memory, up to a limit of the operator's."""

from __future__ import annotations

from typing import Any

from tablepuppet.errors import PartyError


class Bounded(dict[str, Any]):
    """A dict that refuses a new name once it has ``most``; ``what`` says in words what it holds, and where.

    >>> held = Bounded("relations", "views", 1)
    >>> held["a"] = 1
    >>> held["a"] = 2
    >>> held["b"] = 1
    Traceback (most recent call last):
        ...
    tablepuppet.errors.PartyError: relations: there are 1, as many as the party allows (limits.views); del what you ...
    """

    def __init__(self, what: str = "", limit: str = "", most: int | None = None):
        super().__init__()
        self._what, self._limit, self._most = what, limit, most

    def __setitem__(self, name: str, value: Any) -> None:
        if self._most is not None and name not in self and len(self) >= self._most:
            raise PartyError(
                f"{self._what}: there are {self._most}, as many as the party allows (limits.{self._limit}); del what "
                "you no longer use, go on with a new relation of fed.sql, or ask the party's operator"
            )
        super().__setitem__(name, value)
