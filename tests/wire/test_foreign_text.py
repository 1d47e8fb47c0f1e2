"""Text that others wrote reaches a terminal, log or notebook without its controls, wherever it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from typer.testing import CliRunner

import tablepuppet as tp
import tablepuppet.learn.party_ops
from tablepuppet.cli import output as cli_output
from tablepuppet.cli.commands import app
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party import category_report
from tablepuppet.party.category_report import CategoryReport
from tablepuppet.party.request import Request
from tablepuppet.runs.events import Event, Events
from tablepuppet.runs.table_view import TableView
from tablepuppet.wire.flight_transport import FlightTransport
from tests.wire.hostile import Attacker, write_bank

CONTROLS = "\x1b]0;taken\x07\x1b[2J\x1b[8m\r\u202e"


def is_clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize(
    "kind", [tp.ConfigError, tp.CatalogError, tp.PartyError, tp.PrivacyError, tp.LearnError, tp.QueryError]
)
def test_errors(kind: type[tp.TablePuppetError]) -> None:
    """No error of ours controls a terminal, whatever names it holds; lines stay lines."""
    error = kind(f"party 'bank': table {CONTROLS}\nask its operator")
    assert is_clean(str(error))
    assert str(error).count("\n") == 1


def test_tables_and_events() -> None:
    """Nor do tables for people, as text and HTML, and events."""
    view = TableView(f"title{CONTROLS}", {f"name{CONTROLS}": "left"}, [[f"cell{CONTROLS}"]])
    assert is_clean(view.text())
    assert "\x1b" not in view.html()
    found: list[Event] = []
    Events([found.append]).emit("warning", "column.dropped", f"column {CONTROLS} is left out")
    assert is_clean(found[0].message)


def test_what_commands_print(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The operator's list of kept models, receipts of deliveries, and tables on a terminal."""
    report = CategoryReport(f"a{CONTROLS}", f"m{CONTROLS}", "p", "t", f"c{CONTROLS}", 0, f"n{CONTROLS}")
    monkeypatch.setattr(category_report, "category_names", lambda *_: [report])
    done = CliRunner().invoke(app, ["party", "names", "party.toml"])
    assert done.exit_code == 0
    assert is_clean(done.stdout)
    cli_output.Screen().text(f"3 predictions delivered as run {CONTROLS}")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    cli_output.print_table(pa.table({"id": [f"x{CONTROLS}"]}))
    printed = capsys.readouterr().out
    assert is_clean(printed)
    assert '"x' in printed


@pytest.mark.parametrize("bad", [{"saved": f"m{CONTROLS}"}, {"part": f"p{CONTROLS}"}, {"saved": ""}, {"part": "a b"}])
def test_names_that_a_caller_chooses(tmp_path: Path, bad: dict[str, str]) -> None:
    """A party keeps no model under a name that its operator could not read in a list."""
    attacker = Attacker(write_bank(tmp_path))
    scan = attacker.scan("SELECT code, amount FROM cards", keys=())
    attacker.open("s", scan)
    attacker.use("s", "v", np.arange(60), np.ones(60, np.int32))
    given: dict[str, Any] = {
        "columns": ["amount"],
        "means": np.zeros(1),
        "scales": np.ones(1),
        "categories": [],
    }
    attacker.run("s", "encode.build", view="v", encoding="e", **given)
    attacker.run("s", "model.start", view="v", encoding="e", model="m", seed=0, spec=Linear(1), zero=True)
    named = {"saved": "m", "part": "p"} | bad
    with pytest.raises(tp.PartyError, match=r"op 'parts\.store': argument '(saved|part)'") as caught:
        attacker.run("s", "parts.store", view="v", model="m", unit=1.0, encoding="e", **named)
    assert is_clean(str(caught.value))
    attacker.run("s", "parts.store", view="v", model="m", unit=1.0, encoding="e", saved="m", part="0a.1_b-c")


class Failing(flight.FlightServerBase):  # type: ignore[misc]
    """A party, or somebody in its place, that fails with words of its choice."""

    def __init__(self, words: str):
        super().__init__("grpc://127.0.0.1:0")
        self.words = words

    def do_action(self, context: Any, action: flight.Action) -> Any:
        raise flight.FlightServerError(self.words)


@pytest.mark.parametrize("words", [CONTROLS, "", f"x. {CONTROLS}", "y" * 10_000])
def test_words_of_the_wire(words: str) -> None:
    """What gRPC passes on of a failure is short and can be printed."""
    with Failing(words) as server:
        party = FlightTransport("bank", f"grpc://127.0.0.1:{server.port}", None, timeout=0.2)
        with pytest.raises(tp.PartyError, match="'bank'") as caught:
            party.call(Request("describe"))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
