"""What networks take of a party's memory is checked before it is taken, whatever a caller describes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.learn.split.bottoms import Cnn
from tablepuppet.learn.split.nat import NatSettings, NatTraining, targets_of
from tablepuppet.learn.tables.dense import Mlp, Network
from tablepuppet.learn.tables.model import Bottom
from tablepuppet.party.allowance import Allowance, allowed
from tablepuppet.party.bounded import MemoryAccount
from tablepuppet.prep.encode.encoded_table import EncodedTable

pytest.importorskip("torch", reason="networks need the extra `deep`")
MIB = 1 << 20


@contextmanager
def room(size: int) -> Iterator[None]:
    with allowed(Allowance("bank", account=MemoryAccount("bank", size))):
        yield


def rows_of(rows: int, width: int) -> EncodedTable:
    return EncodedTable(np.zeros((rows, width)), (), ())


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (Mlp((10_000,) * 11, 1, "relu", False), tp.LearnError),  # a billion parameters
        (Cnn((1, 100, 100), (10_000,) * 4, 15, 1, False), tp.LearnError),
        (Mlp((1_000, 1_000), 1, "relu", False), tp.PartyError),  # 32 MiB with what learning needs
    ],
)
def test_a_network_is_not_built_before_its_size_is_checked(
    monkeypatch: pytest.MonkeyPatch, spec: Bottom, error: type[Exception]
) -> None:
    """A description of a few bytes must not make a party take gigabytes before it refuses."""
    monkeypatch.setattr("tablepuppet.learn.tables.torch_table.seeded", lambda *_: pytest.fail("it was built"))
    with room(16 * MIB), pytest.raises(error):
        spec.over(5, "t").start(0, "t", 5)


def test_an_image_counts_by_its_pixels() -> None:
    """One column may be a pixel of a large image: the image is what takes memory."""
    spec = Cnn((1, 512, 512), (8, *[1] * 8), 1, 1, False, (0,), (1.0,))
    network = spec.over(1, "t")
    theta = network.start(0, "t", 1)
    with room(8 * MIB), pytest.raises(tp.PartyError, match="memory_bytes"):
        network.predict(theta, rows_of(1, 1))
    with room(8 * MIB), pytest.raises(tp.PartyError, match="memory_bytes"):
        network.rows(rows_of(1, 1))


def test_wide_layers_are_computed_by_few_rows() -> None:
    """Embeddings and scores of many rows fit little memory, in chunks; a row that does not fit is refused."""
    wide = Mlp((10_000, 1, 10_000), 1, "relu", False).over(3)
    theta = wide.start(0, "t", 3)
    with room(24 * MIB):
        assert wide.predict(theta, rows_of(500, 3)).shape == (500, 1)
    with room(MIB // 8), pytest.raises(tp.PartyError, match="memory_bytes"):
        wide.predict(theta, rows_of(500, 3))
    scores = Network((10_000,), 1).over(3)
    first = scores.start(0, "t", 3)
    with room(MIB), pytest.raises(tp.PartyError, match="memory_bytes"):
        scores.predict(first, rows_of(5_000, 3))


def test_targets_and_assignments_are_checked() -> None:
    """Targets are drawn for all row ids up to the largest, and an assignment is as large as a batch squared."""
    with room(MIB), pytest.raises(tp.PartyError, match="memory_bytes"):
        targets_of(np.array([100_000]), 100, seed=0)
    network = Mlp((), 2, "relu", False).over(3)
    targets = targets_of(np.arange(2_000), 2, seed=0)
    with room(MIB), pytest.raises(tp.PartyError, match="memory_bytes"):
        NatTraining(
            network, network.start(0, "t", 3), lambda places: network.rows(rows_of(len(places), 3)), targets,
            NatSettings(batch_size=10_000), 0,
        )  # fmt: skip
