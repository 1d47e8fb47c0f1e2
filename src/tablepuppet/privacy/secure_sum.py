"""Masks that cancel in a sum: the masked words of all peers add up to the true sum, and reveal no single peer's number.

Input: a peer's numbers, and a secret for each pair of peers. Output: 64-bit words that look random. Numbers are rounded
to multiples of 2^-bits and added modulo 2^64, so the result is exactly the sum of the rounded numbers. In each pair,
the peer whose name comes first adds a mask and the other one subtracts it:

    sent_a = round(2^bits x_a) + sum_{b > a} m_ab - sum_{b < a} m_ba   (mod 2^64)

m_ab is a stream of AES-256 in counter mode. Its key is derived from the pair's secret for one roster, one number, one
op, one name and one scale. It is used once: if it were used twice, the difference of two replies would be revealed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from tablepuppet.arrays import Array, Words
from tablepuppet.errors import PrivacyError

FEWEST = 3  # peers: with two, each knows the other's numbers from the sum
PRECISE = 50  # bits kept below the bound of a sum, about as many as a float64 has
ROOM = 62  # bits below which the sum of all peers must stay; twelve above the bound, should it not quite hold
MOST_BITS = 900  # a scale beyond that has no use


def scale_bits(bound: float, peers: int) -> int:
    """The scale, as a power of two, for numbers of this number of peers that are not much above a bound that all know.

    >>> scale_bits(1.0, 4), scale_bits(1e9, 4)
    (47, 18)
    """
    if not (math.isfinite(bound) and bound > 0):
        return 0
    return max(-MOST_BITS, min(MOST_BITS, PRECISE - math.frexp(bound * peers)[1]))


def to_words(values: Array | float, bits: int, peers: int) -> Words:
    """Numbers rounded to multiples of 2^-bits; PrivacyError if the sum over all peers might not fit.

    >>> to_words(-0.75, 1, 3).view(np.int64)
    array(-2)
    """
    scaled = np.rint(np.ldexp(np.asarray(values, np.float64), bits))
    with np.errstate(invalid="ignore"):
        fits = bool(np.all(np.abs(scaled) < 2.0**ROOM / peers))
    if not fits:  # also where a number is not finite
        raise PrivacyError(
            f"a sum over rows is too large for its scale of 2^{bits}: no more than 2^{ROOM} fit into the sum of "
            f"{peers} shards; scale the label or the columns, use a smaller lr, or learn without secure_sum"
        )
    return np.asarray(scaled.astype(np.int64).view(np.uint64))


def add_words(parts: Sequence[Words], bits: int) -> Array:
    """The sum of the words of all peers, as numbers."""
    total = np.zeros_like(parts[0])
    for part in parts:
        total = total + part  # modulo 2^64
    return np.asarray(np.ldexp(total.view(np.int64).astype(np.float64), -bits))


@dataclass(frozen=True)
class Purpose:
    """What a mask is for: one array of one reply."""

    number: int  # of the reply, in the session
    op: str
    name: str
    bits: int
    shape: tuple[int, ...]

    @property
    def info(self) -> bytes:
        """As bytes that no other purpose has."""
        return f"{self.number}\n{self.op}\n{self.name}\n{self.bits}\n{self.shape}".encode()


class Masks:
    """The masks of one peer of one roster; ``secrets`` are those it shares with each other peer, by name."""

    def __init__(self, own: str, secrets: Mapping[str, bytes]):
        self._own, self._secrets = own, dict(secrets)

    def masked(self, words: Words, purpose: Purpose) -> Words:
        """The words with all masks for this purpose."""
        sent = words.copy()
        for name, secret in self._secrets.items():
            mask = _stream(secret, purpose)
            sent = sent + mask if self._own < name else sent - mask  # modulo 2^64
        return np.asarray(sent, np.uint64)


def pair_secret(own: X25519PrivateKey, other: bytes, roster: bytes) -> bytes:
    """The secret of two peers for a roster with this digest; PrivacyError if the other's key is none."""
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise PrivacyError("a peer's key for the exchange is not an X25519 key") from None
    return HKDF(hashes.SHA256(), 32, salt=roster, info=b"tablepuppet secure sum: pair").derive(shared)


def _stream(secret: bytes, purpose: Purpose) -> Words:
    key = HKDFExpand(hashes.SHA256(), 32, info=b"tablepuppet secure sum: mask\n" + purpose.info).derive(secret)
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    stream = cipher.update(bytes(8 * math.prod(purpose.shape)))
    return np.frombuffer(stream, "<u8").reshape(purpose.shape).astype(np.uint64)
