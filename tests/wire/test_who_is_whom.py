"""Who is whom: a party is known by its certificate, is given once, and refuses for itself alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.federation import PartyEntry
from tablepuppet.party.config import TlsPaths
from tablepuppet.party.policy import Policy
from tablepuppet.party.tls_files import read_tls_files
from tablepuppet.privacy.certificates import issue, roles_of
from tablepuppet.wire.flight_server import FlightServer
from tests.relations import write_party
from tests.wire.services import Certificates, calling, served

NOBODY = Policy(allow=frozenset({"somebody-else"}))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "ca")


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("parties")
    t, u = pa.table({"k": range(9), "x": range(9)}), pa.table({"k": range(9), "z": range(9)})
    return {
        name: write_party(folder, name, {"t": t} if name != "shop" else {"u": u}) for name in ("east", "west", "shop")
    }


@pytest.fixture(scope="module")
def servers(urls: dict[str, str], certificates: Certificates) -> Iterator[dict[str, FlightServer]]:
    with served(urls, certificates) as found:
        yield found


def federation(
    certificates: Certificates, parties: dict[str, tuple[FlightServer, str]], **settings: Any
) -> tp.Federation:
    """Parties by name: the service that is called, and the name that its certificate should have."""
    entries = {
        name: PartyEntry(f"grpc+tls://127.0.0.1:{server.port}", identity=identity)
        for name, (server, identity) in parties.items()
    }
    return tp.Federation(entries, tls=certificates.client("analyst"), timeout=30.0, **settings)


def test_another_party_does_not_answer_for_it(servers: dict[str, FlightServer], certificates: Certificates) -> None:
    """The certificate of another party, of the same authority and host, is refused with both names; one that goes by
    another name here is called by its identity.
    """
    fed = federation(certificates, {"west": (servers["east"], "")})
    with pytest.raises(tp.PartyError, match=r"party 'west' at \S+ shows the certificate of 'east', not of 'west'"):
        fed.sql("SELECT x FROM t")
    assert fed.traffic == []
    assert len(federation(certificates, {"branch": (servers["east"], "East")}).sql("SELECT x FROM branch.t")) == 9


def test_a_name_among_the_hosts_is_not_the_owners(
    urls: dict[str, str], certificates: Certificates, tmp_path: Path
) -> None:
    """A certificate that lists another name as a host of its owner is still that owner's; and the name of an owner is
    not issued as somebody's host.
    """
    certificates.files("west")
    with pytest.raises(tp.ConfigError, match="host 'west' is the name of another owner"):
        issue(certificates.folder, "mallory", ["West".lower()], role="party")
    issue(certificates.folder, "north", ["south", "127.0.0.1"], role="party")
    with served({"north": urls["east"]}, certificates) as found:
        with pytest.raises(tp.PartyError, match="shows the certificate of 'north', not of 'south'"):
            federation(certificates, {"south": (found["north"], "")}).catalog()
        with pytest.raises(tp.PartyError, match="shows the certificate of 'north', not of '127"):
            federation(certificates, {"south": (found["north"], "127.0.0.1")}).catalog()


@pytest.mark.parametrize(
    ("parties", "words"),
    [
        ({"a": "grpc+tls://bank.example:1", "b": "grpc+tls://Bank.example:1/"}, "both have the same address"),
        ({"a": "grpc://localhost:1", "b": "grpc://127.0.0.1:1"}, "both have the same address"),
        (
            {"a": "grpc+tls://bank.example:1", "b": PartyEntry("grpc+tls://bank.example:2", identity="A")},
            "both expect the certificate of 'a'",
        ),
    ],
)
def test_one_party_given_twice(parties: dict[str, Any], words: str, certificates: Certificates) -> None:
    """Two names of one address, or of one certificate: its rows would count twice."""
    with pytest.raises(tp.ConfigError, match=f"parties 'a' and 'b' are one party given twice: {words}; remove one"):
        tp.Federation(parties, tls=certificates.client("analyst"))
    tp.Federation({"a": parties["a"]}, tls=certificates.client("analyst"))


def test_each_certificate_is_for_one_end(
    servers: dict[str, FlightServer], urls: dict[str, str], certificates: Certificates
) -> None:
    """A party's certificate cannot call, an analyst's cannot serve: the files are refused, and TLS refuses too."""
    analyst, east = certificates.client("analyst"), certificates.files("east")
    assert (roles_of(Path(analyst.cert).read_bytes()), roles_of(Path(east[0]).read_bytes())) == (
        frozenset({"analyst"}),
        frozenset({"party"}),
    )
    with pytest.raises(tp.ConfigError, match=r"cannot serve.*'tablepuppet certs issue analyst --party'"):
        read_tls_files(TlsPaths(analyst.cert, analyst.key, analyst.ca), "party")
    caller = tp.Tls(*east)
    with pytest.raises(tp.ConfigError, match=r"cannot call parties.*'tablepuppet certs issue east --analyst'"):
        calling(servers, certificates, tls=caller)
    from tablepuppet.party.request import Request
    from tablepuppet.wire.flight_transport import ClientTls, FlightTransport

    def called(server: FlightServer, name: str, files: tuple[str, ...]) -> object:
        tls = ClientTls(*(Path(path).read_bytes() for path in files))
        return FlightTransport(name, f"grpc+tls://127.0.0.1:{server.port}", tls, 3.0).call(Request("describe"))

    with pytest.raises(tp.PartyError, match="seems to refuse the certificate"):
        called(servers["west"], "west", east)
    issue(certificates.folder, "rogue", role="analyst")
    own = (analyst.cert, analyst.key, analyst.ca)
    with (
        served({"rogue": urls["east"]}, certificates) as found,
        pytest.raises(tp.PartyError, match="no certificate that fits"),
    ):
        called(found["rogue"], "rogue", own)


def test_certificates_for_both_ends_are_warned_of(servers: dict[str, FlightServer], certificates: Certificates) -> None:
    """Those of older software, and those without a mark, still work; a warning says what to run."""
    issue(certificates.folder, "veteran")
    events: list[tp.Event] = []
    fed = calling(servers, certificates, tls=tp.Tls(*certificates.files("veteran")), callbacks=[events.append])
    assert len(fed.sql("SELECT x FROM east.t")) == 9
    [warned] = [each for each in events if each.name == "tls.both_ends"]
    assert "'tablepuppet certs issue veteran --analyst'" in warned.message
    files = read_tls_files(TlsPaths(*certificates.files("veteran")), "party")
    assert (
        "can also call parties in this name; issue a new one with 'tablepuppet certs issue veteran --party'"
        in files.warning
    )


@pytest.fixture
def refusing(urls: dict[str, str], servers: dict[str, FlightServer], certificates: Certificates) -> Iterator[Any]:
    """East and shop answer, west does not allow the caller."""
    with served({"west": urls["west"]}, certificates, policy=NOBODY) as found:
        yield {"east": servers["east"], "shop": servers["shop"]} | found


def test_a_party_that_refuses_does_not_fail_the_others(
    refusing: dict[str, FlightServer], certificates: Certificates
) -> None:
    """The catalog shows what the others publish and says who refused; queries over the others work, with a warning;
    those that need it say so.
    """
    events: list[tp.Event] = []
    fed = calling(refusing, certificates, callbacks=[events.append])
    found = fed.catalog()
    assert (found.parties, found.names) == (["east", "shop"], ["t", "u"])
    assert list(found.refusals) == ["west"]
    assert "'analyst' is not allowed" in found.refusals["west"]
    [warned] = [each for each in events if each.name == "catalog.refused"]
    assert (warned.kind, warned.fields["party"]) == ("warning", "west")
    assert len(fed.sql("SELECT t.x, u.z FROM t JOIN u USING (k)")) == 9
    with pytest.raises(tp.PrivacyError, match=r"party 'west'.*'analyst' is not allowed"):
        fed.sql("SELECT x FROM west.t")
    with pytest.raises(tp.QueryError, match=r"no party publishes a table 'v'.*party 'west'"):
        fed.sql("SELECT x FROM v")


def test_a_party_that_is_lost_may_have_a_shard(servers: dict[str, FlightServer], certificates: Certificates) -> None:
    """It is not known what a party publishes that does not answer: a table without its party is refused, as rows could
    be missing; one of a named party is not.
    """
    parties = {"east": (servers["east"], ""), "west": (servers["east"], "")}
    entries = {name: f"grpc+tls://127.0.0.1:{server.port}" for name, (server, _) in parties.items()}
    entries["west"] = "grpc+tls://127.0.0.1:9"
    fed = tp.Federation(entries, tls=certificates.client("analyst"), timeout=1.0)
    assert list(fed.catalog().refusals) == ["west"]
    assert len(fed.sql("SELECT x FROM east.t")) == 9
    with pytest.raises(tp.PartyError, match=r"party 'west' at .* does not answer within 1 s"):
        fed.sql("SELECT x FROM t")
    with pytest.raises(tp.PartyError, match=r"party 'west' at .* does not answer within 1 s"):
        fed.sql("SELECT x FROM west.t")
