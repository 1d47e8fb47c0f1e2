"""A party that is waited for is named at once: nobody looks at an empty screen until the timeout."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tablepuppet as tp
from benchmarks.proxy import Proxy
from tablepuppet.wire import flight_transport
from tablepuppet.wire.flight_transport import Waiting
from tests.relations import write_party
from tests.wire.services import Certificates, served


@pytest.mark.parametrize(("fault", "why"), [("cut", "connection refused"), ("stall", "no answer yet")])
def test_waiting_is_said_long_before_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, why: str
) -> None:
    """A connection that is refused, or not answered, is a warning while it is still waited for: here it is mended by
    whoever hears of it, once.
    """
    monkeypatch.setattr(flight_transport, "SOON", 0.2)
    told: list[str] = []
    url = write_party(tmp_path, "bank", {"t": pa.table({"x": [1, 2]})})
    with served({"bank": url}) as servers, Proxy("127.0.0.1", servers["bank"].port) as proxy:
        getattr(proxy, fault)()

        def mend(event: tp.Event) -> None:
            if event.name == "party.silent":
                told.append(event.message)
                proxy.restore()

        fed = tp.Federation({"bank": f"grpc://127.0.0.1:{proxy.port}"}, timeout=120.0, callbacks=[mend])
        assert fed.catalog().table("t").rows == 2
    assert told == [f"waiting for party 'bank' at 127.0.0.1:{proxy.port} ({why}), for up to 120 s"]


def test_a_failure_that_is_mended_at_once_is_not_said() -> None:
    """One try that fails is no news, the second is, further ones are not."""
    told: list[str] = []
    one = Waiting(told.append, "bank", "grpc://bank.example:8815", "until it answers")
    one.failed(OSError("Socket closed"))
    assert not told
    for _ in range(3):
        one.failed(OSError("Socket closed"))
    assert told == ["waiting for party 'bank' at bank.example:8815 (Socket closed), until it answers"]


def test_a_party_that_wants_tls(tmp_path: Path) -> None:
    """Who calls it without is told the URL that it has."""
    url = write_party(tmp_path, "bank", {"t": pa.table({"x": [1, 2]})})
    with served({"bank": url}, Certificates(tmp_path / "certificates")) as servers:
        port = servers["bank"].port
        with pytest.raises(tp.PartyError, match=rf"if the party wants TLS, its URL is grpc\+tls://127\.0\.0\.1:{port}"):
            tp.Federation({"bank": f"grpc://127.0.0.1:{port}"}, timeout=1.0).catalog()
