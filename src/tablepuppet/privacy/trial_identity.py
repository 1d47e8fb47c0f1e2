"""Identities for parties in one process, issued by an authority in memory.

Within one process nobody must be hidden from anybody. These identities exist so that the code that runs between
organisations can be tried in one process.
"""

from __future__ import annotations

import threading
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from tablepuppet.privacy.certificates import make_authority, make_certificate, private_pem
from tablepuppet.privacy.signed_keys import Identity

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
