"""Keys that peers exchange through an intermediary that they do not trust: the owner of a certificate signs its key.

Input: an owner's certificate and key, or a `Hello` of a peer. Output: a `Hello` that others can check, or the name of
the peer that sent it. The intermediary can drop hellos, but cannot change them.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    Policy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from tablepuppet.errors import ConfigError, PrivacyError
from tablepuppet.privacy.certificates import ENDS, Role, identity, make_authority, make_certificate, private_pem

_NOT_TLS = b" " * 64 + b"TablePuppet secure sums, version 1\0"
"""What every signed text begins with. It is longer than the part of a TLS handshake that the other end may choose, so
that no signature made for TLS is one of ours.
"""
_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


@dataclass(frozen=True)
class Hello:
    """A peer's key for the exchange: its certificates in PEM, the peer's own first, and the signature of that one."""

    certificates: bytes
    public: bytes
    signature: bytes


@dataclass(frozen=True)
class Identity:
    """A certificate with its key, and the authorities that others' certificates must come from; all in PEM."""

    certificates: bytes
    key: bytes = field(repr=False)
    authorities: bytes

    @cached_property
    def name(self) -> str:
        """The owner's name."""
        return identity(self.certificates)

    def sign(self, text: bytes) -> bytes:
        """A signature of the owner."""
        key = load_pem_private_key(self.key, None)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key.sign(_NOT_TLS + text, ec.ECDSA(hashes.SHA256()))
        if isinstance(key, rsa.RSAPrivateKey):
            return key.sign(_NOT_TLS + text, _PSS, hashes.SHA256())
        if isinstance(key, ed25519.Ed25519PrivateKey):
            return key.sign(_NOT_TLS + text)
        raise ConfigError("the key of the party's certificate is of a kind that signs no secure sums; use EC or RSA")

    def hello(self, session: str, table: str, public: bytes) -> Hello:
        """The owner's key for the exchange, for one table of one session."""
        return Hello(self.certificates, public, self.sign(_hello_text(session, table, public)))

    def name_of(self, hello: Hello, session: str, table: str) -> str:
        """The peer that a hello for this table and session comes from; PrivacyError if it cannot be verified."""
        self._check(hello.certificates, "party")
        name = _named(hello.certificates)
        if not has_signed(hello.certificates, hello.signature, _hello_text(session, table, hello.public)):
            raise PrivacyError(
                f"the key said to be that of {name!r} is not signed by it for this session and table: somebody between "
                "the parties has changed it, or it comes from another session"
            )
        return name

    def proof(self, host: str) -> bytes:
        """Proof for the party at ``host`` of who calls; that party cannot use it at another one."""
        return msgspec.msgpack.encode((self.certificates, self.sign(_caller_text(host)), host))

    def caller(self, proof: bytes, hosts: Sequence[str]) -> str:
        """Who calls, by the first DNS name of the certificate that a proof shows; ``hosts`` are the party's own names.

        PrivacyError if that is not certain: TLS alone would also take the common name of a certificate without names.
        """
        try:
            certificates, signature, host = msgspec.msgpack.decode(proof, type=tuple[bytes, bytes, str])
        except msgspec.MsgspecError:
            raise PrivacyError("the caller shows no certificate that can be read", rule="allow") from None
        try:
            name = identity(certificates)
        except ConfigError as error:
            raise PrivacyError(f"the caller is not known: {error}", rule="allow") from None
        self._check(certificates, "analyst")
        if not any(_is_at(host, each) for each in hosts) or not has_signed(certificates, signature, _caller_text(host)):
            raise PrivacyError(f"the certificate of {name!r} is not shown to this party by its owner", rule="allow")
        return name

    def _check(self, certificates: bytes, role: Role) -> None:
        """PrivacyError unless a certificate comes from one of the authorities, is good today, and for the role."""
        leaf, *between = _chain(certificates)
        store = Store(x509.load_pem_x509_certificates(self.authorities))
        ends = ExtensionPolicy.webpki_defaults_ee().may_be_present(
            x509.ExtendedKeyUsage, Criticality.AGNOSTIC, partial(_check_use, ENDS[role])
        )
        builder = PolicyBuilder().store(store)
        builder = builder.extension_policies(ca_policy=ExtensionPolicy.webpki_defaults_ca(), ee_policy=ends)
        try:
            builder.build_client_verifier().verify(leaf, between)
        except VerificationError as error:
            raise PrivacyError(
                f"a peer's certificate does not come from an authority that this party lists, or is not good today "
                f"({str(error).splitlines()[0]})"
            ) from None


def _check_use(
    use: x509.ObjectIdentifier, _: Policy, __: x509.Certificate, found: x509.ExtendedKeyUsage | None
) -> None:
    """Certificates of parties are those of servers, of callers those of clients; older ones are of both ends."""
    if found is not None and use not in found:
        raise ValueError("it is for the other end of TLS")


def roster_digest(session: str, table: str, peers: Sequence[tuple[str, bytes]]) -> bytes:
    """A digest of who takes part, in the order of names, and with which keys."""
    parts = [
        session.encode(),
        table.encode(),
        *(part for name, public in sorted(peers) for part in (name.encode(), public)),
    ]
    return _digest("roster", parts)


def has_signed(certificates: bytes, signature: bytes, text: bytes) -> bool:
    """Whether the key of a certificate, the first of these, has signed a text."""
    key = _chain(certificates)[0].public_key()
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, _NOT_TLS + text, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, _NOT_TLS + text, _PSS, hashes.SHA256())
        elif isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, _NOT_TLS + text)
        else:
            return False
    except (InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _caller_text(host: str) -> bytes:
    return _digest("caller", [host.lower().encode()])


def _is_at(host: str, name: str) -> bool:
    """Whether a host is called by a name of a certificate, which may begin with ``*.``"""
    host, name = host.lower(), name.lower()
    return host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:] != "")


def _hello_text(session: str, table: str, public: bytes) -> bytes:
    return _digest("hello", [session.encode(), table.encode(), public])


def _digest(kind: str, parts: Sequence[bytes]) -> bytes:
    """A digest of some texts and how long each is, so that no others have it."""
    found = hashlib.sha256(f"tablepuppet secure sum: {kind}\n".encode())
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def _chain(certificates: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(certificates)
    except ValueError:
        raise PrivacyError("a peer's certificate cannot be read") from None


def _named(certificates: bytes) -> str:
    try:
        return identity(certificates)
    except ConfigError as error:
        raise PrivacyError(f"a peer's certificate: {error}") from None


# Identities for parties in one process, issued by an authority in memory. Within one process nobody must be hidden from
# anybody. These identities exist so that the code that runs between organisations can be tried in one process.


DAYS = 30


class TrialAuthority:
    """An authority that is made when it is first needed, and gone with the process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # parties ask at the same time
        self._identities: dict[str, Identity] = {}

    @cached_property
    def _made(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        return make_authority()

    def identity(self, name: str) -> Identity:
        """The identity of a party: the same one each time."""
        with self._lock:
            if name not in self._identities:
                self._identities[name] = self._issued(name)
            return self._identities[name]

    def _issued(self, name: str) -> Identity:
        authority, authority_key = self._made
        certificate, key = make_certificate(authority, authority_key, name, days=DAYS)
        return Identity(certificate.public_bytes(Encoding.PEM), private_pem(key), authority.public_bytes(Encoding.PEM))
