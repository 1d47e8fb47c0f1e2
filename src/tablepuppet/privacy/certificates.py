"""A small certificate authority for trials, and the name in a certificate.

Input: a folder and an owner's name. Output: ``ca.key`` and ``ca.crt``, then ``NAME.key`` and ``NAME.crt``. A
certificate is for one end of a TLS connection, by its extended key usage: a party's cannot call, an analyst's cannot
serve. Whoever holds ``ca.key`` can impersonate anybody: it stays with the person who issues. In production, use your
own certificates; their SubjectAlternativeName must begin with the owner's name, as a DNS name.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tablepuppet.errors import ConfigError
from tablepuppet.store.files import read_private_file, write_new_file

CA = "ca"
CA_DAYS = 3650
HERE = ("localhost", "127.0.0.1")  # the hosts of a certificate if none is given
SKEW = datetime.timedelta(minutes=5)  # clocks of parties may differ by this
Role = Literal["party", "analyst"]
ENDS: dict[Role, x509.ObjectIdentifier] = {
    "party": ExtendedKeyUsageOID.SERVER_AUTH,
    "analyst": ExtendedKeyUsageOID.CLIENT_AUTH,
}
_LABEL = "[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_DNS_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_MALFORMED = (ValueError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)


@dataclass(frozen=True)
class CertificateFiles:
    """Where a new certificate and its private key lie, whom it names, and until when it is good."""

    certificate: Path
    key: Path
    names: tuple[str, ...]
    expires: datetime.datetime


def new_authority(folder: Path) -> CertificateFiles:
    """Make the key and the certificate of an authority, good for ten years."""
    certificate, key = make_authority()
    return _write(folder, CA, key, certificate, ())


def make_authority() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The certificate and the key of a new authority, good for ten years."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"TablePuppet trial CA {secrets.token_hex(4)}")
    start = datetime.datetime.now(datetime.UTC)
    builder = _builder(subject, subject, key.public_key(), start, CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(ca=True), critical=True)
    return builder.sign(key, hashes.SHA256()), key


def issue(
    folder: Path,
    name: str,
    hosts: Sequence[str] = (),
    days: int = 365,
    start: datetime.datetime | None = None,
    role: Role | None = None,
) -> CertificateFiles:
    """Make a key and a certificate for an owner, signed by the authority in ``folder``.

    ``hosts`` are the DNS names and IP addresses where the owner is reached. The certificate is good for ``days``
    from ``start``, by default now, and for the ``role``; without one for both ends, as those of older software are.
    """
    if name.lower() == CA:
        raise ConfigError(f"the name {name!r} is taken by the authority itself: choose another")
    names = _alternative_names(name, hosts or HERE)  # a wrong name is an error before the authority is read
    authority, authority_key = _load_authority(folder)
    for host in hosts:
        if host.lower() != name.lower() and (folder / f"{host}.crt").exists():
            raise ConfigError(f"host {host!r} is the name of another owner, whom {name!r} could be taken for")
    certificate, key = make_certificate(authority, authority_key, name, hosts, days, start, role)
    return _write(folder, name, key, certificate, tuple(str(each.value) for each in names))


def make_certificate(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    name: str,
    hosts: Sequence[str] = (),
    days: int = 365,
    start: datetime.datetime | None = None,
    role: Role | None = None,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A certificate for an owner, and its new key; see `issue`."""
    names = _alternative_names(name, hosts or HERE)
    start = start or datetime.datetime.now(datetime.UTC)
    _check_days(days, start, authority)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_subject(name), authority.subject, key.public_key(), start, days)
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(ca=False), True),
        (x509.ExtendedKeyUsage(list(ENDS.values()) if role is None else [ENDS[role]]), False),
        (x509.SubjectAlternativeName(names), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False),
    ]
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(authority_key, hashes.SHA256()), key


def identity(certificate: bytes | str) -> str:
    """The name of a certificate's owner: the DNS name that is first in its SubjectAlternativeName.

    ``certificate`` is PEM or DER; of a chain in PEM, the first counts. A name of another kind before the DNS name is
    an error: gRPC sends the other end the first name of any kind, which would then be somebody else's.
    """
    data = certificate.encode() if isinstance(certificate, str) else certificate
    try:
        is_pem = b"-----BEGIN" in data
        loaded = x509.load_pem_x509_certificate(data) if is_pem else x509.load_der_x509_certificate(data)
        names = list(loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        names = []
    except _MALFORMED as error:
        raise ConfigError("this is not an X.509 certificate in PEM or DER") from error
    if not names or not isinstance(names[0], x509.DNSName) or not names[0].value:
        raise ConfigError(
            "the certificate does not name its owner: the first entry of its SubjectAlternativeName must be "
            "a DNS name, that of the owner; addresses and others may follow"
        )
    return names[0].value


def roles_of(certificate: bytes) -> frozenset[Role]:
    """Which ends a certificate in PEM is for, by its extended key usage; without one it is for both."""
    loaded = x509.load_pem_x509_certificate(certificate)
    try:
        uses = loaded.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return frozenset(ENDS)
    return frozenset(role for role, use in ENDS.items() if use in uses)


def hosts_of(certificate: bytes) -> tuple[str, ...]:
    """The names and addresses where the owner of a certificate in PEM is reached."""
    loaded = x509.load_pem_x509_certificate(certificate)
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress))


def _alternative_names(name: str, hosts: Sequence[str]) -> list[x509.GeneralName]:
    """The owner's name first, then the hosts, none of them twice."""
    if len(name) > 63 or not _DNS_NAME.fullmatch(name) or _address(name) is not None:
        raise ConfigError(
            f"{name!r} cannot be an owner's name: use up to 63 letters, digits, '-', '_' and '.', as in a DNS name"
        )
    names: list[x509.GeneralName] = [x509.DNSName(name)]
    for host in hosts:
        address = _address(host)
        if address is None and (len(host) > 253 or not _DNS_NAME.fullmatch(host)):
            raise ConfigError(f"certificate of {name!r}: host {host!r} is neither a DNS name nor an IP address")
        names.append(x509.DNSName(host) if address is None else x509.IPAddress(address))
    return list(dict.fromkeys(names))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _check_days(days: int, start: datetime.datetime, authority: x509.Certificate) -> None:
    longest = (authority.not_valid_after_utc - start).days
    if longest < 1:
        raise ConfigError("the authority's certificate has expired: make a new one with 'tablepuppet certs init'")
    if not 1 <= days <= longest:
        raise ConfigError(f"a certificate cannot be good for {days} days: 1 to {longest}, as long as its authority")


def _load_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_path, key_path = folder / f"{CA}.crt", folder / f"{CA}.key"
    if not certificate_path.exists() and not key_path.exists():
        raise ConfigError(f"folder {str(folder)!r} holds no authority: make one with 'tablepuppet certs init'")
    pem = read_private_file(key_path, "CA key")
    try:
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        key = serialization.load_pem_private_key(pem, password=None)
    except OSError as error:
        raise ConfigError(f"cannot read CA certificate {str(certificate_path)!r}: {error.strerror}") from error
    except (*_MALFORMED, TypeError):  # without the cause: it may quote the key
        raise ConfigError(
            f"folder {str(folder)!r}: the CA's key or certificate is not in PEM without a password"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError(f"folder {str(folder)!r}: the CA's key does not belong to its certificate")
    return certificate, key


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - SKEW)
        .not_valid_after(start + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key in PEM, without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(
    folder: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, names: tuple[str, ...]
) -> CertificateFiles:
    """Write both files, or neither."""
    files = CertificateFiles(folder / f"{name}.crt", folder / f"{name}.key", names, certificate.not_valid_after_utc)
    write_new_file(files.key, private_pem(key), "private key")
    try:
        write_new_file(
            files.certificate, certificate.public_bytes(serialization.Encoding.PEM), "certificate", mode=0o644
        )
    except ConfigError:
        files.key.unlink()
        raise
    return files
