"""Sessions that nobody refers to are closed, wherever Python finds out."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tablepuppet.errors import PartyError
from tablepuppet.party.request import Request
from tablepuppet.session import BRIEFLY, Closer, close_session
from tests.relations import collect_garbage, federation, party_of

ROWS = {"t": pa.table({"k": [1, 2], "x": [0.5, 1.5]})}


def test_found_while_a_lock_is_held_that_closing_needs(tmp_path: Path) -> None:
    """The last reference goes away while traffic is counted: it is closed all the same, and nothing waits for ever."""
    fed = federation(tmp_path, {"p": ROWS})
    party, kept = party_of(fed.engine, "p"), [fed.sql("SELECT x FROM t")]

    def drop() -> None:
        with fed.engine.traffic._lock:
            kept.clear()

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    collect_garbage()
    assert not party._sessions


def test_a_new_session_comes_after_those_that_end(tmp_path: Path) -> None:
    """Relations in a loop, each dropped for the next: a party never has two."""
    fed = federation(tmp_path, {"p": ROWS})
    party = party_of(fed.engine, "p")
    for _ in range(5):
        relation = None
        relation = fed.sql("SELECT x FROM t")
        assert len(party._sessions) == 1
    assert relation is not None


def test_one_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """What it says is not logged: only its kind."""
    closer, closed = Closer(), list[int]()

    def fail() -> None:
        raise ValueError("CANARY")

    closer.later(fail)
    closer.later(lambda: closed.append(1))
    closer.wait()
    assert closed == [1]
    assert "ValueError" in caplog.text
    assert "CANARY" not in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_closes_nothing_of_its_parent(tmp_path: Path) -> None:
    """A child that ends on its own leaves what it has inherited; what it opened itself is closed."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, weakref\n"
        "from tablepuppet.session import closer\n"
        "class Thing: pass\n"
        "thing, me = Thing(), os.getpid()\n"
        "def close(whose): print(whose, 'closed by', 'parent' if os.getpid() == me else 'child', flush=True)\n"
        "weakref.finalize(thing, closer().later, lambda: close('inherited'))\n"
        "if child := os.fork():\n"
        "    os.waitpid(child, 0)\n"
        "else:\n"
        "    own = Thing()\n"
        "    weakref.finalize(own, closer().later, lambda: close('own'))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["own closed by child", "inherited closed by parent"]


def test_at_the_end_of_a_process_all_is_closed(tmp_path: Path) -> None:
    """Also if the relation is alive until then, whichever of the things to do at exit came first."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, weakref\n"
        "class Thing: pass\n"
        "thing = Thing()\n"
        "weakref.finalize(thing, print, 'first') if 'early' in sys.argv else None\n"
        "from tablepuppet.session import closer\n"
        "closer()\n"
        "weakref.finalize(thing, closer().later, lambda: print('closed'))\n"
    )
    for arguments in ([], ["early"]):
        done = subprocess.run(
            [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=60, check=True
        )
        assert "closed" in done.stdout


def test_one_party_that_is_gone_is_waited_for() -> None:
    """The others of its session are tried briefly: whoever opens the next session waits for this one to be closed."""

    class Gone:
        def __init__(self) -> None:
            self.patience: list[float | None] = []

        def call(self, party: str, request: Request, patience: float | None = None) -> None:
            self.patience.append(patience)
            if party != "a":
                raise PartyError(f"party {party!r} is gone")

    engine: Any = Gone()
    close_session(engine, ("a", "b", "c", "d"), "s")
    assert engine.patience == [None, None, BRIEFLY, BRIEFLY]
