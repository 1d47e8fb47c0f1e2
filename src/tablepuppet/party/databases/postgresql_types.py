"""What a PostgreSQL type is called in DuckDB, and how its values are sent and restored.

Numbers without a fixed precision are doubles, as in DuckDB's own reader of PostgreSQL. Types that nothing can be
learned from keep a name of their own, so that they can be refused by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tablepuppet.party.databases.pushdown import Comparable, kind_of
from tablepuppet.sql.types import Family, family

_TYPES = {
    "bool": "BOOLEAN",
    "int2": "SMALLINT",
    "int4": "INTEGER",
    "int8": "BIGINT",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "text": "VARCHAR",
    "varchar": "VARCHAR",
    "bpchar": "VARCHAR",
    "name": "VARCHAR",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "uuid": "UUID",
    "bytea": "BLOB",
    "json": "JSON",
    "jsonb": "JSON",
}
_ORDERED = (Family.INTEGER, Family.DECIMAL, Family.DATE, Family.TIMESTAMP, Family.UUID)
_TIMES = ("date", "timestamp", "timestamptz")
# The driver lets infinite times overflow, so these stand for them on the way: later than any time that is meant.
_MINUS_INFINITY, _INFINITY = "294246-01-01", "294246-01-02"


@dataclass(frozen=True)
class PostgresType:
    """A column's type after domains are resolved: its name, its modifier, and whether it is an enum."""

    name: str
    modifier: int
    is_enum: bool

    @property
    def duckdb(self) -> str:
        """The DuckDB type in which the column is published.

        >>> PostgresType("numeric", 655366, False).duckdb, PostgresType("tsvector", -1, False).duckdb
        ('DECIMAL(10,2)', 'TSVECTOR')
        """
        if self.name == "numeric":
            return _decimal(self.modifier)
        if self.is_enum:
            return "VARCHAR"
        own = f"{self.name[1:]}[]" if self.name.startswith("_") else self.name  # _int4 is an array
        return _TYPES.get(self.name, own.upper())

    def sent(self, column: str) -> str:
        """PostgreSQL's expression for what is sent; text has its padding removed, numbers stay exact."""
        if self.name in _TIMES:
            cases = f"WHEN '-infinity' THEN '{_MINUS_INFINITY}' WHEN 'infinity' THEN '{_INFINITY}'"
            return f"CASE {column} {cases} ELSE {column} END"
        return f"{column}::text" if self.name == "numeric" or self.duckdb == "VARCHAR" else column

    def restored(self, column: str) -> str:
        """DuckDB's expression that undoes what ``sent`` did to infinite times."""
        if self.name not in _TIMES:
            return column
        cases = " ".join(
            f"WHEN CAST('{sent}' AS {self.duckdb}) THEN CAST('{meant}' AS {self.duckdb})"
            for sent, meant in ((_MINUS_INFINITY, "-infinity"), (_INFINITY, "infinity"))
        )
        return f"CASE {column} {cases} ELSE {column} END"

    @property
    def orders_alike(self) -> bool:
        """Whether values are in the same order in DuckDB: all but texts, and numbers that are rounded."""
        return family(self.duckdb) in _ORDERED

    def comparable(self, column: str) -> Comparable:
        """How the column compares in PostgreSQL."""
        kind = kind_of(self.duckdb)
        if self.name == "numeric" and kind == "double":  # exact there, rounded here
            kind = "other"
        digits = int(self.duckdb[len("DECIMAL(") :].partition(",")[0]) if kind == "decimal" else 0
        if self.duckdb != "VARCHAR":
            return Comparable(f"({column})", kind, digits)
        # Text by its bytes, whatever the locale. What is equal so is equal as the index has it too; an enum is no text.
        return Comparable(f'({column}::text COLLATE "C")', kind, also="" if self.is_enum else column)


def _decimal(modifier: int) -> str:
    if modifier < 0:
        return "DOUBLE"
    digits = ((modifier - 4) >> 16) & 0xFFFF
    scale = (((modifier - 4) & 0x7FF) ^ 1024) - 1024  # eleven bits with a sign
    digits, scale = max(digits - min(scale, 0), scale), max(scale, 0)
    return f"DECIMAL({digits},{scale})" if digits <= 38 else "DOUBLE"
