"""Which cells a table hides from its network in pretraining (TabNet's RandomObfuscator).

A mask is computed from the seed, the table and the number of the batch, so no mask is sent. A party that missed some
batches still draws the right mask, the shards of a table draw parts of one mask, and the coordinator draws the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.specs import Hiding


def draw_mask(hiding: Hiding, alias: str, rows: int, numbers: int, categories: Sequence[int]) -> NDArray[np.float32]:
    """(rows, encoded columns): 1 at cells that are hidden.

    The encoded columns of one categorical column are hidden together: one of them is known from the others, and their
    order may differ between runs.
    """
    columns = numbers + len(categories)
    bits = np.random.PCG64(np.random.SeedSequence([hiding.seed, zlib.crc32(alias.encode()), hiding.batch]))
    bits.advance(hiding.offset * columns)
    drawn = np.random.Generator(bits).random((rows, columns)) < hiding.share
    return np.repeat(drawn, [1] * numbers + list(categories), axis=1).astype(np.float32)
