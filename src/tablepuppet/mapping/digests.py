"""One numbering for the digests of several parties: equal digests get equal numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.errors import PartyError

Digests = NDArray[np.uint8]  # (distinct, 16)


def number_digests(lists: Sequence[Digests]) -> tuple[list[NDArray[np.int32]], int]:
    """(a number per digest of each list, how many numbers there are); numbers follow first appearance.

    >>> a, b = np.zeros((1, 16), np.uint8), np.ones((1, 16), np.uint8)
    >>> [numbers.tolist() for numbers in number_digests([np.concatenate([a, b]), b])[0]]
    [[0, 1], [1]]
    """
    items = pa.concat_arrays([_as_binary(digests) for digests in lists]).dictionary_encode()
    ends = np.cumsum([len(digests) for digests in lists])[:-1]
    return list(np.split(items.indices.to_numpy(), ends)), len(items.dictionary)


def _as_binary(digests: Digests) -> pa.Array:
    if digests.dtype != np.uint8 or digests.shape[1:] != (16,):  # Arrow would read beyond the end of shorter ones
        raise PartyError("digests must be rows of 16 bytes")
    buffer = pa.py_buffer(np.ascontiguousarray(digests))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(digests), [None, buffer])
