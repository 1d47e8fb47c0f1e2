"""Masks that vanish in a sum: the sum is exact, and of one peer nothing is seen."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

import tablepuppet as tp
from tablepuppet.arrays import Words
from tablepuppet.privacy.secure_sum import ROOM, Masks, Purpose, add_words, pair_secret, scale_bits, to_words

PEERS = ("east", "north", "south", "west")
ROSTER = b"r" * 32


def masks(*names: str) -> dict[str, Masks]:
    """The masks of peers that have exchanged keys."""
    keys = {name: X25519PrivateKey.generate() for name in names}
    public = {name: key.public_key().public_bytes_raw() for name, key in keys.items()}
    return {
        name: Masks(name, {other: pair_secret(key, public[other], ROSTER) for other in names if other != name})
        for name, key in keys.items()
    }


def purpose(number: int = 1, shape: tuple[int, ...] = (4,), **changed: Any) -> Purpose:
    return replace(Purpose(number, "op", "sums", 3, shape), **changed)


@given(
    st.lists(st.lists(st.integers(-(2**59), 2**59), min_size=4, max_size=4), min_size=3, max_size=4),
)
def test_the_sum_is_that_of_the_rounded_numbers(parts: list[list[int]]) -> None:
    """Whatever the numbers, adding the masked words modulo 2^64 gives the sum of the integers, exactly."""
    peers = masks(*PEERS[: len(parts)])
    words = [np.array(part, np.int64).view(np.uint64) for part in parts]
    told = [each.masked(part, purpose()) for each, part in zip(peers.values(), words, strict=True)]
    total: Words = np.sum(told, axis=0, dtype=np.uint64)
    assert total.view(np.int64).tolist() == [sum(column) for column in zip(*parts, strict=True)]


@given(st.floats(-1e6, 1e6), st.integers(3, 50))
def test_rounding_is_to_the_stated_scale(value: float, peers: int) -> None:
    """A number is off by no more than half of 2^-bits after its way there and back."""
    bits = scale_bits(1e6, peers)
    assert abs(float(add_words([to_words(value, bits, peers)], bits)) - value) <= 2.0 ** -(bits + 1)


@given(st.floats(1e-200, 1e200), st.integers(3, 1000))
def test_a_bound_leaves_room_and_digits(bound: float, peers: int) -> None:
    """At the scale of a bound, numbers a thousand times as large still fit, and the bound has 49 bits or more."""
    bits = scale_bits(bound, peers)
    to_words(np.array([1000 * bound, -1000 * bound]), bits, peers)
    assert np.ldexp(bound * peers, bits) >= 2**49


@pytest.mark.parametrize("value", [2.0**ROOM / 3, -(2.0**ROOM) / 3, 1e300, np.inf, np.nan])
def test_what_does_not_fit_is_refused(value: float) -> None:
    """The sum over all peers could leave the 64 bits, or the number is none: PrivacyError, without the number."""
    with pytest.raises(tp.PrivacyError, match="too large for its scale") as caught:
        to_words(np.array([0.0, value]), 0, 3)
    assert str(value) not in str(caught.value)
    to_words(2.0**ROOM / 4, 0, 3)


def is_uniform(words: Words) -> bool:
    """Whether bytes at every place of the words are as likely as any other (all eight together at the level 1e-6)."""
    places = words.reshape(-1, 1).view(np.uint8)
    return all(chisquare(np.bincount(place, minlength=256)).pvalue > 1e-6 / 8 for place in places.T)


def view_of(values: NDArray[np.float64]) -> Words:
    """What the coordinator is told of one peer among three."""
    return masks(*PEERS[:3])["north"].masked(to_words(values, 20, 3), purpose(shape=values.shape))


@pytest.mark.parametrize("value", [0.0, 1.0, -1e-6])
def test_what_one_peer_tells_is_uniform(value: float) -> None:
    """Every byte of the masked words is uniform however small the number; without masks it is not."""
    values = np.full(100_000, value)
    assert is_uniform(view_of(values))
    assert not is_uniform(to_words(values, 20, 3))


def test_masks_of_many_runs_are_uniform() -> None:
    """One small number, masked anew in 2000 runs with fresh keys: each of the 64 bits is set about half of the time and
    goes with no other one, no word comes twice, and without masks all runs tell the same word.
    """
    runs = 2000
    words = np.concatenate([view_of(np.array([1e-3])) for _ in range(runs)])
    bits = np.unpackbits(words.reshape(-1, 1).view(np.uint8), axis=1).astype(np.float64)  # (runs, 64)
    assert len(np.unique(words)) == runs
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 6.5 * 0.5 / np.sqrt(runs)  # 64 bits: by chance once in 10^8
    together = np.corrcoef(bits.T) - np.eye(64)
    assert np.abs(together).max() < 7.0 / np.sqrt(runs)  # 2016 pairs
    assert len(np.unique(to_words(np.full(runs, 1e-3), 20, 3))) == 1


def test_two_inputs_look_alike() -> None:
    """The difference of the views of two inputs is uniform, too: nothing of the inputs is in it."""
    one, other = (view_of(np.full(100_000, value)) for value in (1.0, 1000.0))
    assert is_uniform(one - other)


def test_a_part_of_the_peers_is_uniform() -> None:
    """What all peers but one tell adds up to nothing that can be read."""
    peers, zeros = masks(*PEERS), np.zeros(50_000, np.uint64)
    told = {name: each.masked(zeros, purpose(shape=zeros.shape)) for name, each in peers.items()}
    for some in combinations(PEERS, 3):
        assert is_uniform(sum((told[name] for name in some), zeros))
    assert not sum(told.values(), zeros).any()


@pytest.mark.parametrize(
    "changed",
    [{"number": 2}, {"op": "other"}, {"name": "means"}, {"bits": 4}, {"shape": (2, 2)}],
    ids=lambda changed: next(iter(changed)),
)
def test_every_purpose_has_masks_of_its_own(changed: dict[str, Any]) -> None:
    """Another number, op, name, scale or shape: other masks, so that no difference of two replies tells anything."""
    peer, zeros = masks(*PEERS[:3])["east"], np.zeros(4, np.uint64)
    other = purpose(**changed)
    again = peer.masked(zeros.reshape(other.shape), other).ravel()
    assert not np.any(peer.masked(zeros, purpose()) == again)


def test_another_roster_has_other_masks() -> None:
    """The same keys in another roster give other secrets."""
    key, public = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key().public_bytes_raw()
    assert pair_secret(key, public, ROSTER) != pair_secret(key, public, b"s" * 32)


@pytest.mark.parametrize("public", [b"", b"\0" * 32, b"x" * 31])
def test_a_key_that_is_none_is_refused(public: bytes) -> None:
    """Too short, or one that would give everybody the same secret."""
    with pytest.raises(tp.PrivacyError, match="not an X25519 key"):
        pair_secret(X25519PrivateKey.generate(), public, ROSTER)
