"""Who calls a service: certificates decide, and what was read for one caller is not for another."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import tablepuppet as tp
from tablepuppet.federation import Tls
from tablepuppet.party.config import Limits
from tablepuppet.party.policy import Policy
from tablepuppet.party.request import Request
from tablepuppet.privacy.certificates import _builder, _load_authority, _subject, issue, private_pem
from tablepuppet.wire.flight_server import PROOF, FlightServer
from tablepuppet.wire.flight_transport import ClientTls, FlightTransport
from tests.relations import write_party
from tests.wire.services import Certificates, calling, served

TWO_DAYS_AGO = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    found = Certificates(tmp_path_factory.mktemp("certificates") / "ca")
    issue(found.folder, "late", days=1, start=TWO_DAYS_AGO)
    return found


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("foreign") / "ca")


def rows(count: int) -> pa.Table:
    return pa.table({"x": np.arange(float(count))})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_party(tmp_path_factory.mktemp("party"), "p", {"t": rows(5)})


@pytest.fixture(scope="module")
def server(url: str, certificates: Certificates) -> Iterator[FlightServer]:
    with served({"p": url}, certificates, policy=Policy(allow=frozenset({"analyst"}))) as servers:
        yield servers["p"]


def read(tls: Tls) -> ClientTls:
    """What files hold, whether they are good or not."""
    return ClientTls(*(Path(path).read_bytes() for path in (tls.cert, tls.key, tls.ca)))


def remote(server: FlightServer, tls: Tls | None, timeout: float = 60.0) -> FlightTransport:
    scheme = "grpc" if tls is None else "grpc+tls"
    return FlightTransport("p", f"{scheme}://127.0.0.1:{server.port}", None if tls is None else read(tls), timeout)


def mixed(files: Tls, other: Certificates) -> Tls:
    """A certificate, and the authority of others."""
    return Tls(files.cert, files.key, other.client("analyst").ca)


def test_a_certificate_that_fits(server: FlightServer, certificates: Certificates) -> None:
    """A caller of the same authority, whom the party allows, is answered."""
    assert remote(server, certificates.client("analyst")).call(Request("describe"))


def test_a_caller_whose_certificate_does_not_fit(
    server: FlightServer, certificates: Certificates, foreign: Certificates
) -> None:
    """A caller of another authority, and one whose certificate has expired, get no answer, and an error that names the
    party and what may be wrong; an expired one is refused before it is used.
    """
    for wrong in (mixed(foreign.client("analyst"), certificates), certificates.client("late")):
        with pytest.raises(
            tp.PartyError, match=r"'p' at .* within 3 s \(.*not in the party's tls.ca; ask its operator"
        ):
            remote(server, wrong, timeout=3.0).call(Request("describe"))
    with pytest.raises(tp.ConfigError, match=r"late\.crt' is not good today; issue a new one"):
        tp.Federation({"p": f"grpc+tls://127.0.0.1:{server.port}"}, tls=certificates.client("late"))


def test_a_party_whose_certificate_does_not_fit(
    server: FlightServer, url: str, certificates: Certificates, foreign: Certificates
) -> None:
    """The coordinator does not talk to a party of another authority or with an expired certificate, and says why."""
    with pytest.raises(
        tp.PartyError, match=r"'p' at .* has no certificate that fits .*certificate in certificate chain"
    ):
        remote(server, foreign.client("analyst")).call(Request("describe"))
    late = served({"late": url}, certificates)
    with late as servers, pytest.raises(tp.PartyError, match=r"has no certificate that fits .*certificate has expired"):
        remote(servers["late"], certificates.client("analyst")).call(Request("describe"))


def test_no_certificate_is_no_caller(server: FlightServer, certificates: Certificates) -> None:
    """Neither plaintext nor TLS without a certificate of the caller's own reaches the party."""
    with pytest.raises(tp.PartyError, match="'p' at grpc"):
        remote(server, None, timeout=3.0).call(Request("describe"))
    authority = Path(certificates.client("analyst").ca).read_bytes()
    nobody = flight.FlightClient(f"grpc+tls://127.0.0.1:{server.port}", tls_root_certs=authority)
    with pytest.raises(flight.FlightUnavailableError):
        list(nobody.list_actions(flight.FlightCallOptions(timeout=60.0)))


def test_a_caller_who_is_not_allowed(server: FlightServer, certificates: Certificates) -> None:
    """A good certificate is not enough: the policy names who may call."""
    with pytest.raises(tp.PrivacyError, match=r"(?s)'stranger'.*allow"):
        remote(server, certificates.client("stranger")).call(Request("describe"))


def test_a_common_name_is_no_name(
    server: FlightServer, certificates: Certificates, tmp_path: Path, foreign: Certificates
) -> None:
    """A certificate without names is not known by its common name; nor is one who shows the certificate of another."""
    authority, key = _load_authority(certificates.folder)
    own = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_subject("analyst"), authority.subject, own.public_key(), TWO_DAYS_AGO, 30)
    nameless = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    nobody = ClientTls(nameless, private_pem(own), authority.public_bytes(serialization.Encoding.PEM))
    party = FlightTransport("p", f"grpc+tls://127.0.0.1:{server.port}", nobody, 20.0)
    with pytest.raises(tp.PrivacyError, match="first entry of its SubjectAlternativeName must be a DNS name"):
        party.call(Request("describe"))
    analyst = read(certificates.client("analyst"))
    party._headers = [(PROOF.encode(), analyst.proof("elsewhere.example"))]  # as another party was shown
    with pytest.raises(tp.PrivacyError, match="not shown to this party by its owner"):
        party.call(Request("describe"))
    party._headers = [(PROOF.encode(), ClientTls(analyst.certificate, private_pem(own), b"").proof("127.0.0.1"))]
    with pytest.raises(tp.PrivacyError, match="not shown to this party by its owner"):
        party.call(Request("describe"))
    party._headers = [(PROOF.encode(), read(foreign.client("analyst")).proof("127.0.0.1"))]
    with pytest.raises(tp.PrivacyError, match="does not come from an authority"):
        party.call(Request("describe"))
    party._headers = [(PROOF.encode(), read(certificates.client("rival")).proof("127.0.0.1"))]
    with pytest.raises(tp.PrivacyError, match="is not that of its TLS"):
        party.call(Request("describe"))
    party._headers = []
    with pytest.raises(tp.PrivacyError, match="no certificate that can be read"):
        party.call(Request("describe"))


@pytest.mark.parametrize("caller", ["analyst", "stranger"])
def test_other_calls_of_flight(server: FlightServer, certificates: Certificates, caller: str) -> None:
    """What Flight knows beside our one call is refused in one line, whoever asks."""
    tls = read(certificates.client(caller))
    client = flight.FlightClient(
        f"grpc+tls://127.0.0.1:{server.port}",
        tls_root_certs=tls.authority,
        cert_chain=tls.certificate,
        private_key=tls.key,
    )
    what = flight.FlightDescriptor.for_command(b"x")
    calls: list[Callable[[], object]] = [
        lambda: list(client.list_flights()), lambda: list(client.list_actions()), lambda: client.get_schema(what),
        lambda: client.get_flight_info(what), lambda: client.do_get(flight.Ticket(b"x")).read_all(),
        lambda: client.do_put(what, pa.schema([]))[0].close(),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises((flight.FlightUnauthorizedError, OSError), match="answers no other call") as caught:
            call()
        assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("limits", [Limits(), Limits(snapshot_ttl=3600.0)])
def test_rows_are_read_anew_or_reused_by_their_caller(
    certificates: Certificates, tmp_path: Path, limits: Limits
) -> None:
    """By default every run reads the rows that are there; within ``snapshot_ttl`` a caller's own runs reuse what was
    read, another caller's do not.
    """
    url = write_party(tmp_path, "p", {"t": rows(5)})
    with served({"p": url}, certificates, limits=limits) as servers:

        def read(caller: str) -> int:
            return len(calling(servers, certificates, tls=certificates.client(caller)).sql("SELECT x FROM t"))

        assert read("analyst") == 5
        pyarrow.parquet.write_table(rows(7), tmp_path / "p" / "t.parquet")
        assert read("analyst") == (5 if limits.snapshot_ttl else 7)
        assert read("rival") == 7
