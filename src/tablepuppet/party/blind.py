"""Blinded values: join keys and categories leave a party only as keyed digests.

Input: a column of values. Output: its distinct values as 16-byte digests in digest order, and for each row the index of
its digest. Values are first written in one canonical form for each family of types, so equal values of different
databases get equal digests: Arrow writes whole numbers, texts and truth values; the other families have forms of their
own and go through SQL. Distinct values are found among the whole numbers that dates and decimals are in memory.
Parties know the key of the digest; the coordinator does not.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from sqlglot import exp

from tablepuppet.arrays import Codes, mark, take
from tablepuppet.errors import ConfigError, PartyError
from tablepuppet.privacy.cmac import cmac
from tablepuppet.sql.expression import checked, render
from tablepuppet.sql.quiet_duckdb import scratch
from tablepuppet.sql.types import Family, holds
from tablepuppet.sql.types import family as family_of
from tablepuppet.store.files import read_private_file, write_new_file

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
MOST_DIGITS = 18  # of a decimal that is one word


@dataclass(frozen=True)
class Blinded:
    """Distinct digests in digest order, and a code per row; the code ``len(digests)`` is NULL."""

    digests: NDArray[np.uint8]  # (distinct, 16)
    codes: Codes  # (rows,), in the narrowest type


def derive_key(secret: bytes, purpose: str, *fields: str) -> bytes:
    """A key for one purpose and the fields that name its use; other fields have an unrelated key.

    Each field is preceded by its length, so that ("a", "bc") and ("ab", "c") differ whatever characters they hold.
    """
    parts = [field.encode() for field in ("tablepuppet", purpose, *fields)]
    info = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)


@dataclass(frozen=True)
class Factor:
    """A column as places of its distinct values: row r holds ``distinct[code_of[index[r] - low]]``."""

    index: Codes
    low: int
    code_of: NDArray[np.int32]  # len(distinct) is NULL
    distinct: pa.Array

    @property
    def codes(self) -> NDArray[np.int32]:
        """The code of every row."""
        return take(self.code_of, self.index, self.low)


def blind(columns: Sequence[pa.ChunkedArray], families: Sequence[str], key: bytes) -> Blinded:
    """Blind a key of one or more columns; a row with a NULL in any of them has no digest.

    PartyError if a family is not that of its column: writing values of another in its form could fail on some of them.
    """
    check_families(columns, families)
    factors = [factorise(column) for column in columns]
    whole, chosen = (factors[0], [np.arange(len(factors[0].distinct))]) if len(factors) == 1 else _combine(factors)
    distinct = [factor.distinct.take(pa.array(rows)) for factor, rows in zip(factors, chosen, strict=True)]
    digests = cmac(key, canonical(distinct, families))
    order = digest_order(digests)
    place = np.empty(len(order) + 1, np.min_scalar_type(len(order)))
    place[order] = np.arange(len(order))
    place[-1] = len(order)  # NULL stays the last code
    return Blinded(np.take(digests, order, axis=0), take(place[whole.code_of], whole.index, whole.low))


def digest_order(digests: NDArray[np.uint8]) -> NDArray[np.intp]:
    """The places of digests in their order; the first half of each decides, but for a miracle."""
    return np.argsort(digests[:, :8].copy().view(">u8").ravel().astype(np.uint64))


def factorise(column: pa.ChunkedArray) -> Factor:
    """A column's distinct values, and which of them each row holds."""
    if is_word(column.type):
        found = factorise(as_words(column))  # much quicker to compare
        return replace(found, distinct=from_words(found.distinct, column.type))
    if pa.types.is_integer(column.type) and len(column):
        dense = _factorise_dense(column)
        if dense is not None:
            return dense
    if pa.types.is_floating(column.type):
        column = pc.add(column, 0.0)  # one zero: -0.0 equals it
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    encoded = pa.concat_arrays(column.chunks).dictionary_encode() if column.num_chunks else _nothing(column.type)
    size = len(encoded.dictionary)
    index = encoded.indices.fill_null(size) if encoded.null_count else encoded.indices
    return Factor(index.to_numpy(zero_copy_only=False), 0, np.arange(size + 1, dtype=np.int32), encoded.dictionary)


def _nothing(type_: pa.DataType) -> pa.DictionaryArray:
    return pa.array([], type_).dictionary_encode()


def _factorise_dense(column: pa.ChunkedArray) -> Factor | None:
    """Integers from a narrow range need no hash table: a table look-up is ten times faster."""
    extremes = pc.min_max(column).as_py()
    low, high = extremes["min"], extremes["max"]
    if low is None or low < -(2**62) or high >= 2**62 or high - low > 4 * len(column) + 1024:
        return None
    low -= 1  # the place of NULL, below all values
    index = (column.cast(pa.int64()).fill_null(low) if column.null_count else column).to_numpy()
    distinct = np.flatnonzero(mark(high - low + 1, index, low)[1:]) + 1
    code_of = np.full(high - low + 1, len(distinct), np.int32)
    code_of[distinct] = np.arange(len(distinct), dtype=np.int32)
    return Factor(index, low, code_of, pa.array(distinct + low, pa.int64()))


def _combine(factors: Sequence[Factor]) -> tuple[Factor, list[NDArray[np.intp]]]:
    """The distinct combinations of several columns, and for each the distinct value of every column."""
    codes, chosen = factors[0].codes, [np.arange(len(factors[0].distinct))]
    whole = factors[0]
    for factor in factors[1:]:
        size, other = max(1, len(factor.distinct)), factor.codes
        pairs = codes.astype(np.int64) * size + other
        nulls = (codes == len(chosen[0])) | (other == len(factor.distinct))
        whole = factorise(pa.chunked_array([pa.array(pairs, mask=nulls)]))
        first, second = np.divmod(whole.distinct.to_numpy(zero_copy_only=False), size)
        chosen = [*(rows[first] for rows in chosen), second]
        codes = whole.codes
    return whole, chosen


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


def is_word(type_: pa.DataType) -> bool:
    """Whether values of a type, which is no integer, are whole numbers in memory."""
    return bool(pa.types.is_date32(type_) or (pa.types.is_decimal128(type_) and type_.precision <= MOST_DIGITS))


def as_words(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The numbers that a column has in memory: days, or a decimal without its point.

    >>> from decimal import Decimal
    >>> as_words(pa.chunked_array([pa.array([Decimal("1.50"), None, Decimal("-0.01")])])).to_pylist()
    [150, None, -1]
    """
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32()).cast(pa.int64())
    return pa.chunked_array([_words(chunk) for chunk in column.chunks], pa.int64())


def _words(chunk: pa.Array) -> pa.Array:
    pairs = np.frombuffer(chunk.buffers()[1], "<i8", 2 * len(chunk), 16 * chunk.offset) if len(chunk) else np.zeros(0)
    words = pairs[::2].astype(np.int64)  # the lower half: the upper one is its sign
    return pa.array(words, mask=chunk.is_null().to_numpy(zero_copy_only=False) if chunk.null_count else None)


def from_words(words: pa.Array, type_: pa.DataType) -> pa.Array:
    """Words that are not NULL as values of a type again.

    >>> from_words(pa.array([150, -1]), pa.decimal128(3, 2)).to_pylist()
    [Decimal('1.50'), Decimal('-0.01')]
    """
    if pa.types.is_date32(type_):
        return words.cast(pa.int32()).cast(type_)
    low = words.to_numpy(zero_copy_only=False).astype("<i8")
    pairs = np.column_stack([low, low >> 63])
    return pa.Array.from_buffers(type_, len(low), [None, pa.py_buffer(np.ascontiguousarray(pairs).tobytes())])


# The blinding key: 32 random bytes in a file that all parties of a federation have and the coordinator does not. One
# party creates the file and gives it to the others over a channel that they trust, as one would a password.

FORMAT = "tablepuppet-blinding-key-1"
SIZE = 32


def new_blinding_key(path: Path) -> None:
    """Write a new key to a file that must not exist yet."""
    text = base64.b64encode(secrets.token_bytes(SIZE)).decode()
    write_new_file(path, f"{FORMAT} {text} {_check(text)}\n".encode(), "blinding key")


def read_blinding_key(path: Path) -> bytes:
    """The key in a file that only its owner may read."""
    content = read_private_file(path, "blinding key")
    try:
        name, text, *check = content.decode("ascii").split()
        key = base64.b64decode(text, validate=True) if check in ([], [_check(text)]) else b""
    except (ValueError, binascii.Error):
        name, key = "", b""  # the cause is not in the error: it may quote the key
    if name != FORMAT or len(key) != SIZE:
        raise ConfigError(
            f"blinding key {str(path)!r} is not one line of {FORMAT!r} and a key of {SIZE} bytes in base64: "
            "copy it again from the party that made it, or make one for all with 'tablepuppet keys new'"
        )
    return key


def _check(text: str) -> str:
    """A few letters that show whether a key was copied well; earlier versions wrote none."""
    return hashlib.sha256(f"{FORMAT} {text}".encode()).hexdigest()[:8]


# Which expressions may be join keys: those that cannot turn one key into another. Digests of ``id`` and of ``id + 1``
# under one key would link the ids of a table to a chain, and one known id would reveal all; a ``CASE`` would be a
# filter that is not counted. So a key is a plain column, or a cast that keeps different values different and never
# fails: to a wider type of its kind, or from whole numbers, dates, booleans and UUIDs to text. The operator names any
# other expression that is needed.

_ONE_TEXT_EACH = frozenset({Family.INTEGER, Family.BOOLEAN, Family.DATE, Family.UUID, Family.TEXT})
"""Families whose different values have different texts, whatever the type's size."""


def named_key(text: str) -> str:
    """An expression in the one spelling in which a policy's keys and those of scans are compared.

    >>> named_key("LOWER(Email)") == named_key('lower("email")'), named_key("lower('A')") == named_key("lower('a')")
    (True, False)
    """

    def plain(node: exp.Expr) -> exp.Expr:
        return exp.to_identifier(node.name.lower(), quoted=True) if isinstance(node, exp.Identifier) else node

    return render(checked(text).unnest().transform(plain))


def keeps_keys_apart(text: str, columns: Mapping[str, str]) -> bool:
    """Whether an expression is a column, or casts of one that keep its values apart.

    >>> types = {"id": "INTEGER", "price": "DECIMAL(8,2)"}
    >>> [keeps_keys_apart(key, types) for key in ("id", "CAST(id AS BIGINT)", "id::VARCHAR", "(price)")]
    [True, True, True, True]
    >>> [keeps_keys_apart(key, types) for key in ("id + 1", "CAST(id AS TINYINT)", "price::BIGINT", "price::VARCHAR")]
    [False, False, False, False]
    """
    return _type_of(checked(text), columns) is not None


def _type_of(node: exp.Expr, columns: Mapping[str, str]) -> str | None:
    """The type of a column, or of casts of one that keep its values apart; None for anything else."""
    inner = node.unnest()
    if isinstance(inner, exp.Column):
        return columns.get(inner.name)
    if not isinstance(inner, exp.Cast) or any(inner.args.get(name) for name in ("format", "action", "default")):
        return None
    start, end = _type_of(inner.this, columns), _type_name(inner.to)
    if start is None or end is None:
        return None
    return end if holds(end, start) or (end == "VARCHAR" and family_of(start) in _ONE_TEXT_EACH) else None


def _type_name(type_: exp.DataType) -> str | None:
    """The type as DuckDB spells it; None if it has no such type."""
    with scratch() as connection:
        try:
            return str(connection.sql(f"SELECT CAST(NULL AS {render(type_)})").types[0])
        except duckdb.Error:
            return None
