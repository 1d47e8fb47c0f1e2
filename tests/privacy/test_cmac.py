"""AES-CMAC of whole columns, against the standard's vectors and `cryptography`."""

from __future__ import annotations

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import algorithms
from cryptography.hazmat.primitives.cmac import CMAC
from hypothesis import given, settings
from hypothesis import strategies as st

from tablepuppet.privacy import cmac as module
from tablepuppet.privacy.cmac import cmac

RFC_KEY = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
RFC_MESSAGE = bytes.fromhex(
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
RFC_VECTORS = {
    0: "bb1d6929e95937287fa37d129b756746",
    16: "070a16b46b4d4144f79bdd9dd04a287c",
    40: "dfa66747de9ae63030ca32611497c827",
    64: "51f0bebf7e3b9d92fc49741779363cfe",
}


def reference(key: bytes, message: bytes) -> bytes:
    digest = CMAC(algorithms.AES(key))
    digest.update(message)
    return digest.finalize()


def test_vectors_of_rfc_4493() -> None:
    """The four examples of RFC 4493, section 4, in one call."""
    digests = cmac(RFC_KEY, pa.array([RFC_MESSAGE[:length] for length in RFC_VECTORS], pa.binary()))
    assert [digest.tobytes().hex() for digest in digests] == list(RFC_VECTORS.values())


@settings(deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=100), max_size=30), st.binary(min_size=32, max_size=32))
def test_random_messages(messages: list[bytes], key: bytes) -> None:
    """Messages of any lengths in one column get the digests that `cryptography` computes one by one."""
    digests = cmac(key, pa.array(messages, pa.binary()))
    assert digests.shape == (len(messages), 16)
    assert [digest.tobytes() for digest in digests] == [reference(key, message) for message in messages]


def test_text_slices_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is digested as UTF-8; a slice of a column, and one longer than a chunk, give the same digests."""
    monkeypatch.setattr(module, "CHUNK", 7)
    texts = ["", "a", "é", "😀" * 9, "x" * 16, "y" * 17, "z" * 32] * 5
    expected = [reference(RFC_KEY, text.encode()) for text in texts]
    for type_ in (pa.string(), pa.large_string()):
        array = pa.array(["before", *texts, "after"], type_).slice(1, len(texts))
        assert [digest.tobytes() for digest in cmac(RFC_KEY, array)] == expected
