"""`tablepuppet certs` and `tablepuppet keys`, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tablepuppet.party.blind import read_blinding_key
from tablepuppet.privacy.certificates import identity, roles_of
from tests.command_line import tablepuppet


def test_certificates_for_a_trial(tmp_path: Path) -> None:
    """An authority, then a certificate; programs get paths, names and the end of its life."""
    begun = tablepuppet(tmp_path, "certs", "init", fresh=True)
    assert begun.returncode == 0, begun.stderr
    assert "certs/ca.crt" in begun.stdout
    made = tablepuppet(
        tmp_path,
        "certs",
        "issue",
        "bank_east",
        "--party",
        "--host",
        "bank.example",
        "--host",
        "10.0.0.7",
        "--days",
        "9",
        "--json",
    )
    facts = json.loads(made.stdout)
    assert facts["names"] == ["bank_east", "bank.example", "10.0.0.7"]
    assert identity((tmp_path / facts["certificate"]).read_bytes()) == "bank_east"
    assert roles_of((tmp_path / facts["certificate"]).read_bytes()) == {"party"}
    caller = json.loads(tablepuppet(tmp_path, "certs", "issue", "analyst", "--analyst", "--json").stdout)
    assert roles_of((tmp_path / caller["certificate"]).read_bytes()) == {"analyst"}
    assert "PRIVATE KEY" in (tmp_path / facts["key"]).read_text()
    assert "PRIVATE KEY" not in begun.stdout + made.stdout + made.stderr


def test_a_blinding_key(tmp_path: Path) -> None:
    """The key is in the file and nowhere else."""
    made = tablepuppet(tmp_path, "keys", "new", "blinding.key", fresh=True)
    assert made.returncode == 0, made.stderr
    assert len(read_blinding_key(tmp_path / "blinding.key")) == 32
    assert (tmp_path / "blinding.key").read_text().split()[1] not in made.stdout + made.stderr
    assert json.loads(tablepuppet(tmp_path, "keys", "new", "two.key", "--json").stdout) == {"key": "two.key"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("certs", "issue", "bank", "--party"), "folder 'certs' holds no authority"),
        (("certs", "issue", "../bank", "--analyst"), "'../bank' cannot be an owner's name"),
        (("certs", "issue", "bank"), "add --party if 'bank' serves tables, --analyst if it calls"),
        (("certs", "issue", "bank", "--party", "--analyst"), "say whose certificate it is"),
        (("keys", "new", "taken"), "blinding key 'taken' exists and is kept"),
    ],
)
def test_a_refusal_is_one_message_and_exit_code_1(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """Bad input ends in a readable error on standard error, and nothing is written."""
    (tmp_path / "taken").touch()
    done = tablepuppet(tmp_path, *arguments)
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("group", ["certs", "keys"])
def test_a_group_alone_tells_its_commands(tmp_path: Path, group: str) -> None:
    """Without a command it is wrong usage, answered with help."""
    done = tablepuppet(tmp_path, group)
    assert done.returncode == 2
    assert "Usage" in done.stdout + done.stderr
