"""`Release`: the named kinds of value that may leave a party."""

from __future__ import annotations

from enum import Flag, auto
from functools import cached_property


class Release(Flag):
    """What an op releases. A policy allows or forbids each kind."""

    SCHEMA = auto()  # table and column names, types, row counts
    COUNTS = auto()  # how many rows, and which row ids
    KEY_DIGESTS = auto()  # blinded join keys and categories
    LABELS = auto()
    PREDICTIONS = auto()
    EMBEDDINGS = auto()
    GRADIENT_SUMS = auto()
    GRAM = auto()
    PARAMETERS = auto()
    STATISTICS = auto()  # sums, means, extremes of a column
    HISTOGRAMS = auto()  # how often each (blinded) category occurs
    METRICS = auto()
    IDS = auto()  # values of a column, to know a row by, for the rows that take part
    CATEGORIES = auto()  # the text of categories
    COLUMNS = auto()  # a column, one number per row that takes part, for statistics across tables
    VALUES = auto()  # encoded cells of every feature, for the rows that take part: the table itself

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the kinds."""
        return tuple(member.name or "" for member in self)

    @cached_property
    def label(self) -> str:
        """The name in traffic figures, logs and documents."""
        return "|".join(self.names)


BY_ROW = Release.PREDICTIONS | Release.EMBEDDINGS | Release.VALUES
"""Numbers of one row each; all other kinds are of several rows, or of what is kept of them."""
