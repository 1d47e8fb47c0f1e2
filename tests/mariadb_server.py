"""A private MariaDB server: data, socket and port of its own, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pymysql
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tablepuppet.party.databases.servers import connection_options

# Debian keeps the server where only root looks.
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
SERVER = shutil.which("mariadbd", path=_PATH)
INSTALLER = shutil.which("mariadb-install-db", path=_PATH)
_SMALL = ("--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0")


@contextmanager
def running() -> Iterator[str]:
    """The URL of database ``test`` on a server, for a user who may do everything and has the password ``s3cret``."""
    # Not in pytest's own folder: another run may clear that away while the server is up.
    folder = Path(tempfile.mkdtemp(prefix="tablepuppet-my-"))
    try:
        _run(str(INSTALLER), "--auth-root-authentication-method=normal", "--skip-test-db", folder=folder)
        _certify(folder)
        process, port = _started(folder)
        try:
            with pymysql.connect(user="root", unix_socket=f"{folder}/socket") as connection:
                cursor = connection.cursor()
                cursor.execute("CREATE USER tester@'%' IDENTIFIED BY 's3cret'")
                cursor.execute("GRANT ALL ON *.* TO tester@'%' WITH GRANT OPTION")
                cursor.execute("CREATE DATABASE test")
            yield f"mysql://tester:s3cret@127.0.0.1:{port}/test"
        finally:
            process.terminate()
            process.wait(60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements with names in double quotes; the rows of the last one."""
    connection = pymysql.connect(**connection_options("test", url), sql_mode="ANSI_QUOTES", autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


@contextmanager
def new_database(url: str, name: str) -> Iterator[str]:
    """The URL of a database of that name, for as long as the context lasts."""
    execute(url, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    yield f"{url.rpartition('/')[0]}/{name}"
    execute(url, f"DROP DATABASE {name}")


def _options(folder: Path) -> list[str]:
    user = ["--user=root"] if os.geteuid() == 0 else []
    return ["--no-defaults", f"--datadir={folder}/data", *user]


def _run(program: str, *options: str, folder: Path) -> None:
    done = subprocess.run([program, *_options(folder), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _certify(folder: Path) -> None:
    """A certificate for 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mariadb")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    plain = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(plain)
    (folder / "cert.pem").write_bytes(certificate.public_bytes(encoding))


def _started(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    for _ in range(3):  # somebody else may take the port first
        port = _free_port()
        place = [f"--socket={folder}/socket", f"--port={port}", "--bind-address=127.0.0.1", f"--pid-file={folder}/pid"]
        with (folder / "log").open("wb") as log:
            secret = [f"--ssl-cert={folder}/cert.pem", f"--ssl-key={folder}/key.pem"]
            command = [str(SERVER), *_options(folder), *place, *secret, "--skip-name-resolve", *_SMALL]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        if _answers(process, folder):
            return process, port
        process.kill()
        process.wait()
    raise AssertionError((folder / "log").read_text())


def _answers(process: subprocess.Popen[bytes], folder: Path) -> bool:
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        try:
            pymysql.connect(user="root", unix_socket=f"{folder}/socket").close()
            return True
        except pymysql.Error:
            time.sleep(0.1)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
