"""What a SQLite column's declared type means, and how its values are sent so that every batch has one type.

SQLite takes any declaration and only prefers a storage class by it (https://sqlite.org/datatype3.html, section 3.1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tablepuppet.party.databases.pushdown import Comparable, kind_of

_RULES = (
    (r"BOOL.*", "BOOLEAN"),
    (r"DATE", "DATE"),
    (r"TIMESTAMP *(WITH TIME ZONE|TZ)", "TIMESTAMP WITH TIME ZONE"),
    (r"(DATETIME|TIMESTAMP).*", "TIMESTAMP"),
    (r"UUID", "UUID"),
    (r"TIME", "TIME"),
    (r"JSONB?", "JSON"),
    (r".*INT.*", "BIGINT"),
    (r".*(CHAR|CLOB|TEXT).*|ANY|", "VARCHAR"),
    (r".*BLOB.*", "BLOB"),
)
_DECIMAL = re.compile(r"(?:DECIMAL|NUMERIC) *\( *(\d+) *(?:, *(\d+) *)?\)")


@dataclass(frozen=True)
class Storage:
    """One of SQLite's storage classes: how a column is sent in it, and recognised."""

    sent: str  # SQL over {column}
    example: str  # a first value from which the driver learns the type
    arrow: Any
    classes: tuple[str, ...]  # the classes of values that are sent unharmed


_INTEGER = Storage("{column}", "0", pa.int64(), ("integer",))
_REAL = Storage(
    "CASE typeof({column}) WHEN 'integer' THEN CAST({column} AS REAL) ELSE {column} END",
    "0.0",
    pa.float64(),
    ("integer", "real"),
)
# As text, because SQLite itself has no decimals, dates or times: DuckDB reads them from the text.
_TEXT = Storage(
    "CASE typeof({column}) WHEN 'blob' THEN {column} ELSE CAST({column} AS TEXT) END",
    "''",
    pa.string(),
    ("integer", "real", "text"),
)


def duckdb_type(declared: str) -> str:
    """The DuckDB type of a declared type.

    >>> [duckdb_type(declared) for declared in ("int unsigned", "NUMERIC(8,2)", "", "NUMERIC", "varchar(3)")]
    ['BIGINT', 'DECIMAL(8,2)', 'VARCHAR', 'DOUBLE', 'VARCHAR']
    """
    name = declared.strip().upper()
    if decimal := _DECIMAL.fullmatch(name):
        digits, scale = int(decimal[1]), int(decimal[2] or 0)
        return f"DECIMAL({digits},{scale})" if scale <= digits <= 38 else "DOUBLE"
    return next((type_name for pattern, type_name in _RULES if re.fullmatch(pattern, name)), "DOUBLE")


def type_of_values(classes: set[str]) -> str:
    """The DuckDB type for values of these storage classes.

    >>> type_of_values({"integer", "null"}), type_of_values({"integer", "real"}), type_of_values({"text", "real"})
    ('BIGINT', 'DOUBLE', 'VARCHAR')
    """
    some = classes - {"null"}
    if not some or some - {"integer", "real"}:
        return "VARCHAR"
    return "BIGINT" if some == {"integer"} else "DOUBLE"


@dataclass(frozen=True)
class SQLiteType:
    """A column's type, as a DuckDB type."""

    duckdb: str

    @property
    def storage(self) -> Storage:
        """The storage class in which values are sent."""
        return {"BIGINT": _INTEGER, "DOUBLE": _REAL}.get(self.duckdb, _TEXT)

    def sent(self, column: str) -> str:
        """SQLite's expression for what is sent."""
        return self.storage.sent.format(column=column)

    def restored(self, column: str) -> str:
        """The same: DuckDB casts it."""
        return column

    @property
    def orders_alike(self) -> bool:
        """Not known: a value may be of any class. SQLite itself numbers rows."""
        return False

    def comparable(self, column: str) -> Comparable | None:
        """How the column compares in SQLite; decimals are sent as text, and SQLite would compare them as text."""
        if self.duckdb.startswith("DECIMAL"):
            return None
        kind = kind_of(self.duckdb)  # dates are texts there, in any form
        return Comparable(f"({self.sent(column)}) COLLATE BINARY", "other" if kind == "date" else kind, digits=99)
