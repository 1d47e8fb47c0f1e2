"""The version of the software, and that of the protocol between a party and its callers."""

VERSION = "0.1.0"
PROTOCOL = 11
"""Another number whenever messages, ops or digests change; `tests/wire/test_protocol.py` finds most of that."""
