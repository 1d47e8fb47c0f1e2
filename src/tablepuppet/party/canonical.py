"""Values as text, in one form for each family of types: equal values of different databases are equal texts.

Arrow writes whole numbers, texts and truth values; the other families have forms of their own and go through SQL.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tablepuppet.errors import PartyError
from tablepuppet.sql.quiet_duckdb import scratch

_TAGS = {"number": "n", "float": "f", "text": "t", "date": "d", "timestamp": "s", "boolean": "b", "uuid": "u"}
_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary)
_TYPES = {
    "number": (pa.types.is_integer, pa.types.is_decimal),
    "float": (pa.types.is_floating,),
    "text": _TEXT,
    "date": (pa.types.is_date,),
    "timestamp": (pa.types.is_timestamp,),
    "boolean": (pa.types.is_boolean,),
    "uuid": _TEXT,
}
"""The types whose values are written in each family's form."""
_WRITTEN_BY_ARROW = (pa.types.is_integer, pa.types.is_boolean, *_TEXT)


def check_families(columns: Sequence[pa.ChunkedArray], families: Sequence[str]) -> None:
    """PartyError unless values of the columns' types can be written as those of the families, whichever they are."""
    if not len(columns) == len(families) > 0:
        raise PartyError("a key has one family for each of its columns, and one column at least")
    for column, family in zip(columns, families, strict=True):
        if family not in _TYPES or not any(is_kind(column.type) for is_kind in _TYPES[family]):
            raise PartyError(f"a column of type {column.type} cannot be blinded as {family[:20]!r}")


def canonical(columns: Sequence[pa.Array], families: Sequence[str]) -> pa.Array:
    """Each row as text: per column its family, length and value, so that ("a", "bc") is not ("ab", "c").

    >>> canonical([pa.array([7, -1]), pa.array(["a", "é"])], ["number", "text"]).to_pylist()
    ['n1:7t1:a', 'n2:-1t2:é']
    """
    parts: list[pa.Array] = []
    for column, family in zip(columns, families, strict=True):
        text = _text(column, family)
        parts += [_prefixes(text, _TAGS[family]), text]
    return pc.binary_join_element_wise(*parts, pa.scalar("", pa.large_string()))


def _prefixes(text: pa.Array, tag: str) -> pa.Array:
    """The tag of a family and the length of each text in bytes; most texts have one of a few lengths."""
    lengths = pc.binary_length(text).dictionary_encode()
    written = [f"{tag}{length}:" for length in lengths.dictionary.to_pylist()]
    return pa.array(written, pa.large_string()).take(lengths.indices)


def _text(column: pa.Array, family: str) -> pa.Array:
    """Each value in the one form of its family."""
    if any(is_kind(column.type) for is_kind in _WRITTEN_BY_ARROW):
        return column.cast(pa.large_string())
    with scratch() as connection:
        connection.register("distinct_values", pa.table({"it": column}))
        written = connection.sql(f"SELECT {_sql('it', column.type, family)} AS it FROM distinct_values")
        return written.to_arrow_table()["it"].cast(pa.large_string()).combine_chunks()


def _sql(column: str, type_: pa.DataType, family: str) -> str:
    """SQL that writes a value in the one form of its family."""
    text = f"CAST({column} AS VARCHAR)"
    if family == "timestamp":
        return f"CASE WHEN isfinite({column}) THEN {_epoch_sql(column, type_)} ELSE {text} END"
    if family == "float":  # as the shortest text that means this very number
        return f"CAST(CAST({column} AS DOUBLE) AS VARCHAR)"
    if pa.types.is_decimal(type_) and type_.scale > 0:
        short = f"rtrim(rtrim({text}, '0'), '.')"  # DuckDB writes 0.50 as .50 where no digit can precede the point
        return (
            f"CASE WHEN {short} IN ('', '-') THEN '0' WHEN {short} LIKE '.%' THEN '0' || {short} "
            f"WHEN {short} LIKE '-.%' THEN '-0' || {short}[2:] ELSE {short} END"
        )
    return text


def _epoch_sql(column: str, type_: pa.DataType) -> str:
    """Microseconds since 1970 in UTC, or nanoseconds if the type has them."""
    if not (pa.types.is_timestamp(type_) and type_.unit == "ns"):
        return f"CAST(epoch_us(CAST({column} AS TIMESTAMP)) AS VARCHAR)"
    nanos = f"epoch_ns({column})"
    whole = f"CAST({nanos} // 1000 AS VARCHAR)"
    return f"CASE WHEN {nanos} % 1000 = 0 THEN {whole} ELSE CAST({nanos} AS VARCHAR) || 'ns' END"
