"""A hostile analyst, and careless ops: what was computed from cells obeys the tables that it came from."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
import tablepuppet.learn.party_ops
from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.learn.tables.dense import Mlp
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.arguments import GramNoise
from tablepuppet.party.kept import WatchedShelf
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import REGISTRY, Op
from tablepuppet.party.release import Release
from tablepuppet.prep.encode.encode import encoded
from tests.party.policed import audit_lines
from tests.relations import write_party
from tests.wire.hostile import Attacker, accounts, write_bank

ROWS = 60
STRICT = "budget = { epsilon = 50.0, delta = 1e-6, require_dp = true }"
OTHER = """
[tables.other]
min_rows = 0
min_group = 0
[tables.other.columns]
amount = "feature"
"""


class Analyst(Attacker):
    """Opens any table under the alias ``cards``, with its rows announced and encoded."""

    def begin(self, session: str, table: str = "cards", **changed: Any) -> None:
        """Open a session."""
        self.open(session, self.scan(f"SELECT cards.amount FROM {table} AS cards", keys=(), **changed))
        self.use(session, "v", np.arange(ROWS), np.ones(ROWS, np.int32))
        given = {"columns": ["amount"], "means": np.zeros(1), "scales": np.ones(1), "categories": []}
        self.run(session, "encode.build", view="v", encoding="e", **given)

    def ask(self, session: str, op: str, **arguments: Any) -> dict[str, Any]:
        """An op on the encoded rows."""
        return self.run(session, op, view="v", encoding="e", model="m", **arguments)

    def turn_to(self, table: str) -> None:
        """The operator changes the rules of the table, and starts the party again."""
        write_bank(self.file.parent, table=table, more=OTHER)
        self.restart()


def bank(folder: Path, table: str = "") -> Analyst:
    """At a bank with two tables, of which the second is there to be asked about."""
    folder.mkdir(exist_ok=True)
    write_party(folder, "bank", {"cards": accounts(), "other": pa.table({"amount": np.linspace(0.0, 1.0, ROWS)})})
    return Analyst(write_bank(folder, table=table, more=OTHER))


Careless = Callable[[LocalTable], Any]
CARELESS: dict[str, Careless] = {
    "a column": lambda table: table.column("amount", "v").to_pylist(),
    "the snapshot": lambda table: table.snapshot.outputs["amount"].to_pylist(),
    "null records": lambda table: table.null_rows(["amount"], "v"),
    "encoded rows": lambda table: encoded(table, "v", "e").dense.sum(),
    "other columns": lambda table: table.beside(["amount"]).num_rows,
}


@pytest.fixture
def register() -> Iterator[Callable[..., None]]:
    """Registers ops for a test."""
    before = dict(REGISTRY)

    def op(name: str, function: Callable[..., Any], *, on_shelf: bool = False) -> None:
        REGISTRY[name] = Op(function, name, asked="never", releases=Release.COUNTS, returns={}, on_shelf=on_shelf)

    yield op
    REGISTRY.clear()
    REGISTRY.update(before)


@pytest.mark.parametrize("how", CARELESS)
def test_a_careless_op_sees_no_cell(tmp_path: Path, register: Callable[..., None], how: str) -> None:
    """An op that declares itself harmless, reads rows and keeps a value is refused where the policy demands noise."""

    def careless(table: LocalTable) -> dict[str, Any]:
        table.state["kept"] = CARELESS[how](table)
        return {}

    register("careless.read", careless)
    attacker = bank(tmp_path, STRICT)
    attacker.begin("s")
    with pytest.raises(PrivacyError, match="noise is added"):
        attacker.run("s", "careless.read")
    free = bank(tmp_path / "free")
    free.begin("s")
    assert free.run("s", "careless.read") == {}


def test_what_a_careless_op_kept_is_reached_by_nobody(tmp_path: Path, register: Callable[..., None]) -> None:
    """A value of another table's cells, kept under any name, is refused once that table demands noise, and named in the
    audit log while it does not.
    """

    def keep(table: LocalTable) -> dict[str, Any]:
        table.models["stolen"] = table.column("amount", "v").to_pylist()
        return {}

    def tell(table: LocalTable) -> dict[str, Any]:
        return {"stolen": table.models["stolen"]}

    register("careless.keep", keep)
    register("careless.tell", tell)
    attacker = bank(tmp_path)
    attacker.begin("s")
    attacker.run("s", "careless.keep")
    attacker.begin("t", "other")
    assert len(attacker.run("t", "careless.tell")["stolen"]) == ROWS
    assert audit_lines(tmp_path)[-1]["tables"] == ["other", "cards"]
    policy = attacker.desk.party._guard.policy
    strict = bank(tmp_path / "strict", STRICT).desk.party._guard.policy
    attacker.desk.party._guard.policy = strict
    with pytest.raises(PrivacyError, match=r"'cards'.*without noise"):
        attacker.run("t", "careless.tell")
    attacker.desk.party._guard.policy = policy


NETWORK = {"spec": Mlp((), 1, "relu", False), "seed": 0}


@pytest.mark.parametrize("op", ["nat.train", "nat.components"])
def test_networks_that_learn_by_themselves_do_not_without_noise(tmp_path: Path, op: str) -> None:
    """Their ops return nothing, and are refused all the same; so whether they fail tells nothing either."""
    pytest.importorskip("torch", reason="networks need the extra `deep`")
    from tablepuppet.learn.split.nat import NatSettings

    attacker = bank(tmp_path, STRICT)
    attacker.begin("s")
    attacker.ask("s", "model.start", **NETWORK)
    more = {"seed": 0, "epochs": 1, "settings": NatSettings()} if op == "nat.train" else {}
    with pytest.raises(PrivacyError, match="noise is added"):
        attacker.ask("s", op, **more)


def learn(attacker: Analyst, session: str, noise: GramNoise | None = None) -> None:
    """A model of one column, stored as a part."""
    attacker.ask(
        session, "ridge.start", spec=Linear(1), joined_rows=ROWS, **({} if noise is None else {"noise": noise})
    )
    attacker.run(session, "parts.store", view="v", encoding="e", model="m", saved="saved", part="part", unit=1.0)


def test_models_obey_the_tables_they_were_learned_from(tmp_path: Path) -> None:
    """Over another table of the same alias, in another session, after a restart and from stored parts."""
    attacker = bank(tmp_path)
    attacker.begin("s")
    learn(attacker, "s")
    attacker.begin("t", "other")
    assert attacker.ask("t", "model.predict")["outputs"].shape == (ROWS,)
    assert audit_lines(tmp_path)[-1]["tables"] == ["other", "cards"]
    attacker.turn_to(STRICT)
    attacker.begin("u", "other")
    asked = {"view": "v", "encoding": "e", "model": "part"}
    for op, given in {
        "model.predict": asked,
        "parts.parameters": {"part": "part"},
        "parts.check": {"part": "part"},
    }.items():
        with pytest.raises(PrivacyError, match=r"'cards'.*without noise"):
            attacker.run("u", op, **given)


def test_a_model_that_was_learned_with_noise_is_free(tmp_path: Path) -> None:
    """Noise has paid for it: over another table it predicts without more."""
    attacker = bank(tmp_path, STRICT)
    attacker.begin("s")
    learn(attacker, "s", GramNoise(ROWS, 5.0))
    attacker.begin("t", "other")
    assert attacker.ask("t", "model.predict")["outputs"].shape == (ROWS,)
    attacker.restart()
    attacker.begin("u", "other")
    assert set(attacker.run("u", "parts.parameters", part="part", noisy=True)) == {"cards"}
    assert audit_lines(tmp_path)[-1]["tables"] == ["cards"]


def test_parts_are_watched_whatever_an_op_calls_them(tmp_path: Path, register: Callable[..., None]) -> None:
    """An op on stored parts that names them in an argument of its own is refused as those of this package are."""

    def tell(shelf: WatchedShelf, stolen: str) -> dict[str, Any]:
        return {"stolen": [kept.theta for kept, _ in shelf.all(stolen)]}

    attacker = bank(tmp_path)
    attacker.begin("s")
    learn(attacker, "s")
    register("careless.parts", tell, on_shelf=True)
    assert len(attacker.run("s", "careless.parts", stolen="part")["stolen"]) == 1
    assert audit_lines(tmp_path)[-1]["tables"] == ["cards"]
    attacker.turn_to(STRICT)
    attacker.begin("u", "other")
    with pytest.raises(PrivacyError, match=r"'cards'.*without noise"):
        attacker.run("u", "careless.parts", stolen="part")


def test_origins_are_known_while_an_op_runs(tmp_path: Path, register: Callable[..., None]) -> None:
    """Another session that gets hold of a model before the op ends that changes it finds where it comes from."""
    seen: list[bool] = []

    def change(table: LocalTable) -> dict[str, Any]:
        table.models["early"], table.models["late"] = [], table.column("amount", "v").to_pylist()
        table.models["early"].extend(table.models["late"])
        origins = table._held_models.origins
        seen.extend(origin.scan.table == "cards" for name in ("early", "late") for origin in origins[name])
        return {}

    register("careless.change", change)
    attacker = bank(tmp_path)
    attacker.begin("s")
    attacker.run("s", "careless.change")
    assert seen == [True, True]


def test_no_code_goes_around() -> None:
    """What leads to cells, or to what was computed from them, without being watched, is used by these modules only."""
    hidden = {"_cells", "_nulls", "_held_here", "_held_models", "_read_now", "_read_beside", "_shelf"}
    ours = {f"party/{name}.py" for name in ("snapshot", "local_table", "kept")}
    source = Path(tp.__file__).parent
    found = {
        f"{path.relative_to(source)}: {node.attr}"
        for path in source.rglob("*.py")
        if str(path.relative_to(source)) not in ours
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in hidden
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")  # an attribute of a class of its own
    }
    assert found == set()


def test_nothing_is_kept_before_noise_is_added(tmp_path: Path, register: Callable[..., None]) -> None:
    """Neither from inside of what noise is added to, nor from what is seen for a reply."""

    def keep(table: LocalTable, reply: bool) -> dict[str, Any]:
        with table.for_reply() if reply else table.mechanism():
            table.state["kept"] = table.column("amount", "v").to_pylist()
        return {}

    register("careless.inside", keep)
    for folder, reply in (("noise", False), ("reply", True)):
        attacker = bank(tmp_path / folder, "" if reply else STRICT)
        attacker.begin("s")
        with pytest.raises(PartyError, match="AssertionError"):
            attacker.run("s", "careless.inside", reply=reply)
