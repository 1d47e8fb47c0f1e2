"""The first requests that a new process reads come in many threads at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading
from tablepuppet.party.request import Request, Step
from tablepuppet.sql.plan import Scan
from tablepuppet.wire.codec import decode, encode
from tablepuppet.wire.protocol import read_request, request_message

sys.setswitchinterval(1e-6)
scan = Scan("bank", "t", "cards", {"x": "DOUBLE"}, {"x": "x"}, ("",), (), (None,), ())
asked = Request("open", "s", {"scans": (scan,), "wire": "float64"}, (Step("keys.blind", "t"),))
message, gate = decode(encode(request_message(asked))), threading.Barrier(50)

def read():
    gate.wait()
    assert read_request(message, "bank").arguments["scans"] == (scan,)

threads = [threading.Thread(target=read) for _ in range(50)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize("attempt", range(4))
def test_a_new_process_does_not_crash(attempt: int) -> None:
    """Where msgspec learned of a type in two threads at once, most such processes ended in a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
