"""An operator's day with a party that is a process: a job is asked for, approved, trained, and is in the log."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.service.processes import Services, run_command

JOB = """
federation = "federation.toml"
sql = "SELECT x, y FROM items WHERE x > 0.03"
label = "y"
output = "run"
purpose = "returns of 2026"
[learner]
kind = "LinearRegression"
rounds = 2
"""


def test_a_job_is_approved_and_trained_and_the_log_is_whole(tmp_path: Path) -> None:
    """`train` ends with 3 until the operator has approved the job, then goes through unchanged.

    The log names address, run and purpose, is whole, goes to syslog too, and shows what was changed in it; `check
    --diff` sees what the file says otherwise, until the party has read it again.
    """
    rng = np.random.default_rng(0)
    tables = {"items": pa.table({"x": rng.random(90), "y": rng.random(90)})}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as syslog:
        syslog.bind(("127.0.0.1", 0))
        syslog.settimeout(60.0)
        extra = f'syslog = "127.0.0.1:{syslog.getsockname()[1]}"\nrequire_approval = true\nrequire_purpose = true'
        with Services(tmp_path, {"store": tables}, extra) as services:
            services.write_federation()
            party = services.parties["store"]
            file, job = str(party.file), tmp_path / "job.toml"
            job.write_text(JOB)
            waits = run_command("train", str(job))
            assert (waits.returncode, "waiting for approval of the operator of party 'store'" in waits.stderr) == (
                3,
                True,
            )
            [listed] = json.loads(run_command("party", "jobs", file, "--json").stdout)
            assert (listed["state"], listed["caller"], listed["purpose"]) == ("waiting", "analyst", "returns of 2026")
            assert "WHERE (x > 0.03)" in run_command("party", "approve", file).stdout
            assert run_command("party", "approve", file, listed["id"][:8], "--until", "2999-01-01").returncode == 0
            trained = run_command("train", str(job))
            assert trained.returncode == 0, trained.stderr
            party.kill()
            party.start()
            assert run_command("evaluate", str(tmp_path / "run")).returncode == 0
            assert run_command("party", "approve", file, listed["id"], "--deny").returncode == 0
            assert run_command("evaluate", str(tmp_path / "run")).returncode == 3

            found = json.loads(run_command("party", "audit", file, "--json").stdout)
            assert (found["whole"], found["keyed"], found["problems"], found["notes"]) == (True, True, [], [])
            opened = [line for line in found["lines"] if line["verb"] == "open"]
            over_tables = [line["outcome"] for line in opened if line["tables"]]
            assert over_tables == ["denied", "ok", "ok", "denied"]
            assert all(line["address"].startswith("127.0.0.1:") and line["run"] for line in opened)
            assert {line["purpose"] for line in opened} == {"returns of 2026"}
            first = json.loads(syslog.recv(1 << 16).decode().partition("tablepuppet-store: ")[2])
            assert first == found["lines"][0]

            assert "is served as the file says" in run_command("party", "check", file, "--diff").stdout
            text = party.file.read_text()
            changed = text.replace("min_rows = 1\n", "min_rows = 7\n").replace('["analyst"]', '["analyst", "eve"]')
            party.file.write_text(changed)
            differs = run_command("party", "check", file, "--diff").stdout
            assert "added: allow: the file has it, 'eve'" in differs
            assert "changed: tables.items.min_rows: 1 is served, the file says 7" in differs
            assert "2 differences: SIGHUP makes the party read its file again." in differs
            assert party.process is not None
            party.process.send_signal(signal.SIGHUP)
            while "is served as the file says" not in run_command("party", "check", file, "--diff").stdout:
                time.sleep(0.05)
        log = tmp_path / "store.jsonl"
        log.write_bytes(log.read_bytes().replace(b'"denied"', b'"ok"    '))
        broken = run_command("party", "audit", file)
        assert (broken.returncode, "was changed: its mark does not fit" in broken.stderr) == (1, True)
        assert "Verdict: the log is broken: 2 errors" in broken.stdout
        away = run_command("party", "check", file, "--diff")
        assert (away.returncode, "is not being served" in away.stderr) == (1, True)
