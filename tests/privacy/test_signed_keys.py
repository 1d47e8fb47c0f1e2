"""Keys passed on by somebody in the middle: only the owner's own, for this session and table, are taken."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

import tablepuppet as tp
from tablepuppet.privacy.certificates import make_authority, make_certificate, private_pem
from tablepuppet.privacy.signed_keys import Hello, Identity, TrialAuthority, roster_digest

PUBLIC = b"p" * 32


@pytest.fixture(scope="module")
def trial() -> TrialAuthority:
    return TrialAuthority()


@pytest.fixture(scope="module")
def hello(trial: TrialAuthority) -> Hello:
    return trial.identity("bank_east").hello("s1", "cards", PUBLIC)


def refused(reader: Identity, hello: Hello, told: str, session: str = "s1", table: str = "cards") -> None:
    with pytest.raises(tp.PrivacyError, match=told):
        reader.name_of(hello, session, table)


def test_a_peer_is_known_by_its_certificate(trial: TrialAuthority, hello: Hello) -> None:
    """Whoever trusts the authority learns the name of the owner."""
    assert trial.identity("bank_west").name_of(hello, "s1", "cards") == "bank_east"


def test_a_swapped_key_is_refused(trial: TrialAuthority, hello: Hello) -> None:
    """Somebody in the middle puts the own key in place of the owner's."""
    refused(trial.identity("bank_west"), replace(hello, public=b"q" * 32), "is not signed by it")


def test_a_swapped_certificate_is_refused(trial: TrialAuthority, hello: Hello) -> None:
    """The signature is not that of another certificate, though it is a good one."""
    other = trial.identity("analyst")
    refused(trial.identity("bank_west"), replace(hello, certificates=other.certificates), "is not signed by it")


@pytest.mark.parametrize(("session", "table"), [("s2", "cards"), ("s1", "c"), ("s1c", "ards")])
def test_a_key_of_another_session_or_table_is_refused(
    trial: TrialAuthority, hello: Hello, session: str, table: str
) -> None:
    """A hello is good for one table of one session, whatever is on record of others."""
    refused(trial.identity("bank_west"), hello, "another session", session, table)


def test_a_foreign_certificate_is_refused(hello: Hello) -> None:
    """One of another authority."""
    refused(TrialAuthority().identity("bank_west"), hello, "does not come from an authority")


def test_a_certificate_that_names_itself_an_authority_is_refused(trial: TrialAuthority) -> None:
    """A peer's certificate cannot vouch for another one."""
    peer = trial.identity("bank_east")
    [vouching], key = x509.load_pem_x509_certificates(peer.certificates), _key_of(peer)
    made, made_key = make_certificate(vouching, key, "bank_north", days=1)
    chain = made.public_bytes(Encoding.PEM) + peer.certificates
    forged = Identity(chain, private_pem(made_key), peer.authorities).hello("s1", "cards", PUBLIC)
    refused(trial.identity("bank_west"), forged, "does not come from an authority")


def test_an_expired_certificate_is_refused() -> None:
    """One that was good last year."""
    authority, key = _authority()
    reader = _issued("bank_west", ec.generate_private_key(ec.SECP256R1()))
    old, old_key = make_certificate(authority, key, "bank_east", days=1, start=datetime.now(UTC) - timedelta(days=9))
    identity = Identity(old.public_bytes(Encoding.PEM), private_pem(old_key), reader.authorities)
    refused(reader, identity.hello("s1", "cards", PUBLIC), "not good today")


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        rsa.generate_private_key(65537, 2048),
        ed25519.Ed25519PrivateKey.generate(),
    ],
    ids=["EC", "RSA", "Ed25519"],
)
@pytest.mark.parametrize("use", [ExtendedKeyUsageOID.SERVER_AUTH, None])
def test_certificates_of_many_kinds_sign(key: Any, use: Any) -> None:
    """Elliptic curves, RSA and Ed25519; of a server, or of no stated use."""
    hello = _issued("bank_east", key, use).hello("s1", "cards", PUBLIC)
    reader = _issued("bank_west", ec.generate_private_key(ec.SECP256R1()))
    assert reader.name_of(hello, "s1", "cards") == "bank_east"
    refused(reader, replace(hello, public=b"q" * 32), "is not signed by it")


def test_a_certificate_for_something_else_is_refused() -> None:
    """One for signing mail is none of a party; nor is one for calling parties."""
    reader = _issued("bank_west", ec.generate_private_key(ec.SECP256R1()))
    for use in (ExtendedKeyUsageOID.EMAIL_PROTECTION, ExtendedKeyUsageOID.CLIENT_AUTH):
        other = _issued("bank_east", ec.generate_private_key(ec.SECP256R1()), use)
        refused(reader, other.hello("s1", "cards", PUBLIC), "does not come from an authority")


@pytest.mark.parametrize("certificates", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAA==\n"])
def test_what_is_no_certificate_is_refused(trial: TrialAuthority, hello: Hello, certificates: bytes) -> None:
    """Anything may come over the wire."""
    refused(trial.identity("bank_west"), replace(hello, certificates=certificates), "cannot be read")


def test_a_roster_is_of_names_and_keys_in_any_order() -> None:
    """The digest is the same in any order, and another one if a name, a key, the session or the table is."""
    peers = [("a", b"1"), ("b", b"2"), ("c", b"3")]
    digest = roster_digest("s", "t", peers)
    assert roster_digest("s", "t", peers[::-1]) == digest
    others = [
        roster_digest("s", "t", [("a", b"1"), ("b", b"2"), ("c", b"4")]),
        roster_digest("s", "t", [("a", b"1"), ("b", b"2"), ("d", b"3")]),
        roster_digest("s", "u", peers),
        roster_digest("r", "t", peers),
    ]
    assert len({digest, *others}) == 5


def test_the_key_is_in_no_text(trial: TrialAuthority) -> None:
    """An identity that is printed does not tell its key."""
    assert "PRIVATE" not in repr(trial.identity("bank_east"))


@cache
def _authority() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    return make_authority()


def _key_of(identity: Identity) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(identity.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _issued(name: str, key: Any, use: Any = None) -> Identity:
    """An identity as another tool would issue it."""
    authority, authority_key = _authority()
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name), x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    if use is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    certificate = builder.sign(authority_key, hashes.SHA256())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Identity(certificate.public_bytes(Encoding.PEM), pem, authority.public_bytes(Encoding.PEM))
