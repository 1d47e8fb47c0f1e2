"""Files of mutual TLS are refused before anything listens if they do not fit together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tablepuppet as tp
from tablepuppet.party.config import TlsPaths
from tablepuppet.party.tls_files import read_tls_files
from tablepuppet.privacy.certificates import issue, new_authority


def tls(folder: Path, cert: str = "bank.crt", key: str = "bank.key", ca: str = "ca.crt") -> TlsPaths:
    """Settings that name files of a folder."""
    return TlsPaths(*(str(folder / name) for name in (cert, key, ca)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An authority and the certificates of a bank and a shop."""
    new_authority(tmp_path)
    issue(tmp_path, "bank")
    issue(tmp_path, "shop")
    return tmp_path


def test_files_that_fit(folder: Path) -> None:
    """The owner's name and the contents are told; the key is in no repr."""
    found = read_tls_files(tls(folder), "party")
    assert found.name == "bank"
    assert found.key == (folder / "bank.key").read_bytes()
    assert "PRIVATE" not in repr(found)


def test_files_that_do_not_fit(folder: Path) -> None:
    """A missing file, another's key, a key that others can read, no certificate, one of the past: each is named."""
    issue(folder, "old", start=datetime.now(UTC) - timedelta(days=9), days=3)
    (folder / "junk").write_text("junk")
    (folder / "junk").chmod(0o600)
    for settings, message in (
        (tls(folder, cert="nowhere"), r"cannot read tls\.cert .*nowhere"),
        (tls(folder, key="nowhere"), r"tls\.key .*nowhere' does not exist"),
        (tls(folder, key="shop.key"), r"tls\.key .*shop\.key' is not the key of .*bank\.crt"),
        (tls(folder, key="junk"), r"tls\.key .*junk' is not a private key"),
        (tls(folder, cert="junk"), r"tls\.cert .*junk': this is not an X\.509 certificate"),
        (tls(folder, ca="junk"), r"tls\.ca .*junk' holds no certificate"),
        (tls(folder, cert="ca.crt"), r"tls\.cert .*ca\.crt': the certificate does not name its owner"),
        (tls(folder, cert="old.crt", key="old.key"), r"tls\.cert .*old\.crt' is not good today"),
    ):
        with pytest.raises(tp.ConfigError, match=message):
            read_tls_files(settings, "party")
    (folder / "bank.key").chmod(0o640)
    with pytest.raises(tp.ConfigError, match="open to other users"):
        read_tls_files(tls(folder), "party")
