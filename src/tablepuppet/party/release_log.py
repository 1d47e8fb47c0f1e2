"""The noisy releases of a session, stored before they are sent: a repeated request gets the same values.

Input: names of releases, and their noisy values. Output: the values stored under a name. The caller may know all of it;
nothing without noise is stored. A party in the analyst's own process is never restarted, and stores none.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class ReleaseLog(Protocol):
    """The releases of one session."""

    def get(self, name: str) -> NDArray[np.float64] | None:
        """What a release was; None if there was none of that name."""
        ...

    def put(self, name: str, values: NDArray[np.float64], size: int) -> None:
        """Write a release down as if it had ``size`` numbers, which is public; PartyError if that is impossible."""
        ...


class Unlogged:
    """Where nothing outlives the process."""

    def get(self, name: str) -> NDArray[np.float64] | None:
        """Nothing."""

    def put(self, name: str, values: NDArray[np.float64], size: int) -> None:
        """Nothing is kept."""
