"""Trial certificates, as OpenSSL and a real TLS handshake see them."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import ssl
import threading
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tablepuppet.errors import ConfigError
from tablepuppet.privacy.certificates import CertificateFiles, identity, issue, new_authority


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an authority."""
    new_authority(tmp_path)
    return tmp_path


def load(files: CertificateFiles) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files.certificate.read_bytes())


def alternative_names(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def context(purpose: ssl.Purpose, folder: Path, files: CertificateFiles) -> ssl.SSLContext:
    """One end of mutual TLS; OpenSSL's strict rules for certificates are on."""
    made = ssl.create_default_context(purpose, cafile=str(folder / "ca.crt"))
    made.load_cert_chain(files.certificate, files.key)
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    return made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[bytes, bytes]:
    """The certificates in DER that client and server get of each other."""
    found: dict[str, Any] = {}
    near, far = socket.socketpair()

    def serve() -> None:
        with contextlib.suppress(OSError), server.wrap_socket(far, server_side=True) as tls:
            found["client"] = tls.getpeercert(binary_form=True)
            tls.sendall(b"welcome")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with near, client.wrap_socket(near, server_hostname=host) as tls:
            tls.settimeout(30)
            if tls.recv(7) != b"welcome":  # in TLS 1.3 a refused client hears of it here
                raise ssl.SSLError("the server hung up")
            return tls.getpeercert(binary_form=True) or b"", found["client"]
    finally:
        near.close()
        thread.join()


@pytest.mark.parametrize("host", ["bank-east", "localhost", "127.0.0.1"])
def test_mutual_tls_with_default_hosts(folder: Path, host: str) -> None:
    """Certificates serve both ends; a server is reached by its owner's name and by its hosts."""
    bank, analyst = issue(folder, "bank-east"), issue(folder, "analyst")
    server = context(ssl.Purpose.CLIENT_AUTH, folder, bank)
    client = context(ssl.Purpose.SERVER_AUTH, folder, analyst)
    of_server, of_client = handshake(server, client, host)
    assert identity(of_server) == "bank-east"
    assert identity(of_client) == "analyst"


def test_another_host_is_refused(folder: Path) -> None:
    """A certificate is good for its names only."""
    bank = issue(folder, "bank", hosts=["bank.example"])
    ends = [context(purpose, folder, bank) for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH)]
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for 'localhost'"):
        handshake(ends[0], ends[1], "localhost")


def test_a_foreign_certificate_is_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One authority's certificates are nothing to another, at either end."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    new_authority(elsewhere)
    bank, stranger = issue(folder, "bank"), issue(elsewhere, "bank")
    server = context(ssl.Purpose.CLIENT_AUTH, folder, bank)
    with pytest.raises(ssl.SSLError):
        handshake(server, context(ssl.Purpose.SERVER_AUTH, folder, stranger), "localhost")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, context(ssl.Purpose.SERVER_AUTH, elsewhere, stranger), "localhost")


def test_an_expired_certificate_is_refused(folder: Path) -> None:
    """A certificate that began two days ago and was good for one."""
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)
    old = issue(folder, "bank", days=1, start=start)
    server = context(ssl.Purpose.CLIENT_AUTH, folder, old)
    client = context(ssl.Purpose.SERVER_AUTH, folder, issue(folder, "analyst"))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(server, client, "localhost")


def test_names_stand_in_order_and_once(folder: Path) -> None:
    """The owner's name, then the hosts as told: DNS names and addresses of both kinds."""
    hosts = ["db.bank.example", "10.0.0.7", "::1", "bank_1", "10.0.0.7"]
    files = issue(folder, "bank_1", hosts)
    assert files.names == ("bank_1", "db.bank.example", "10.0.0.7", "::1")
    assert tuple(alternative_names(load(files))) == files.names


def test_a_certificate_cannot_sign_others(folder: Path) -> None:
    """It is good for TLS, both ends, and nothing else; its key is P-256 and fits."""
    files = issue(folder, "bank", days=30)
    certificate = load(files)
    found = {extension.oid: extension.value for extension in certificate.extensions}
    assert found[x509.BasicConstraints.oid] == x509.BasicConstraints(ca=False, path_length=None)
    usages = found[x509.ExtendedKeyUsage.oid]
    assert isinstance(usages, x509.ExtendedKeyUsage)
    assert set(usages) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    key = serialization.load_pem_private_key(files.key.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP256R1)
    assert key.public_key() == certificate.public_key()
    assert certificate.not_valid_after_utc == files.expires
    assert files.expires - certificate.not_valid_before_utc == datetime.timedelta(days=30, minutes=5)


def test_keys_are_private_and_nothing_is_written_over(folder: Path) -> None:
    """Keys have mode 0600; to issue or begin again is refused and changes no file."""
    issue(folder, "bank")
    assert sorted(os.listdir(folder)) == ["bank.crt", "bank.key", "ca.crt", "ca.key"]
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.key")} == {0o600}
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ConfigError, match=r"private key '.*bank\.key' exists"):
        issue(folder, "bank")
    with pytest.raises(ConfigError, match=r"private key '.*ca\.key' exists"):
        new_authority(folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_key_without_its_certificate_is_not_left(folder: Path) -> None:
    """If the certificate cannot be written, the new key goes too."""
    (folder / "bank.crt").write_text("somebody's")
    with pytest.raises(ConfigError, match=r"certificate '.*bank\.crt' exists"):
        issue(folder, "bank")
    assert not (folder / "bank.key").exists()


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "../evil",
        "a/b",
        ".",
        "a..b",
        ".a",
        "a.",
        "-a",
        "a-",
        "*",
        "*.bank",
        "é",
        "a\n",
        "x" * 64,
        "10.0.0.1",
    ],
)
def test_names_unfit_for_dns_are_refused(folder: Path, name: str) -> None:
    """A name becomes a DNS name and a file: nothing else passes, and nothing is written."""
    with pytest.raises(ConfigError, match="cannot be an owner's name"):
        issue(folder, name)
    assert len(os.listdir(folder)) == 2


def test_the_authoritys_own_name_is_taken(folder: Path) -> None:
    """On a file system that ignores case, CA would be ca."""
    with pytest.raises(ConfigError, match="'CA' is taken by the authority"):
        issue(folder, "CA")


@pytest.mark.parametrize("host", ["", "a b", "*.example", "http://bank", "bank:8815", "10.0.0.0/8", "x" * 64])
def test_what_is_no_host_is_refused(folder: Path, host: str) -> None:
    """A URL, a port or a wildcard is no host."""
    with pytest.raises(ConfigError, match=r"certificate of 'bank': host '.*' is neither a DNS name nor an IP address"):
        issue(folder, "bank", ["fine.example", host])


@pytest.mark.parametrize("days", [0, -1, 3651, 10**12])
def test_no_certificate_outlives_its_authority(folder: Path, days: int) -> None:
    """At least a day, at most as long as the authority."""
    with pytest.raises(ConfigError, match=rf"good for {days} days: 1 to 3\d+, as long as its authority"):
        issue(folder, "bank", days=days)


def test_an_expired_authority_issues_nothing(folder: Path) -> None:
    """In eleven years a new authority is needed."""
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=4000)
    with pytest.raises(ConfigError, match="has expired: make a new one with 'tablepuppet certs init'"):
        issue(folder, "bank", start=later)


def test_an_authority_in_disorder_issues_nothing(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No authority, a key open to others, a damaged key, a key of another authority, a missing part."""
    other = tmp_path_factory.mktemp("other")
    with pytest.raises(ConfigError, match="holds no authority: make one with 'tablepuppet certs init'"):
        issue(other, "bank")
    new_authority(other)
    key = folder / "ca.key"
    key.chmod(0o640)
    with pytest.raises(ConfigError, match=r"CA key '.*ca\.key' is open to other users .* chmod 600"):
        issue(folder, "bank")
    key.chmod(0o600)
    key.write_bytes((other / "ca.key").read_bytes())
    with pytest.raises(ConfigError, match="the CA's key does not belong to its certificate"):
        issue(folder, "bank")
    key.write_bytes(b"-----BEGIN PRIVATE KEY-----\ns3cret\n")
    with pytest.raises(ConfigError, match="is not in PEM without a password") as caught:
        issue(folder, "bank")
    assert "s3cret" not in str(caught.value)
    (folder / "ca.crt").unlink()
    with pytest.raises(ConfigError, match=r"cannot read CA certificate '.*ca\.crt': No such file"):
        issue(folder, "bank")


def certificate_with(*extensions: x509.ExtensionType) -> x509.Certificate:
    """A certificate of somebody else's making."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(x509.Name([]), x509.Name([]), key.public_key(), 1, now, now)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, hashes.SHA256())


def test_identity_is_the_first_dns_name(folder: Path) -> None:
    """In PEM as bytes or text, in DER, as the first of a chain, and before names of other kinds."""
    pem = issue(folder, "bank").certificate.read_bytes()
    chain = pem + (folder / "ca.crt").read_bytes()
    der = x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)
    assert {identity(each) for each in (pem, pem.decode(), der, chain)} == {"bank"}
    names = [x509.DNSName("one"), x509.RFC822Name("it@example.org"), x509.DNSName("two")]
    mixed = certificate_with(x509.SubjectAlternativeName(names))
    assert identity(mixed.public_bytes(serialization.Encoding.DER)) == "one"


@pytest.mark.parametrize(
    "names",
    [None, [], [x509.RFC822Name("it@example.org")], [x509.IPAddress(ip_address("10.0.0.7")), x509.DNSName("one")]],
    ids=["no extension", "empty", "mail", "address first"],
)
def test_a_certificate_that_does_not_name_its_owner_is_refused(names: list[x509.GeneralName] | None) -> None:
    """A common name, a mail address or an address of the network is no identity, nor may one come first."""
    extensions = [] if names is None else [x509.SubjectAlternativeName(names)]
    with pytest.raises(ConfigError, match="does not name its owner"):
        identity(certificate_with(*extensions).public_bytes(serialization.Encoding.PEM))


@pytest.mark.parametrize("data", [b"", b"junk", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_is_refused(data: bytes | str) -> None:
    """Damaged or foreign input is one clear error."""
    with pytest.raises(ConfigError, match=r"not an X\.509 certificate"):
        identity(data)
