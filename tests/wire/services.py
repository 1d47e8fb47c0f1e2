"""Parties as services on this machine: certificates, servers, and the federation that calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tablepuppet as tp
from tablepuppet.federation import Tls
from tablepuppet.party.config import Limits
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.policy import Policy
from tablepuppet.party.service import Party
from tablepuppet.privacy.certificates import Role, issue, new_authority
from tablepuppet.wire.desk import Desk
from tablepuppet.wire.flight_server import FlightServer, ServerTls
from tablepuppet.wire.journal import Journal

KEY = b"k" * 32


class Certificates:
    """A small authority, and a certificate for whoever needs one."""

    def __init__(self, folder: Path):
        self.folder = folder
        new_authority(folder)

    def files(self, name: str, role: Role = "party") -> tuple[str, str, str]:
        """Paths of certificate, key and authority; whose it is, is decided when it is first asked for."""
        certificate = self.folder / f"{name}.crt"
        if not certificate.exists():
            issue(self.folder, name, role=role)
        return str(certificate), str(self.folder / f"{name}.key"), str(self.folder / "ca.crt")

    def server(self, name: str) -> ServerTls:
        """For a party."""
        return ServerTls(*(Path(path).read_bytes() for path in self.files(name)))

    def client(self, name: str) -> Tls:
        """For a coordinator."""
        return Tls(*self.files(name, "analyst"))


@contextmanager
def served(
    urls: Mapping[str, str],
    certificates: Certificates | None = None,
    *,
    limits: Limits | None = None,
    state: Path | None = None,
    key: bytes = KEY,
    policy: Policy | None = None,
    told: Callable[[str, str, str], None] = lambda *_: None,
) -> Iterator[dict[str, FlightServer]]:
    """A server for every database URL, until the context ends."""
    with ExitStack() as stack:
        servers = {}
        for name, url in urls.items():
            kept = None if state is None else state / name
            if kept is not None:
                kept.mkdir(parents=True, exist_ok=True)
            ttl = (limits or Limits()).snapshot_ttl
            tls = None if certificates is None else certificates.server(name)
            party = Party(
                name, open_database(name, url), key, policy, name.encode(), state_dir=kept, snapshot_ttl=ttl,
                identity=None if tls is None else partial(getattr, tls, "identity"),
            )  # fmt: skip
            journal = None if kept is None else Journal(kept, name)
            desk = Desk(party, limits or Limits(), journal, told)
            servers[name] = FlightServer(desk, "127.0.0.1:0", tls)
            stack.callback(servers[name].shutdown)
        yield servers


def calling(
    servers: Mapping[str, FlightServer], certificates: Certificates | None = None, **settings: Any
) -> tp.Federation:
    """A federation of services."""
    scheme = "grpc" if certificates is None else "grpc+tls"
    if certificates is not None:
        settings.setdefault("tls", certificates.client("analyst"))
    return tp.Federation({name: f"{scheme}://127.0.0.1:{s.port}" for name, s in servers.items()}, **settings)
