"""What is in deploy/ and in the walkthrough docs/deploy.md works, as far as one machine can show it."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tablepuppet.party.blind import new_blinding_key
from tests.party.policed import write_file
from tests.service.processes import COMMAND, free_port

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "tablepuppet-party@.service"


def shell_blocks(text: str) -> list[str]:
    """The blocks of a document that are fenced as sh and not marked as not to be tested."""
    found = re.finditer(r"^(<!-- no-test -->\n)?```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [match[2] for match in found if not match[1]]


def commands(folder: Path) -> Path:
    """A folder with `tablepuppet` and `python3` as they are here."""
    folder.mkdir()
    python = f'exec "{sys.executable}"'
    for name, call in (("python3", python), ("tablepuppet", f"{python} -m tablepuppet")):
        (folder / name).write_text(f'#!/bin/sh\n{call} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_walkthrough_runs(tmp_path: Path) -> None:
    """Every shell command of docs/deploy.md that one machine can run, in order; only the ports are others."""
    script = "set -euo pipefail\n" + "\n".join(shell_blocks((ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")))
    for port in ("8815", "8816"):
        script = script.replace(port, str(free_port()))
    (tmp_path / "walk").mkdir()
    path = f"{commands(tmp_path / 'bin')}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path / "walk",
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        shown, _ = shell.communicate(timeout=600)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, shown
    assert shown.count("test: accuracy") == 3  # after training, and evaluated twice
    assert "analyst | ok | LABELS" in shown
    walked = tmp_path / "walk"
    metrics = json.loads((walked / "analyst/runs/defaults/metrics.json").read_text())
    assert set(metrics) == {"train", "test"}
    assert metrics["test"]["auc"] > 0.95  # it learns something
    text = "".join(path.read_text() for path in walked.rglob("*.jsonl")) + shown
    assert "name 1" not in text
    assert not list(walked.glob("*/state/sessions/*/*"))  # a folder per caller


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_certificate_of_another_authority_is_good(tmp_path: Path) -> None:
    """What the openssl commands of the walkthrough make passes `party check`."""
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    script = "set -e\n" + "\n".join(block for block in shell_blocks(text) if "pki" in block)
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True, capture_output=True)
    new_blinding_key(tmp_path / "blinding.key")
    write_file(tmp_path, top='tls = { cert = "pki/bank.crt", key = "pki/bank.key", ca = "pki/ca.crt" }')
    done = subprocess.run(
        [*COMMAND, "party", "check", "party.toml", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    found = json.loads(done.stdout)
    assert (found["tls"], found["problems"]) == (True, [])
    assert not [warning for warning in found["warnings"] if "tls" in warning]


def start(folder: Path, notify: Path) -> subprocess.Popen[str]:
    """A party that is ready, and tells a socket so."""
    environment = os.environ | {"NOTIFY_SOCKET": str(notify)}
    command = [*COMMAND, "party", "serve", str(folder / "party.toml")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    assert "is ready at" in process.stdout.readline()
    return process


def test_the_service_manager_is_told(tmp_path: Path) -> None:
    """Readiness and stopping reach the socket of Type=notify; SIGTERM ends with 0; the health check agrees."""
    new_blinding_key(tmp_path / "blinding.key")
    file = write_file(tmp_path)
    file.write_text(file.read_text().replace("8815", str(free_port())))
    healthy = [sys.executable, str(DEPLOY / "healthcheck.py"), str(file)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        party = start(tmp_path, tmp_path / "notify")
        try:
            assert manager.recv(100) == b"READY=1"
            assert subprocess.run(healthy).returncode == 0
            party.terminate()
            assert manager.recv(100) == b"STOPPING=1"
            assert party.wait(60) == 0
        finally:
            party.kill()
            party.communicate()
    assert subprocess.run(healthy, capture_output=True).returncode == 1


def test_the_unit_is_one(tmp_path: Path) -> None:
    """systemd understands every line, as far as it is installed here; the command is ours."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    assert unit["Service"]["ExecStart"].split()[1:3] == ["party", "serve"]
    assert unit["Service"]["Type"] == "notify"
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    copy = tmp_path / "tablepuppet-party@bank.service"
    copy.write_text(UNIT.read_text().replace("/opt/tablepuppet/bin/tablepuppet", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
    assert copy.name not in done.stderr, done.stderr


def test_the_image_copies_what_is_there() -> None:
    """Every file that the Dockerfile copies exists and reaches the build; its entry point is a command of ours."""
    lines = re.sub(r"\\\n\s*", " ", (DEPLOY / "Dockerfile").read_text()).splitlines()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert [name for name in copied if not (ROOT / name).exists() or f"!{name}" not in ignored] == []
    [entry] = [json.loads(line.removeprefix("ENTRYPOINT ")) for line in lines if line.startswith("ENTRYPOINT ")]
    assert entry[:3] == ["tablepuppet", "party", "serve"]
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users == ["10001:10001"]


def test_alerts_and_dashboard_ask_for_metrics_that_there_are() -> None:
    """Names and labels are those of docs/policy.md; each alert says what to do. Prometheus itself is not run."""
    yaml = pytest.importorskip("yaml")
    listed = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
    known = {"up": {"job"}, "process_resident_memory_bytes": set[str](), "process_cpu_seconds_total": set[str]()}
    for names, labels in re.findall(r"^\| (`tablepuppet_[^|]*) \| ([^|]*) \|", listed, re.MULTILINE):
        for name in re.findall(r"tablepuppet_\w+", names):
            known[name] = set(filter(None, re.split(r", |\s+", labels)))
    [group] = yaml.safe_load((DEPLOY / "prometheus-alerts.yml").read_text())["groups"]
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    for query in [*asked, *(rule["expr"] for rule in group["rules"])]:
        found = re.findall(r"\b((?:tablepuppet|process)_\w+|up)\b(?:\{([^}]*)\})?", query)
        assert found, query
        assert query.count("(") == query.count(")")
        for name, matchers in found:
            labels = known[name.removesuffix("_bucket")] | {"instance"}
            used = set(re.findall(r"(\w+)(?:=|!=|=~)\"", matchers))
            used |= {each for by in re.findall(r"by \(([^)]*)\)", query) for each in by.split(", ")} - {"le"}
            assert used <= labels, query
