"""Runs that are stopped, refused or repeated: what is in the run folder then, and what the next command says."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tablepuppet as tp
from tablepuppet.cli import main
from tablepuppet.errors import ConfigError
from tablepuppet.jobs import Run
from tablepuppet.run_folder import RunFolder
from tablepuppet.runs import interrupts
from tablepuppet.runs.events import Event
from tablepuppet.runs.progress import ProgressReader
from tablepuppet.wire.message_file import DamagedError
from tablepuppet.wire.protocol import AwayError, BusyError, LostError, UnfitError
from tablepuppet.wire.record import Record, recorded_sessions
from tests.small_job import write_job

Command = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_job(tmp_path)


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(logging.getLogger("tablepuppet"), "propagate", True)  # and put back
    monkeypatch.setattr(interrupts, "_received", None)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["tablepuppet", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    return run


class Swallows:
    """Its finalizer is interrupted: Python throws away what is raised there."""

    def __init__(self, how: signal.Signals):
        self.how = how

    def __del__(self) -> None:
        os.kill(os.getpid(), self.how)


def stop_at(
    monkeypatch: pytest.MonkeyPatch, event_name: str, how: signal.Signals = signal.SIGINT, *, lost: bool = False
) -> None:
    """Send this process a signal when something happens first, if ``lost`` where the exception is thrown away."""
    read = ProgressReader.__call__
    sent: list[Event] = []

    def reading(reader: ProgressReader, event: Event) -> None:
        read(reader, event)
        if event.name == event_name and not sent:
            sent.append(event)
            Swallows(how) if lost else os.kill(os.getpid(), how)

    monkeypatch.setattr(ProgressReader, "__call__", reading)


@pytest.fixture
def undisturbed(folder: Path) -> Any:
    """The metrics of a run that nobody stops."""
    (folder / "other.toml").write_text((folder / "job.toml").read_text().replace("runs/returns", "runs/other"))
    return Run.to_train(folder / "other.toml", lambda event: None).train()["metrics"]


@pytest.mark.parametrize("lost", [False, True], ids=["raised", "swallowed"])
@pytest.mark.parametrize(
    ("event", "how"),
    [("open", signal.SIGINT), ("joined", signal.SIGTERM), ("fit", signal.SIGINT), ("fitted", signal.SIGHUP)],
)
def test_a_run_that_is_stopped_is_kept(
    command: Command, monkeypatch: pytest.MonkeyPatch, undisturbed: Any, event: str, how: signal.Signals, lost: bool
) -> None:
    """Wherever a signal comes, and if it is swallowed there: the run ends, its folder stays, and resume ends it."""
    with monkeypatch.context() as patched:
        stop_at(patched, event, how, lost=lost)
        code, out, said = command("train", "job.toml")
    assert (code, out) == (128 + how, "")
    assert said.splitlines()[-1] == "stopped; `tablepuppet resume runs/returns` starts it again"
    assert "Traceback (most recent call last)" not in said.split("Exception ignored")[0]
    assert [path.name for path in Path("runs/returns").iterdir()] == ["record"]
    for verb in ("evaluate", "predict"):
        code, _, said = command(verb, "runs/returns")
        assert code == 1
        assert "the run in 'runs/returns' is not finished: `tablepuppet resume runs/returns` continues it" in said
    code, out, said = command("resume", "runs/returns", "--json")
    assert code == 0, said
    assert json.loads(out)["metrics"] == undisturbed
    assert command("evaluate", "runs/returns")[0] == 0
    assert not Path("runs/returns/record").exists()


@pytest.mark.parametrize("place", ["run_folder.RunFolder.write", "store.folder.ModelFolder.write"])
def test_a_run_stopped_while_it_is_written(command: Command, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Nothing half done: it is not finished until all is there, and resume writes it."""
    with monkeypatch.context() as patched:
        patched.setattr(f"tablepuppet.{place}", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        assert command("train", "job.toml")[0] == 130
    assert not Path("runs/returns/run.json").exists()
    assert "not finished" in command("evaluate", "runs/returns")[2]
    assert command("resume", "runs/returns")[0] == 0
    assert command("evaluate", "runs/returns")[0] == 0


def test_a_signal_when_all_is_done(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was stopped too late is finished, says so, and does not end with 0."""
    forget = RunFolder.forget

    def forgetting(folder: RunFolder) -> None:
        forget(folder)
        Swallows(signal.SIGINT)

    monkeypatch.setattr(RunFolder, "forget", forgetting)
    code, out, said = command("train", "job.toml")
    assert code == 130
    assert "run folder: runs/returns" in out
    assert said.splitlines()[-1] == "stopped, but its work was done already"
    assert command("evaluate", "runs/returns")[0] == 0


def test_what_other_code_makes_of_an_interrupt(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that raises another error instead, as DuckDB does, stops the run all the same: no traceback."""

    def interrupted(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None

    monkeypatch.setattr("tablepuppet.jobs.make_learner", lambda settings: interrupted())
    code, _, said = command("bench", "job.toml")
    assert (code, said) == (130, "stopped\n")


def test_a_finished_run_is_not_replaced(command: Command) -> None:
    """Neither a finished run nor one that can be resumed is replaced unless it is said; a refusal changes nothing."""
    assert command("train", "job.toml")[0] == 0
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    code, _, said = command("train", "job.toml")
    assert code == 1
    assert "'runs/returns' has a finished run; `--overwrite` replaces it, or name another output" in said
    assert {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()} == before
    assert command("train", "job.toml", "--overwrite")[0] == 0


def test_a_run_that_replaces_another(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, it can be resumed or begun anew; failed, the one before is there as it was."""
    assert command("train", "job.toml")[0] == 0
    model = Path("runs/returns/model/model.json").read_bytes()
    text = Path("job.toml").read_text()
    Path("job.toml").write_text(text + "[split]\nvalidation = 0.0001\n")
    assert command("train", "job.toml", "--overwrite")[0] == 1  # an empty side
    assert Path("runs/returns/model/model.json").read_bytes() == model
    assert command("evaluate", "runs/returns")[0] == 0
    Path("job.toml").write_text(text)
    with monkeypatch.context() as patched:
        stop_at(patched, "fit")
        code, _, stopped = command("train", "job.toml", "--overwrite")
    assert code == 130
    told = command("evaluate", "runs/returns")[2]
    assert "is not finished" in told
    way_back = "The finished run from before is still there: remove the folder 'runs/returns/record' to have it back"
    assert way_back in stopped
    assert way_back in told
    Path("runs/returns/record").rename("kept")
    assert command("evaluate", "runs/returns")[0] == 0
    Path("kept").rename("runs/returns/record")
    said = command("train", "job.toml")[2]
    assert "has a run that is not finished: `tablepuppet resume runs/returns` continues it; `--overwrite`" in said
    assert command("train", "job.toml", "--overwrite")[0] == 0
    assert command("evaluate", "runs/returns")[0] == 0


def test_one_process_at_a_time(folder: Path) -> None:
    """A run that another process trains is neither resumed nor replaced."""
    reader = lambda event: None  # noqa: E731
    run = Run.to_train(folder / "job.toml", reader)
    with pytest.raises(tp.ConfigError, match="another process is training"):
        Run.to_resume(folder / "runs/returns", reader)
    with pytest.raises(tp.ConfigError, match="another process is training"):
        Run.to_train(folder / "job.toml", reader, overwrite=True)
    run.train()
    assert Run.of_folder(folder / "runs/returns", reader).evaluate(None)[0] == "test"


def test_a_full_disk_leaves_the_finished_run(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is full while another run is written over it: one clear error, and the run from before as it was."""
    assert command("train", "job.toml")[0] == 0
    before = {path: path.read_bytes() for path in Path("runs").glob("**/*") if path.is_file()}
    Path("job.toml").write_text(Path("job.toml").read_text().replace("l2 = 0.01", "l2 = 1.0"))
    sync, code, times = os.fsync, 1, 0
    while code:
        left = times

        def full(handle: int) -> None:
            nonlocal left
            left -= stat.S_ISREG(os.fstat(handle).st_mode)
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(handle)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            code, _, said = command("train", "job.toml", "--overwrite")
        if code:
            assert "No space left on device" in said
            assert "Traceback" not in said
            assert {path: path.read_bytes() for path in Path("runs").glob("**/*") if path.is_file()} == before
        times += 1
    assert times > 5
    after = {path: path.read_bytes() for path in Path("runs").glob("**/*") if path.is_file()}
    assert after[Path("runs/returns/metrics.json")] != before[Path("runs/returns/metrics.json")]


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (LostError("gone"), True),
        (BusyError("no room on its disk"), True),
        (AwayError("database not available"), True),
        (UnfitError("expired"), True),
        (tp.PrivacyError("its policy"), False),
        (DamagedError("damaged"), False),
        (tp.PartyError("refused", limit="memory_bytes"), False),
    ],
)
def test_resume_is_advised_where_it_helps(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, goes_on: bool
) -> None:
    """After an error that would come again there is nothing to resume, and nothing says so."""

    def fail(_: Run) -> None:
        raise error

    monkeypatch.setattr(Run, "_train", fail)
    monkeypatch.setattr(tp.Federation, "has_services", True)
    said = command("train", "job.toml")[2]
    assert ("`tablepuppet resume runs/returns` goes on from here" in said) == goes_on
    assert Path("runs/returns/record").exists() == goes_on


def test_a_run_that_fails_leaves_nothing(command: Command) -> None:
    """An error of the data, or of the federation, is no run to resume; once parties have read, its events stay."""
    Path("job.toml").write_text(Path("job.toml").read_text() + "[split]\nvalidation = 0.0001\n")
    assert command("train", "job.toml")[0] == 1
    assert [path.name for path in Path("runs/returns").iterdir()] == ["failed.jsonl"]
    shutil.rmtree("runs")
    Path("federation.toml").write_text("[parties]\nstore = 'nonsense'\n")
    assert command("train", "job.toml")[0] == 1
    assert not Path("runs/returns").exists()


@pytest.mark.parametrize(
    ("output", "in_the_way", "message"),
    [
        ("file/run", "file", "the run folder 'file/run' cannot be written (Not a directory)"),
        ("file", "file", "the run folder 'file' cannot be written (File exists)"),
        ("/proc/run", None, "the run folder '/proc/run' cannot be written"),
        ("run", "run/metrics.json/", "'run/metrics.json' is in the way of the run's own files"),
        ("run", "run/record", "'run/record' is in the way of the run's own files"),
        ("run", "run/model", "'run/model' exists and is not a saved model"),
    ],
)
def test_output_that_cannot_be_written(
    command: Command, monkeypatch: pytest.MonkeyPatch, output: str, in_the_way: str | None, message: str
) -> None:
    """It is told before a party is asked anything, and what is there stays as it is."""
    Path("job.toml").write_text(Path("job.toml").read_text().replace("runs/returns", output))
    if in_the_way is not None:
        place = Path(in_the_way)
        place.parent.mkdir(exist_ok=True)
        place.mkdir() if in_the_way.endswith("/") else place.write_text("mine")
    monkeypatch.setattr(tp.Federation, "_describe", lambda *_: pytest.fail("a party was asked"))
    code, out, said = command("train", "job.toml")
    assert (code, out) == (1, "")
    assert said.startswith(f"error: {message}")
    assert in_the_way is None or Path(in_the_way).exists()


def test_other_paths_that_cannot_be_written(command: Command) -> None:
    """One line for each command that writes something, no traceback."""
    Path("file").touch()
    for arguments in (
        ("demo", "--folder", "file/x"),
        ("certs", "init", "--folder", "file/x"),
        ("keys", "new", "file/x"),
    ):
        code, _, said = command(*arguments)
        assert code == 1
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert "file" in said


def test_ctrl_c_in_a_process_of_its_own(folder: Path) -> None:
    """The same as a user meets it, with an interrupt that an import swallows: exit code 130, and how to go on."""
    code = (
        "import os, signal, sys\n"
        "from tablepuppet import cli, jobs\n"
        "class Swallows:\n"
        "    def __del__(self): os.kill(os.getpid(), signal.SIGINT)\n"
        "open_ = jobs.Federation.open\n"
        "def opening(*arguments): Swallows(); return open_(*arguments)\n"
        "jobs.Federation.open = opening\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "job.toml"], cwd=folder, capture_output=True, text=True, timeout=120,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever started the tests
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == "stopped; `tablepuppet resume runs/returns` starts it again"
    assert (folder / "runs/returns/record/run.json").exists()


@pytest.mark.parametrize("module", ["typer", "pyarrow", "duckdb", "tablepuppet.federation"])
def test_an_interrupt_while_the_command_line_loads(tmp_path: Path, module: str) -> None:
    """Ctrl-C before a command has begun ends it with 130 and one word, whichever library is being loaded."""
    code = (
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from tablepuppet.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "catalog", "federation.toml"], cwd=tmp_path, capture_output=True, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever started the tests
    )  # fmt: skip
    assert (done.returncode, done.stderr, done.stdout) == (130, "stopped\n", "")


@pytest.mark.parametrize("name", ["run.json", "job.toml"])
def test_a_run_folder_that_is_damaged(folder: Path, command: Command, name: str) -> None:
    """Whatever bit flips of what says which run it is: the error names the file, and --overwrite helps."""
    assert command("train", "job.toml")[0] == 0
    path = folder / "runs/returns" / name
    whole = path.read_bytes()
    run = RunFolder(folder / "runs" / "returns")
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ConfigError, match=f"{name}.* is damaged.*train the job again, with --overwrite"):
            run.base(run.path)
    code, _, said = command("evaluate", "runs/returns")
    assert code == 1
    assert f"{name}' is damaged" in " ".join(said.split())
    assert command("train", "job.toml", "--overwrite")[0] == 0
    assert command("evaluate", "runs/returns")[0] == 0


def test_a_list_of_sessions_that_is_damaged(tmp_path: Path) -> None:
    """A run does not go on from it; one that replaces it does not need it."""
    record = Record(tmp_path / "record")
    names = [record.new_session(), record.new_session()]
    assert recorded_sessions(tmp_path / "record") == names
    path = tmp_path / "record" / "sessions"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ConfigError, match=r"sessions' is damaged.*train it again, with --overwrite"):
            Record(tmp_path / "record")
