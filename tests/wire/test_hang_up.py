"""Whether a party hangs up: told apart from one that is not there, has no TLS, or is somebody else's."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

from tablepuppet.wire.flight_transport import hangs_up
from tests.relations import write_party
from tests.wire.services import Certificates, served


def test_only_a_party_of_the_authority_hangs_up(tmp_path: Path) -> None:
    """A party with mutual TLS ends the connection of a caller without certificate; all else is no such sign."""
    url = write_party(tmp_path, "p", {"t": pa.table({"x": np.arange(3.0)})})
    own, foreign = (Certificates(tmp_path / name) for name in ("own", "foreign"))
    authority = Path(own.client("analyst").ca).read_bytes()
    with served({"p": url}, own) as servers:
        port = servers["p"].port
        assert hangs_up("127.0.0.1", port, authority)
        assert not hangs_up("127.0.0.1", port, Path(foreign.client("analyst").ca).read_bytes())
    assert not hangs_up("127.0.0.1", port, authority)
    with served({"p": url}) as servers:
        assert not hangs_up("127.0.0.1", servers["p"].port, authority)


def test_a_line_that_is_cut_is_no_refusal(tmp_path: Path) -> None:
    """Whoever closes before it has proved who it is has not refused a certificate."""
    authority = Path(Certificates(tmp_path / "own").client("analyst").ca).read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)

        def cut() -> None:
            server.accept()[0].close()

        thread = threading.Thread(target=cut)
        thread.start()
        assert not hangs_up("127.0.0.1", server.getsockname()[1], authority)
        thread.join()
