"""Whether the party of a party file can work: exit code 0 if it can, 1 if not. For the container's HEALTHCHECK.

If the file sets `metrics`, it asks `/healthz` there, which asks the database. Else it only connects: a certificate
that could ask more would have to lie beside the party, and be allowed to call it.
"""

import socket
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def main(path: str) -> int:
    """Ask for the party's health, or connect to where it listens."""
    settings = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    metrics = settings.get("metrics")
    host, _, port = str(settings["listen"] if metrics is None else metrics).rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if metrics is not None:
        return _ask(EVERYWHERE.get(host, host), int(port))
    try:
        socket.create_connection((EVERYWHERE.get(host, host), int(port)), timeout=3).close()
    except OSError as error:
        print(f"nobody listens at {host}:{port}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def _ask(host: str, port: int) -> int:
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/healthz"
    try:
        urllib.request.urlopen(address, timeout=4).close()
    except (OSError, urllib.error.URLError) as error:
        print(f"{address}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
