"""Why a party cannot be connected to: whether it hangs up on the caller's certificate, or shows that of another.

A party that refuses a certificate closes the connection without a word. So does one that is gone, or a broken line.
Here a second connection distinguishes them: it shows no certificate, so that no key is needed, and sends nothing. What
it finds is for error messages only.
"""

from __future__ import annotations

import socket
import ssl

from tablepuppet.errors import ConfigError
from tablepuppet.privacy.certificates import identity

PATIENCE = 3.0  # seconds


def hangs_up(host: str, port: int, authority: bytes) -> bool:
    """Whether a service proves to be of the ``authority`` (PEM), and then ends the connection of a nameless caller."""
    context = ssl.create_default_context(cadata=authority.decode())
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout=PATIENCE) as line,
            context.wrap_socket(line, server_hostname=host) as secured,
        ):
            return _is_ended(secured)
    except (OSError, ValueError):  # what cannot be reached, or is no such service
        return False


def shown_by(host: str, port: int, authority: bytes) -> str | None:
    """The owner of the certificate that a service of the ``authority`` (PEM) shows; None if it shows none that names
    its owner.
    """
    context = ssl.create_default_context(cadata=authority.decode())
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout=PATIENCE) as line,
            context.wrap_socket(line) as secured,
        ):
            return identity(secured.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError, ConfigError):
        return None


def _is_ended(secured: ssl.SSLSocket) -> bool:
    """Whether the other side ends the connection, where a service that takes the caller would speak first."""
    try:
        return not secured.recv(1)
    except ConnectionResetError:
        return True
