"""Versions: a party and a caller of different ones say so before anything is trained, and the number cannot be
forgotten.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.party.ops import REGISTRY, Op
from tablepuppet.party.release import Release
from tablepuppet.versions import PROTOCOL
from tablepuppet.wire import protocol
from tests.relations import write_party
from tests.wire import protocol_words
from tests.wire.services import calling, served


def test_what_travels_is_that_of_the_number() -> None:
    """An op, an argument, a release or a field that changed needs another number of the protocol."""
    number, lines = protocol_words.recorded()
    assert protocol_words.words() == lines, f"ops or records have changed: {protocol_words.ADVICE}"
    assert number == PROTOCOL, "run python -m tests.wire.protocol_words"


def test_a_changed_op_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another argument changes the words, and they are not written down under the same number."""

    def use_rows(table: object, view: str, ties: str) -> dict[str, object]:
        return {}

    use_rows.__module__ = "tablepuppet.party.rows"
    monkeypatch.setitem(REGISTRY, "rows.use", Op(use_rows, "rows.use", asked="", releases=Release.COUNTS, returns={}))
    assert "op rows.use(ties, view) -> ; COUNTS" in protocol_words.words()
    golden = tmp_path / "protocol.txt"
    golden.write_text(protocol_words.GOLDEN.read_text())
    monkeypatch.setattr(protocol_words, "GOLDEN", golden)
    with pytest.raises(SystemExit, match="the number is still"):
        protocol_words.write()
    monkeypatch.setattr(protocol_words, "PROTOCOL", PROTOCOL + 1)
    protocol_words.write()
    assert protocol_words.recorded() == (PROTOCOL + 1, protocol_words.words())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_party(tmp_path_factory.mktemp("party"), "bank", {"t": pa.table({"x": [1.0, 2.0]})})


OTHER = """
import sys
from tests.wire.services import served
from tablepuppet.versions import PROTOCOL
from tablepuppet.wire import protocol

protocol.VERSION = int(sys.argv[2])
with served({"bank": sys.argv[1]}) as servers:
    print(servers["bank"].port, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=[-1, 1], ids=["older", "newer"])
def other(request: pytest.FixtureRequest, url: str) -> Iterator[tuple[int, int]]:
    """(the port, the version) of a party of another version, in a process of its own."""
    number = PROTOCOL + request.param
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, url, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield int(process.stdout.readline()), number
    process.communicate()


def test_both_ends_say_who_is_older(other: tuple[int, int]) -> None:
    """The first question names the party, its version, ours, and who must upgrade."""
    port, number = other
    ours = PROTOCOL
    older = "the party is too old, and its operator" if number < ours else "the caller is too old, and the caller"
    with pytest.raises(
        tp.PartyError,
        match=rf"party 'bank' speaks version {number} of the protocol, its caller version {ours}: {older} must upgrade",
    ):
        tp.Federation({"bank": f"grpc://127.0.0.1:{port}"}, timeout=30.0).sql("SELECT x FROM t")


def test_a_party_before_this_rule(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers everybody in its own version, as older software does, is understood all the same."""
    with served({"bank": url}) as servers:
        monkeypatch.setattr("tablepuppet.wire.flight_server.error_message", lambda error: [2, "PartyError", str(error)])
        monkeypatch.setattr("tablepuppet.wire.flight_server.read_version", _refusing)
        with pytest.raises(protocol.VersionError, match=r"'bank' speaks version 2 .* its operator must upgrade"):
            calling(servers, timeout=30.0).sql("SELECT x FROM t")


def _refusing(message: object, party: str) -> None:
    raise tp.PartyError("unexpected keyword argument 'ties'")
