"""What a MySQL or MariaDB type is called in DuckDB, and how its values are sent, restored and compared.

Everything is sent as text, which DuckDB casts to the declared type. The zero date, MySQL's way to write "no date", is
missing here. Types that nothing can be learned from keep a name of their own, so that they can be refused by it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tablepuppet.party.databases.pushdown import Comparable, Kind

_INTEGERS = {
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "mediumint": "INTEGER",
    "int": "INTEGER",
    "bigint": "BIGINT",
}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_TIMES = {"date": "DATE", "datetime": "TIMESTAMP", "timestamp": "TIMESTAMP WITH TIME ZONE"}
_TYPES = {
    **dict.fromkeys(_TEXTS, "VARCHAR"),
    **dict.fromkeys(_BYTES, "BLOB"),
    **_TIMES,
    "float": "FLOAT",
    "double": "DOUBLE",
    "bit": "UBIGINT",
    "year": "SMALLINT",
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


@dataclass(frozen=True)
class MySQLType:
    """A column's type: its name, and its whole declaration."""

    name: str
    declared: str

    @property
    def duckdb(self) -> str:
        """The DuckDB type in which the column is published; BOOL is kept by MySQL as tinyint(1).

        >>> [MySQLType(d.partition("(")[0], d).duckdb for d in ("tinyint(1)", "tinyint(4)", "int(10) unsigned")]
        ['BOOLEAN', 'TINYINT', 'UINTEGER']
        >>> [MySQLType(d.partition("(")[0], d).duckdb for d in ("decimal(8,2)", "decimal(65,30)", "geometry")]
        ['DECIMAL(8,2)', 'DOUBLE', 'GEOMETRY']
        """
        if self.declared in ("tinyint(1)", "bit(1)"):
            return "BOOLEAN"
        if self.name in _INTEGERS:
            return f"{'U' if 'unsigned' in self.declared else ''}{_INTEGERS[self.name]}"
        if decimal := _DECIMAL.match(self.declared):
            digits, scale = int(decimal[1]), int(decimal[2])
            return f"DECIMAL({digits},{scale})" if digits <= 38 else "DOUBLE"
        return _TYPES.get(self.name, self.name.upper())

    def sent(self, column: str) -> str:
        """MySQL's expression for what is sent: as text, a FLOAT alone would have six digits and a BIT be bytes."""
        match self.name:
            case "float" | "double":
                return f"{column} + 0e0"
            case "bit":
                return f"{column} + 0"
            case "uuid":
                return f"CAST({column} AS CHAR)"
        return column

    def restored(self, column: str) -> str:
        """DuckDB's expression that takes the zero date for a missing value."""
        if self.name not in _TIMES:
            return column
        return f"CASE WHEN starts_with({column}, '0000-00-00') THEN NULL ELSE {column} END"

    @property
    def orders_alike(self) -> bool:
        """Whether values are in the same order in DuckDB: numbers that are not rounded, and times."""
        return self._kind() in ("integer", "decimal") or self.name in _TIMES

    def comparable(self, column: str) -> Comparable | None:
        """How the column compares in MySQL; None for moments, where IS NULL finds zero dates or does not.

        A zero date, NULL here, is less than every day there. Text compares as bytes: collations ignore case and spaces
        at the end.
        """
        if self.name == "date":
            return Comparable(column, "date", nulls=False)
        if self.name in _TIMES:
            return None
        if self.duckdb == "VARCHAR":
            return Comparable(f"CAST(CONVERT({column} USING utf8mb4) AS BINARY)", "text", also=column)
        decimal = _DECIMAL.match(self.declared)
        return Comparable(column, self._kind(), int(decimal[1]) if decimal else 0)

    def _kind(self) -> Kind:
        if self.name in _INTEGERS and self.duckdb != "BOOLEAN":
            return "integer"
        if self.duckdb.startswith("DECIMAL"):
            return "decimal"
        # Neither FLOAT nor YEAR, which takes 20 for 2020, nor a decimal that is rounded here.
        return "double" if self.name == "double" else "other"
