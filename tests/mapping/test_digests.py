"""Digests of several parties numbered alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.mapping.join import number_digests


@pytest.mark.parametrize("wrong", [np.zeros((3, 8), np.uint8), np.zeros(3, np.uint8), np.zeros((3, 16), np.int64)])
def test_only_digests_are_read(wrong: Any) -> None:
    """What is not rows of 16 bytes is refused: reading it as such would read beyond its end."""
    with pytest.raises(tp.PartyError, match="16 bytes"):
        number_digests([np.zeros((1, 16), np.uint8), wrong])
