"""Numbers of 16 bits, for embeddings and gradients by them on the wire: half the bytes of single precision.

float16 has 11 significant bits and ends at 65,504; bfloat16 has 8, and the range of single precision. NumPy has no
bfloat16: it travels as uint16, the upper half of a float32.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Floats
from tablepuppet.errors import PartyError

Bits = NDArray[np.uint16]
Narrow = Literal["float16", "bfloat16"]
LARGEST = {"float16": 65_504.0, "bfloat16": 3.3895e38}


def narrowed(values: Floats, wire: str) -> NDArray[Any]:
    """Numbers as they travel, rounded to the nearest; those beyond the range become its ends.

    >>> widened(narrowed(np.array([1.0, -1.01, 1e300]), "bfloat16")).tolist()
    [1.0, -1.0078125, 3.3895313892515355e+38]
    """
    if wire in LARGEST:
        values = np.clip(values, -LARGEST[wire], LARGEST[wire])
    if wire != "bfloat16":
        return values if values.itemsize <= np.dtype(wire).itemsize else values.astype(wire)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)  # ties to even


def widened(values: NDArray[Any]) -> Floats:
    """Numbers that have travelled."""
    if values.dtype.kind == "f":
        return values
    if values.dtype != np.uint16:
        raise PartyError(f"numbers of type {values.dtype} are neither floats nor the bits of bfloat16")
    if ((values & 0x7F80) == 0x7F80).any():
        raise PartyError("numbers of type bfloat16 must be finite")
    return (values.astype(np.uint32) << 16).view(np.float32)
