"""A stream of noise that is the same in every run of the tests."""

from __future__ import annotations

from tablepuppet.privacy.noise import SecureStream


def fixed_stream(seed: int = 0) -> SecureStream:
    """A stream under a known key."""
    stream = SecureStream()
    stream._start(seed.to_bytes(32, "little"))
    return stream
