"""What all commands share: their screen, the flag for programs, tables in files, logs in JSON, and how one is typed."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shlex
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tablepuppet.errors import ConfigError, without_controls

if TYPE_CHECKING:  # loaded when a command prints: `--version` needs none of it
    import pyarrow as pa
    from rich.console import Console
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
ParamOption = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE of $NAME in the SQL, such as since=2024-01-01; may repeat.", show_default=False),
]
PIPED_WIDTH = 120


class Screen:
    """Results on standard output; progress and warnings, read by ``reader``, on standard error.

    Where both are one terminal they share one console. Bars stop before a result is printed. Use as a context.
    """

    def __init__(self) -> None:
        from tablepuppet.runs.progress import ProgressReader

        self._results = results_console()
        self.reader = ProgressReader(self._results if _is_one_terminal() else None)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.rest()

    def print(self, what: Any) -> None:
        """Print a table, a panel, or a sentence in lines as wide as the terminal."""
        self.reader.rest()
        self._results.print(what, markup=False)

    def text(self, text: str) -> None:
        """Print sentences, without controls of a terminal: parties write some of the names."""
        self.reader.rest()
        print_text(text)

    def command(self, line: str) -> None:
        """Print a command, in one line however long: it may be copied."""
        self.reader.rest()
        typer.echo(f"  {line}")

    def json(self, value: Any) -> None:
        """Print a result for programs."""
        self.reader.rest()
        print_json(value)


def results_console() -> Console:
    """Standard output: as wide as the terminal; of one width where it is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)


def print_text(text: str) -> None:
    """Print sentences on standard output: on a terminal in lines that fit, elsewhere as they are."""
    from tablepuppet.runs.fitted_text import in_window

    typer.echo(in_window(without_controls(text)))


def _is_one_terminal() -> bool:
    """Whether standard output and standard error are the same terminal."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        return False
    return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())


def check_output(output: Path) -> None:
    """ConfigError unless a table can be written there, which is better known before the work than after."""
    if output.suffix not in (".parquet", ".csv"):
        raise ConfigError(f"cannot write {str(output)!r}: name a file that ends in .parquet or .csv")
    with _write_errors(output):
        if output.exists():
            os.close(os.open(output, os.O_WRONLY))
        with tempfile.NamedTemporaryFile(dir=output.parent, prefix=".new-"):
            pass


def write_output(table: pa.Table, output: Path) -> None:
    """Write a table whole or not at all."""
    with _write_errors(output), tempfile.TemporaryDirectory(dir=output.parent, prefix=".new-") as folder:
        from pyarrow import csv as pa_csv
        from pyarrow import parquet as pa_parquet

        draft = Path(folder) / output.name
        (pa_parquet.write_table if output.suffix == ".parquet" else pa_csv.write_csv)(table, draft)
        draft.replace(output)


def print_table(table: pa.Table) -> None:
    """Print a table as CSV: as it is for a program, without controls of a terminal on one."""
    import pyarrow as pa
    from pyarrow import csv as pa_csv

    if not sys.stdout.isatty():
        pa_csv.write_csv(table, sys.stdout.buffer)
        return
    with pa.BufferOutputStream() as written:
        pa_csv.write_csv(table, written)
        typer.echo(without_controls(written.getvalue().to_pybytes().decode()), nl=False)


@contextlib.contextmanager
def _write_errors(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write {str(output)!r}: {error.strerror}; name a file in a folder that exists and may be written"
        ) from error


def sql_text(sql: str) -> str:
    """The SQL itself, or that of a file."""
    if not sql.endswith(".sql") or len(sql.split()) > 1:
        return sql
    try:
        return Path(sql).read_text()
    except OSError as error:
        raise ConfigError(f"cannot read SQL file {sql!r}: {error.strerror}") from error


def param_values(given: list[str] | None) -> dict[str, Any]:
    """Values of parameters as job files write them: numbers, dates, true and false, quoted texts; all else is text.

    >>> param_values(["since=2024-01-01", "kind=spare part", "n=3", "code='007'"])
    {'since': datetime.date(2024, 1, 1), 'kind': 'spare part', 'n': 3, 'code': '007'}
    """
    found: dict[str, Any] = {}
    for each in given or ():
        name, equals, text = each.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--param {each}: write NAME=VALUE, such as --param since=2024-01-01")
        try:
            value = tomllib.loads(f"value = {text}")
        except tomllib.TOMLDecodeError:
            value = {}
        found[name] = value["value"] if list(value) == ["value"] else text
    return found


def print_json(value: Any) -> None:
    """Print a result for programs."""
    typer.echo(json.dumps(plain(value), indent=2, default=str))


def plain(value: Any) -> Any:
    """The value as JSON knows it: a number that is none is null."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def typed(*arguments: str | Path) -> str:
    """A command of ours as it can be typed here, also where this one was started from an environment off the PATH."""
    return shlex.join([*_started_as(sys.argv[0], sys.executable), *map(str, arguments)])


def _started_as(script: str, python: str) -> list[str]:
    name = Path(script).name
    if name == "__main__.py":
        return [_short(python), "-m", "tablepuppet"]
    return [_short(script)] if name == "tablepuppet" else ["tablepuppet"]


def _short(program: str) -> str:
    """A program by its name if the PATH leads there, else by its path: from the working directory if it lies below."""
    path, found = Path(program).absolute(), shutil.which(Path(program).name)
    if found is not None and Path(found).absolute() == path:
        return path.name
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


FACTS = ("event", "run", "session", "caller")  # of a record, beside its message


class JsonLines(logging.Formatter):
    """Writes each record as one line of JSON.

    >>> record = logging.makeLogRecord({"msg": "ready at %s", "args": ("here",), "levelname": "INFO", "created": 0.0})
    >>> JsonLines().format(record)
    '{"time": "1970-01-01T00:00:00.000+00:00", "level": "INFO", "message": "ready at here"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON; the type of an exception, but not its text, which may quote a value."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found = {"time": time, "level": record.levelname, "message": record.getMessage()}
        found |= {name: str(value) for name in FACTS if (value := getattr(record, name, None))}
        if record.exc_info and record.exc_info[0] is not None:
            found["error"] = record.exc_info[0].__name__
        return json.dumps(found, ensure_ascii=False)
