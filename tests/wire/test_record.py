"""The record of a run: what was answered is read back as it was, or not at all."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from tablepuppet.errors import ConfigError, TablePuppetError
from tablepuppet.party.request import Reply, Request, Step
from tablepuppet.wire.engine import Transport
from tablepuppet.wire.record import Record

ASKED = [Request("run", "s", {}, (Step("model.predict", "t", {"number": number}),), number) for number in range(6)]


class Party(Transport):
    """Answers with numbers that follow from the request, some of them long."""

    def __init__(self) -> None:
        self.asked = 0

    def call(self, request: Request, patience: float | None = None) -> Reply:
        self.asked += 1
        return [{"outputs": np.arange(5.0 * 7**request.sequence) + request.sequence, "square": 0.5}]


def run(folder: Path) -> tuple[list[Reply], int]:
    """All answers, and how many of them the party was asked for."""
    party = Party()
    recorded = Record(folder).of("bank", party)
    return [recorded.call(request) for request in ASKED], party.asked


def test_a_record_is_read_back(tmp_path: Path) -> None:
    """Nothing is asked again; what a crash left half written is."""
    first, asked = run(tmp_path)
    assert asked == len(ASKED)
    file = tmp_path / "bank.replies"
    for cut, again in ((0, 0), (1, 1), (file.stat().st_size - 10, len(ASKED))):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) - cut])
        found, asked = run(tmp_path)
        assert asked == again
        for one, other in zip(first, found, strict=True):
            np.testing.assert_array_equal(one[0]["outputs"], other[0]["outputs"])


@pytest.mark.parametrize("bit", range(0, 8, 3))
def test_no_flipped_bit_is_an_answer(tmp_path: Path, bit: int) -> None:
    """At every place: an error names the file, or the request differs from the one on record."""
    run(tmp_path)
    file = tmp_path / "bank.replies"
    content = file.read_bytes()
    heads = range(200)  # lengths, checksums and header of the first answers
    for place in [*heads, *np.linspace(200, len(content) - 1, 100, dtype=int).tolist()]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        file.write_bytes(damaged)
        with pytest.raises(TablePuppetError, match=r"'bank.replies' is damaged"):
            run(tmp_path)


@pytest.mark.parametrize("room", [0, 50, 300, 2000, 9000])
def test_a_full_disk_loses_no_answer(tmp_path: Path, room: int) -> None:
    """What was recorded is read back, what was not is asked again; nothing half written is left."""
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, most[1]))
    try:
        with pytest.raises(
            ConfigError, match=r"the record of this run in '.*' cannot be written \((File too|No space)"
        ):
            run(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    party = Party()
    recorded = Record(tmp_path).of("bank", party)
    for request in ASKED:
        [reply] = recorded.call(request)
        [expected] = Party().call(request)
        np.testing.assert_array_equal(reply["outputs"], expected["outputs"])
    assert 1 < party.asked <= len(ASKED)
    assert run(tmp_path)[1] == 0
