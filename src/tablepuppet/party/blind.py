"""Blinded values: join keys and categories leave a party only as keyed digests.

Input: a column of values. Output: its distinct values as 16-byte digests in digest order, and for each row the index of
its digest. Values are first written in one canonical form, so equal values of different databases get equal digests.
Parties know the key of the digest; the coordinator does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from tablepuppet.arrays import mark, take
from tablepuppet.party.canonical import canonical, check_families
from tablepuppet.party.words import as_words, from_words, is_word
from tablepuppet.privacy.cmac import cmac

Codes = NDArray[np.integer]


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
