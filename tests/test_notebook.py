"""A notebook in a real kernel, with and without ipywidgets: tables, bars, plans, errors and reprs.

Both kernels run the same cells over the same databases; what they show is compared.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import nbformat
import numpy as np
import pyarrow as pa
import pytest
from IPython.lib.pretty import pretty
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

import tablepuppet as tp
from tests.relations import write_party

SQL = 'SELECT o.price, o."weight <kg>", o.always, i.cost, i.kind, o.returned FROM orders o JOIN items i USING (item_id)'
CELLS = {
    "setup": """
        import time, duckdb, tablepuppet as tp
        from tablepuppet.party.databases.sandbox import sandbox
        from tablepuppet.sql.quiet_duckdb import scratch
        fed = tp.Federation(URLS)""",
    "new federation": "fed",
    "catalog": "fed.catalog()",
    "describe": "sales = fed.sql(SQL, label='returned')\nsales.describe()",
    "explain": "sales.explain()",
    "fit": "model = tp.LogisticRegression(callbacks=[lambda event: time.sleep(0.25)]).fit(sales)",
    "predict": "model.predict(sales)[:10]",
    "evaluate": "model.evaluate(sales)",
    "model": "model",
    "new model": "tp.LinearRegression()",
    "coef_": "model.coef_",
    "history_": "model.history_",
    "traffic": "fed.traffic",
    "relation": "sales",
    "federation": "fed",
    "plot": "model.plot()",
    "error": "def mine():\n    return fed.sql('SELECT price\\nFROM orders\\nWHERE pric > 1')\n\nmine()",
    "traceback": "%tb Verbose",
    "no file": "tp.Federation({'a': 'csv:////nowhere'}).catalog()",
    "cause": """
        try:
            tp.Federation.load("nowhere.toml")
        except tp.ConfigError as error:
            print(type(error.__cause__).__name__)""",
    "away": "tp.Federation({'bank': 'grpc://localhost:1'}, timeout=2).catalog()",
    "no calls": "tp.ConfigError('alone')._render_traceback_()",
    "fit fails": "tp.LogisticRegression(callbacks=[lambda event: 1 / 0 if event.name == 'fit' else 0]).fit(sales)",
    "bars": """
        def drawn(connection):
            return connection.execute("SELECT current_setting('enable_progress_bar')").fetchall()[0][0]
        with sandbox() as locked:
            print(drawn(scratch()), drawn(locked))""",
    "duckdb's own bars": "drawn(duckdb.connect())",
}
TIMES = re.compile(r"\d+\.\d s")
ANSI = re.compile(r"\x1b\[[0-9;]*m")
# ipywidgets as they are where they are not installed: no import finds them.
START = "from ipykernel.kernelapp import launch_new_instance; launch_new_instance()"
WITHOUT = f"import sys; sys.modules['ipywidgets'] = None; {START}"


class Client(NotebookClient):
    """Counts what a cell was shown, also what was replaced since."""

    messages: Counter[tuple[int, str]]

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        self.messages[cell_index, msg["msg_type"]] += 1
        return super().process_message(msg, cell, cell_index)


class Shown:
    """The cells of an executed notebook by name."""

    def __init__(self, cells: list[Any], messages: Counter[tuple[int, str]]):
        self.cells = dict(zip(CELLS, cells, strict=True))
        self.messages = {(name, kind): n for i, name in enumerate(CELLS) for (j, kind), n in messages.items() if i == j}

    def outputs(self, name: str) -> list[Any]:
        return list(self.cells[name].outputs)

    def result(self, name: str) -> dict[str, str]:
        """The data of the one result of a cell; what bars there are stands before it."""
        *others, last = self.outputs(name)
        assert {each.output_type for each in others} <= {"display_data"}
        assert last.output_type == "execute_result"
        return dict(last.data)

    def block(self, name: str) -> dict[str, str]:
        """The bars and warnings of a cell."""
        [shown] = [each for each in self.outputs(name) if each.output_type == "display_data"]
        return dict(shown.data)

    def error(self, name: str) -> str:
        [shown] = [each for each in self.outputs(name) if each.output_type == "error"]
        return ANSI.sub("", "\n".join(shown.traceback))

    def streams(self) -> list[tuple[str, str, str]]:
        return [
            (name, each.name, each.text)
            for name, cell in self.cells.items()
            for each in cell.outputs
            if each.output_type == "stream"
        ]


def kernel(folder: Path, start: str = START) -> KernelManager:
    """A kernel of this Python; to be shut down by whom it was made for."""
    spec = folder / "kernels" / "tested"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-c", start, "-f", "{connection_file}", "--HistoryManager.enabled=False"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "language": "python", "display_name": "tested"}))
    return KernelManager(
        kernel_name="tested",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(spec.parent)], ensure_native_kernel=False),
        transport="ipc",  # two runs at the same time cannot take each other's ports
        connection_file=str(folder / "kernel.json"),
    )


def run(folder: Path, start: str, urls: dict[str, str]) -> Shown:
    """Execute the cells in such a kernel."""
    manager = kernel(folder, start)
    sources = [_dedented(source).replace("URLS", repr(urls)).replace("(SQL", f"({SQL!r}") for source in CELLS.values()]
    cell: dict[str, Any] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    written = {"cells": [cell | {"id": f"cell-{i}", "source": text} for i, text in enumerate(sources)], "metadata": {}}
    notebook = nbformat.from_dict(written | {"nbformat": 4, "nbformat_minor": 5})  # type: ignore[no-untyped-call]
    client = Client(notebook, km=manager, timeout=600, startup_timeout=300, allow_errors=True)
    client.messages = Counter()
    try:
        client.execute(cwd=str(folder))
    finally:
        manager.shutdown_kernel(now=True)  # the client leaves a manager that it was given as it is
    return Shown(notebook.cells, client.messages)


def _dedented(source: str) -> str:
    return "\n".join(line.removeprefix(" " * 8) for line in source.strip("\n").splitlines())


@pytest.fixture(scope="module")
def notebooks() -> Iterator[dict[str, Shown]]:
    """What both kernels showed."""
    with tempfile.TemporaryDirectory(prefix="tp-nb-") as place:  # a short path: sockets have no long names
        folder, rng = Path(place), np.random.default_rng(0)
        orders = {
            "item_id": np.arange(400) % 40,
            "price": rng.normal(size=400),
            "weight <kg>": rng.normal(size=400),
            "always": np.ones(400),
            "returned": rng.random(400) < 0.3,
        }
        items = {
            "item_id": np.arange(40),
            "cost": rng.normal(size=40),
            "kind": [f"<b>{i * i // 400}" for i in range(40)],
        }
        urls = {
            "store": write_party(folder, "store", {"orders": pa.table(orders)}, "duckdb"),
            "supplier": write_party(folder, "supplier", {"items": pa.table(items)}, "parquet"),
        }
        yield {name: run(folder / name, start, urls) for name, start in (("with", START), ("without", WITHOUT))}


@pytest.fixture(scope="module", params=["with", "without"])
def shown(request: pytest.FixtureRequest, notebooks: dict[str, Shown]) -> Shown:
    """What one of the kernels showed."""
    found: Shown = notebooks[request.param]
    return found


def test_cells_work(shown: Shown) -> None:
    """Only the cells that are meant to fail do so."""
    failed = [name for name, cell in shown.cells.items() if any(o.output_type == "error" for o in cell.outputs)]
    assert failed == ["error", "traceback", "no file", "away", "fit fails"]


@pytest.mark.parametrize(("name", "tables"), [("catalog", 1), ("describe", 2)])
def test_catalog_and_describe_are_tables(shown: Shown, name: str, tables: int) -> None:
    """They appear once, as HTML without markup of the data, and as text for those who show no HTML: one table, or one
    of numbers and one of categories.
    """
    data = shown.result(name)
    others = [output for output in shown.outputs(name)[:-1] if "price" in json.dumps(output)]
    assert others == []
    assert data["text/html"].count("<table") == tables
    assert "weight &lt;kg&gt;" in data["text/html"]
    assert "weight <kg>" in data["text/plain"]
    assert "┃" in "".join(data["text/plain"].splitlines()[1:3])  # after the title, or at once


def test_the_plan_is_shown_line_by_line(shown: Shown) -> None:
    """`explain()` is preformatted text, escaped, and not a string in quotes."""
    data = shown.result("explain")
    assert data["text/html"].startswith("<pre")
    assert "monospace" in data["text/html"]
    assert "weight &lt;kg&gt;" in data["text/html"]
    assert data["text/plain"].splitlines()[1] == "└─ join of 2 tables"


def test_fit_shows_a_live_bar_and_its_warnings(shown: Shown) -> None:
    """One block, updated in place as rounds end, says how learning ended, and once what was left out."""
    data = shown.block("fit")
    lines = data["text/plain"].splitlines()
    assert [line.split(" after")[0] for line in lines if "LogisticRegression" in line] == [
        "✓ LogisticRegression: converged"
    ]
    [warning] = [line for line in lines if line.startswith("Warning")]
    assert warning.startswith("Warning: column o.always ")
    assert "o.always" in data["text/html"]
    assert shown.messages["fit", "display_data"] == 1
    assert shown.messages["fit", "update_display_data"] >= 3


def test_a_fit_that_fails_says_where_it_stopped(shown: Shown) -> None:
    """The bar of a fit that an error ended is marked."""
    lines = shown.block("fit fails")["text/plain"].splitlines()
    assert [line for line in lines if line.startswith("✗ round 1 · ") and line.endswith("stopped)")]


def test_a_party_that_is_away_is_waited_for_aloud(shown: Shown) -> None:
    """A party that cannot be reached is named under the cell that waits for it."""
    text = "waiting for party 'bank' at localhost:1 (connection refused), for up to 2 s"
    assert shown.block("away")["text/plain"] == f"Warning: {text}"
    assert "'bank' at grpc://localhost:1 does not answer within 2 s" in shown.error("away")


def test_nothing_else_is_written(shown: Shown) -> None:
    """Nothing on stderr, on stdout only what cells print, and no widgets."""
    assert shown.streams() == [("cause", "stdout", "FileNotFoundError\n"), ("bars", "stdout", "False False\n")]
    assert "widget-view" not in json.dumps(list(shown.cells.values()))


def test_errors_are_short(shown: Shown) -> None:
    """The user's own lines, the message with the SQL underlined in its place, and how to see more."""
    lines = shown.error("error").splitlines()
    assert len(lines) <= 20
    assert not [line for line in lines if ".py" in line]
    assert "----> 4 mine()" in lines
    assert lines[-4:] == [
        "QueryError: table orders has no column pric; did you mean 'price'?",
        "  line 3: WHERE pric > 1",
        "                ^^^^",
        "(%tb Verbose shows the whole traceback, with its cause.)",
    ]
    assert "ConfigError: alone" in ANSI.sub("", shown.result("no calls")["text/plain"].replace("\\x1b", "\x1b"))
    assert len(shown.error("no file").splitlines()) <= 10
    assert "UnavailableError: " in shown.error("no file")


def test_the_whole_traceback_stays_reachable(shown: Shown) -> None:
    """`%tb Verbose` shows every call, without values of variables."""
    text = shown.error("traceback")
    assert "in parse" in text
    assert "QueryError: table orders has no column pric" in text
    assert "blinding_key" not in text


def test_models_and_what_they_hold_have_html(shown: Shown) -> None:
    """scikit-learn draws learners, fitted or not; coefficients, history and traffic are tables."""
    assert "LogisticRegression" in shown.result("model")["text/html"]
    assert "LinearRegression" in shown.result("new model")["text/html"]
    for name, cell, tables in (
        ("coef_", "o.weight &lt;kg&gt;", 1),
        ("history_", "loss", 1),
        ("traffic", "supplier", 2),
    ):
        html = shown.result(name)["text/html"]
        assert html.count("<table") == tables
        assert f">{cell}<" in html
    assert shown.result("history_")["text/plain"].startswith("[{'round': 1")
    assert shown.result("coef_")["text/plain"].startswith("{'o.price'")


def test_federation_and_relation_are_cards(shown: Shown) -> None:
    """A federation says where its parties are, and their tables once they were asked; a relation its SQL in letters of
    one width, its label, and which party has which columns. Markup of the data is escaped.
    """
    before, after = (shown.result(name)["text/html"] for name in ("new federation", "federation"))
    assert "duckdb, opened in this process</span>" in before
    assert "duckdb, opened in this process; orders (400 rows)</span>" in after
    relation = shown.result("relation")["text/html"]
    assert "400 joined rows, 5 features" in relation
    assert "monospace" in relation
    assert "weight &lt;kg&gt;" in relation
    assert "weight <kg>" not in relation
    assert ">o.returned<" in relation
    assert "at supplier; cost, kind" in relation


def test_a_fit_is_drawn(shown: Shown) -> None:
    """`plot` shows a picture, whatever backend matplotlib has."""
    assert shown.result("plot")["image/png"].startswith("iVBORw0KGgo")


def test_both_kernels_show_the_same(notebooks: dict[str, Shown]) -> None:
    """Whether ipywidgets are installed makes no difference, but to DuckDB's own bars, which we never draw."""
    one, two = notebooks["with"], notebooks["without"]
    for name in ("catalog", "describe", "explain", "predict", "relation"):
        assert one.result(name) == two.result(name)
    assert one.result("coef_")["text/html"] == two.result("coef_")["text/html"]
    assert one.result("evaluate") == two.result("evaluate")
    assert _lasting(one.block("fit")) == _lasting(two.block("fit"))
    for name in ("error", "no file"):
        assert one.error(name) == two.error(name)
    drawn = [each.result("duckdb's own bars")["text/plain"] for each in (one, two)]
    assert drawn == ["True", "False"]


def _lasting(block: dict[str, str]) -> list[str]:
    """The lines that do not depend on how fast the machine is."""
    lines = TIMES.sub("s", block["text/plain"]).splitlines()
    return [line for line in lines if line.startswith(("✓ LogisticRegression", "Warning"))]


def test_ipythons_terminal_shows_plans_as_text_and_errors_short(tmp_path: Path) -> None:
    """There are no bars; a plan has lines, an error is short, and Python's own traceback is whole."""
    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT range AS x, range % 3 AS y FROM range(9)")
    code = (
        f"import tablepuppet as tp; fed = tp.Federation({{'a': 'duckdb:///{tmp_path / 'a.duckdb'}'}}); "
        "rel = fed.sql('SELECT x, y FROM t', label='y'); tp.LinearRegression().fit(rel); fed.sql('SELECT z FROM t')"
    )
    ipython = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "--HistoryManager.enabled=False"]
    outputs = [
        ANSI.sub("", ran.stdout + ran.stderr)
        for command in (ipython, [sys.executable])
        for ran in [subprocess.run([*command, "-c", code], capture_output=True, text=True, cwd=tmp_path)]
    ]
    short, whole = outputs
    assert "QueryError: table t has no column z" in short
    assert "         ^" in short
    assert len(short.splitlines()) < 15
    assert "federation.py" not in short
    assert "round" not in short
    assert "federation.py" in whole
    plan = tp.Federation({"a": f"duckdb:///{tmp_path / 'a.duckdb'}"}).sql("SELECT x FROM t").explain()
    assert isinstance(plan, str)
    assert pretty(plan) == plan  # type: ignore[no-untyped-call]
