"""Whether the party of a party file listens: exit code 0 if it does, 1 if not. For the container's HEALTHCHECK.

It only connects: a certificate that could ask more would have to lie beside the party, and be allowed to call it.
"""

import socket
import sys
import tomllib
from pathlib import Path

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def main(path: str) -> int:
    """Connect to where the party listens."""
    host, _, port = tomllib.loads(Path(path).read_text(encoding="utf-8"))["listen"].rpartition(":")
    host = host.strip("[]")
    try:
        socket.create_connection((EVERYWHERE.get(host, host), int(port)), timeout=3).close()
    except OSError as error:
        print(f"nobody listens at {host}:{port}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
