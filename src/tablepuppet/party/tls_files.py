"""The files of mutual TLS that a party file names: read, and known to fit together before anything listens."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from tablepuppet.errors import ConfigError
from tablepuppet.party.config import TlsPaths
from tablepuppet.privacy.certificates import Role, identity, roles_of
from tablepuppet.store.files import read_private_file

SOON = 30  # days before the end of a certificate from which on it is warned of


@dataclass(frozen=True)
class TlsFiles:
    """Certificate, private key and authorities in PEM, the name that the certificate gives its owner, and a warning if
    it is also good for the other end of a connection.
    """

    name: str
    certificate: bytes
    key: bytes = field(repr=False)
    authorities: bytes
    warning: str = ""


def read_tls_files(tls: TlsPaths, role: Role) -> TlsFiles:
    """Read the files; ConfigError unless the certificate names its owner, is good today and for the role, and belongs
    to the key.
    """
    key = read_private_file(Path(tls.key), "tls.key")
    certificate, authorities = _read(tls.cert, "tls.cert"), _read(tls.ca, "tls.ca")
    try:
        x509.load_pem_x509_certificates(authorities)
    except ValueError as error:
        raise ConfigError(f"tls.ca {tls.ca!r} holds no certificate in PEM") from error
    try:
        name = identity(certificate)
    except ConfigError as error:
        raise ConfigError(f"tls.cert {tls.cert!r}: {error}") from None
    _check_pair(x509.load_pem_x509_certificate(certificate), key, tls)
    roles = roles_of(certificate)
    again = f"issue a new one with 'tablepuppet certs issue {name} --{role}'"
    if role not in roles:
        does = "serve" if role == "party" else "call parties"
        raise ConfigError(f"tls.cert {tls.cert!r} cannot {does}: its extended key usage is for the other end; {again}")
    also = "call parties in this name" if role == "party" else "serve in this name"
    warning = f"tls.cert {tls.cert!r} is for both ends of TLS: whoever has its key can also {also}; {again}"
    return TlsFiles(name, certificate, key, authorities, warning if len(roles) > 1 else "")


def expiry(certificate: bytes) -> datetime:
    """When a certificate in PEM ends."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def ends_soon(certificate: bytes) -> str:
    """A warning, if a party's certificate ends within `SOON` days."""
    left = (expiry(certificate) - datetime.now(UTC)).days
    days = max(left, 0)
    return "" if left >= SOON else f"the certificate of this party ends in {days} days; issue a new one, then reload"


def _read(path: str, setting: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {setting} {path!r}: {error.strerror}") from error


def _check_pair(certificate: x509.Certificate, key: bytes, tls: TlsPaths) -> None:
    if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
        raise ConfigError(f"tls.cert {tls.cert!r} is not good today; issue a new one")
    try:
        public = load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The cause is not in the error: it may quote the key.
        raise ConfigError(f"tls.key {tls.key!r} is not a private key in PEM without a password") from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if public.public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise ConfigError(f"tls.key {tls.key!r} is not the key of {tls.cert!r}; name the two files of one certificate")
