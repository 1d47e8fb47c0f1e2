"""The version of the software, and that of the protocol between a party and its callers."""

VERSION = "0.1.0"
PROTOCOL = 4
"""Another number whenever messages or ops change; `tests/wire/test_protocol.py` finds what changed under the same."""
