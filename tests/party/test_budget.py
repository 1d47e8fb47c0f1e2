"""Budgets in a party's policy: what is charged, what is refused without noise, and what a coordinator is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import tablepuppet as tp
from tablepuppet.jobs import Run
from tablepuppet.party.config import PartyFile
from tablepuppet.party.ledger import FILE, Budget, Ledger
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import REGISTRY, Op
from tablepuppet.party.release import Release
from tablepuppet.privacy.accountant import Spending
from tests.party.policed import COLUMNS, audit_lines, federation, open_party, write_file
from tests.relations import party_of

DEMANDING = "budget = { require_dp = true, epsilon = 2.0, epsilon_per_caller = 1.5 }"
STATE = 'state_dir = "state"'
SQL = "SELECT credit, fraud FROM cards"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The party file of a bank that demands differential privacy."""
    (tmp_path / "state").mkdir()
    return write_file(tmp_path, table=DEMANDING, top=STATE)


def opened(file: Path, caller: str = "analyst") -> LocalTable:
    """The cards as an op sees them."""
    party = open_party(file)
    relation = federation(party, caller).sql(SQL, label="fraud")
    return party.table(relation.client.session, "cards", caller)


def test_a_budget_needs_a_state_dir(tmp_path: Path) -> None:
    """What was spent must outlive a restart, so a budget without a folder to keep it in is a mistake."""
    with pytest.raises(tp.ConfigError, match=r"tables.cards.budget: name a state_dir too"):
        PartyFile.load(write_file(tmp_path, table=DEMANDING))
    PartyFile.load(write_file(tmp_path, table="budget = { delta = 1e-8 }"))


def test_a_charge_is_kept_and_bounded(file: Path) -> None:
    """Charges are on disk by table and caller; one that exceeds the caller's or the table's budget is refused whole."""
    opened(file).charge(Spending.of_pure(1.0), "labels", "one")
    opened(file).charge(Spending.of_pure(1.0), "labels", "one")  # another process, the same release
    with pytest.raises(tp.PrivacyError, match=r"caller 'analyst' has a budget of epsilon 1\.5"):
        opened(file).charge(Spending.of_pure(1.0), "labels", "two")
    with pytest.raises(tp.PrivacyError, match="all callers together"):
        opened(file, "auditor").charge(Spending.of_pure(1.2), "labels", "two")
    ledger = Ledger(file.parent / "state" / FILE, "bank")
    assert ledger.spent("cards").pure == ledger.spent("cards", "analyst").pure == 1.0
    assert ledger.spent("cards", "auditor").pure == 0.0


def test_nothing_is_charged_in_the_own_process(file: Path) -> None:
    """A database that the analyst opened has no budget and no ledger."""
    fed = tp.Federation({"bank": f"parquet:///{file.parent}/bank"})
    relation = fed.sql(SQL, label="fraud")
    party = party_of(fed.engine, "bank")
    party.table(relation.client.session, "cards").charge(Spending.of_pure(1e9), "labels")
    assert not list(file.parent.glob("state/*"))


def test_ops_without_noise_are_refused(file: Path) -> None:
    """Of a table that demands privacy nothing that depends on a cell is told by an op that adds no noise."""
    grant = opened(file).grant
    for op in REGISTRY.values():
        bare = bool(op.releases & ~(Release.SCHEMA | Release.COUNTS | Release.KEY_DIGESTS))
        # held against the columns, the receiver or the directions that are named
        if op.columns or op.private or op.receiver or (op.directions and not bare):
            continue
        if bare:
            with pytest.raises(tp.PrivacyError, match=r"with noise.*\(policy rule require_dp\)"):
                grant.check(op, {})
        else:
            grant.check(op, {})
    digests = Op(dict, "x", asked="", releases=Release.KEY_DIGESTS, columns=("column",))
    with pytest.raises(tp.PrivacyError, match="KEY_DIGESTS only with noise"):
        grant.check(digests, {"column": "credit"})
    grant.check(
        Op(dict, "x", asked="", releases=Release.LABELS, columns=("column",), private=True), {"column": "fraud"}
    )


def test_a_table_that_demands_nothing_tells_as_before(tmp_path: Path) -> None:
    """A budget that says `require_dp = false` bounds what is spent on noise; it does not forbid ops without noise."""
    (tmp_path / "state").mkdir()
    file = write_file(tmp_path, table="budget = { epsilon = 2.0, require_dp = false }", top=STATE)
    model = tp.LogisticRegression(rounds=2).fit(federation(open_party(file)).sql(SQL, label="fraud"))
    assert len(model.history_) == 2


@pytest.mark.parametrize("bound", ["epsilon", "epsilon_per_caller"])
def test_a_budget_demands_noise(tmp_path: Path, bound: str) -> None:
    """A bound would bind nothing if ops without noise, which are not counted, were allowed beside it."""
    (tmp_path / "state").mkdir()
    file = write_file(tmp_path, table=f"budget = {{ {bound} = 2.0 }}", top=STATE)
    relation = federation(open_party(file)).sql(SQL, label="fraud")
    with pytest.raises(tp.PrivacyError, match="policy rule require_dp"):
        tp.LogisticRegression(rounds=2).fit(relation)
    rules = PartyFile.load(write_file(tmp_path, table="budget = { delta = 1e-8 }")).policy().table("cards")
    assert rules is not None
    assert rules.budget.require_dp is False  # nothing is bounded


@pytest.mark.parametrize(
    ("select", "privacy", "needs"),
    [
        ("credit, fraud", None, "label_epsilon=..., feature_epsilon=..., prediction_epsilon=..."),
        ("credit, fraud", tp.Privacy(label_epsilon=1.0), "feature_epsilon=..., prediction_epsilon=..."),
    ],
)
def test_a_fit_without_it_is_refused_at_once(file: Path, select: str, privacy: tp.Privacy, needs: str) -> None:
    """Before rows are joined or anything is asked, with party, table and what to set."""
    party = open_party(file)
    relation = federation(party).sql(f"SELECT {select} FROM cards", label="fraud")
    before = audit_lines(file.parent)
    with pytest.raises(tp.PrivacyError) as caught:
        tp.LogisticRegression(privacy=privacy).fit(relation)
    assert "party 'bank', table 'cards'" in str(caught.value)
    assert f"tp.Privacy({needs})" in str(caught.value)
    assert "mapping" not in relation.__dict__
    assert audit_lines(file.parent) == before


def test_a_job_without_it_is_refused_before_a_party_reads(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job file is held against what parties demand when they say what they publish."""
    folder = file.parent
    (folder / "federation.toml").write_text('parties = { bank = "parquet:///bank" }')
    (folder / "job.toml").write_text(
        f'federation = "federation.toml"\nsql = "{SQL}"\nlabel = "fraud"\noutput = "run"\n'
        'learner = { kind = "LogisticRegression" }\n'
    )
    run = Run.to_train(folder / "job.toml", lambda event: None)
    run.federation.engine = federation(open_party(file)).engine
    with pytest.raises(tp.PrivacyError, match="require_dp"):
        run.train()
    assert [line["verb"] for line in audit_lines(folder)] == ["describe"]
    assert not (folder / "run").exists()


def test_bounds_and_categories_of_a_column(file: Path) -> None:
    """An output that is exactly one column has the values that the policy says it may have; an expression has none."""
    columns = COLUMNS.replace('credit = "feature"', 'credit = { uses = ["feature"], bounds = [-1000, 1000.5] }')
    columns = columns.replace('fraud = "label"', 'fraud = { uses = ["label"], categories = [0, 1] }')
    party = open_party(write_file(file.parent, columns=columns, top=STATE))
    relation = federation(party).sql('SELECT "CREDIT", credit + 1 AS more, (fraud) AS f FROM cards', label="f")
    outputs = party.table(relation.client.session, "cards", "analyst").grant.outputs
    assert outputs["credit"].rule.bounds == (-1000.0, 1000.5)
    assert outputs["more"].rule.bounds is None
    assert outputs["f"].rule.categories == (0, 1)


def test_the_catalog_tells_what_policies_describe(file: Path) -> None:
    """Bounds of columns to learn from, classes of labels, that other categories are listed; nothing of the rest."""
    columns = """
    card = { uses = ["key"], bounds = [0, 99] }
    credit = { uses = ["feature"], bounds = [-1000, 1000.5] }
    region = { uses = ["feature", "filter"], categories = ["region0", "region1"] }
    secret = { uses = ["feature"], level = "private", bounds = [0, 1] }
    fraud = { uses = ["label"], categories = [0, 1] }
    """
    (shard,) = (
        federation(open_party(write_file(file.parent, columns=columns, top=STATE))).catalog().table("cards").shards
    )
    assert shard.bounds == {"credit": (-1000.0, 1000.5)}
    assert shard.categories == {"region": (), "fraud": (0, 1)}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("bounds = [1, 1]", "bounds: give two finite numbers"),
        ("bounds = [0, inf]", "bounds: give two finite numbers"),
        ("categories = ['a', 'a']", "categories: name two or more, each once"),
        ("categories = ['a']", "categories: name two or more, each once"),
        ("bounds = [0, 1], categories = [0, 1]", "give one of them"),
    ],
)
def test_values_that_cannot_be(tmp_path: Path, entry: str, message: str) -> None:
    """A mistake in what values a column may have names the column."""
    columns = f"fraud = {{ uses = ['label'], {entry} }}"
    with pytest.raises(tp.ConfigError, match=rf"tables.cards.columns.fraud.*{message}"):
        PartyFile.load(write_file(tmp_path, columns=columns))


def test_a_budget_by_default() -> None:
    """Nothing is demanded and nothing is bounded."""
    assert Budget() == Budget(epsilon=None, delta=1e-6, epsilon_per_caller=None, require_dp=False)
