"""A party's policy: at which level each column may be used.

A level is a named set of releases. Databases opened in the analyst's own process are `public` unless the
federation file says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from tablepuppet.errors import ConfigError


class Level(IntEnum):
    """How much of a column may be told; a higher level is stricter."""

    PUBLIC = 0  # anything an op releases, extremes included
    AGGREGATE = 1  # sums over many rows; no single value such as a minimum
    PRIVATE = 2


@dataclass(frozen=True)
class Policy:
    """Levels by ``table.column`` (or ``table`` for all its columns), in lower case."""

    levels: Mapping[str, Level] = field(default_factory=dict)
    default: Level = Level.PUBLIC

    @classmethod
    def from_names(cls, levels: Mapping[str, str], party: str) -> Policy:
        """The policy that a federation file spells as names of levels."""
        for where, name in levels.items():
            if name.upper() not in Level.__members__:
                known = ", ".join(level.name.lower() for level in Level)
                raise ConfigError(f"party {party!r}, level of {where!r}: {name!r} is none of {known}")
            if Level[name.upper()] is Level.PRIVATE:
                raise ConfigError(
                    f"party {party!r}, level of {where!r}: private is not supported yet; leave it out of a view"
                )
        return cls({where.lower(): Level[name.upper()] for where, name in levels.items()})

    def level(self, table: str, columns: Iterable[str]) -> Level:
        """The strictest level of the columns that an expression reads."""
        whole = self.levels.get(table.lower(), self.default)
        return max((self.levels.get(f"{table}.{column}".lower(), whole) for column in columns), default=whole)
