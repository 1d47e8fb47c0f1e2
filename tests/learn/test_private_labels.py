"""Label privacy end to end: noise before anything leaves, the same noise whenever it is asked for, and its cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import tablepuppet as tp
from tablepuppet.baselines import Centralized
from tablepuppet.jobs import Run
from tablepuppet.party.beside import column_state
from tablepuppet.party.ledger import FILE, Ledger
from tablepuppet.privacy.label import keep_probability, number_variance
from tablepuppet.wire.engine import InProcessTransport
from tests.party.policed import open_party, write_file
from tests.relations import federation, in_process, party_of, record_wire, warnings_of, write_party

ROWS = 4000
CLASSES = ("high", "low", "mid")
COLUMNS = """
id = "key"
grade = "label"
score = ["label", "filter"]
part = "filter"
x = "feature"
"""
STATE = 'state_dir = "state"'
JOIN = "FROM cards c JOIN clients k ON c.id = k.id"
PRIVATE = tp.Privacy(label_epsilon=1.0, label_classes=CLASSES)
NUMBERS = tp.Privacy(label_epsilon=1.0, label_bounds=(0.0, 10.0))


def cards(rows: int = ROWS) -> pa.Table:
    """A table of labels; those of the first rows are out of any order."""
    row = np.arange(rows)
    return pa.table(
        {
            "id": row,
            "grade": np.array(CLASSES)[(row * 7 // 3) % 3],
            "score": (row % 11).astype(np.float64),
            "part": row % 4,
            "x": np.sin(row),
        }
    )


def clients(rows: int = ROWS) -> pa.Table:
    """Features of the same ids."""
    row = np.arange(rows)
    return pa.table({"id": row, "f": (row * 7 // 3) % 3 + np.cos(row), "g": row % 5})


class Bank:
    """A bank behind a party file, and clients in the analyst's own process."""

    def __init__(self, folder: Path, budget: str = "", columns: str = COLUMNS):
        self.folder = folder
        (folder / "state").mkdir(exist_ok=True)
        if not (folder / "bank").exists():
            write_party(folder, "bank", {"cards": cards()})
            write_party(folder, "shop", {"clients": clients()})
        self.file = write_file(folder, table=f"budget = {{ {budget} }}" if budget else "", columns=columns, top=STATE)

    def write(self, table: pa.Table) -> None:
        """The bank's data changes."""
        pyarrow.parquet.write_table(table, self.folder / "bank" / "cards.parquet")

    def federation(self, caller: str = "analyst") -> tp.Federation:
        """The federation of bank and shop, with a bank that was just started."""
        fed = tp.Federation({"shop": f"parquet:///{self.folder}/shop"})
        shop, bank = party_of(fed.engine, "shop"), open_party(self.file)
        bank._blinding_key = shop._blinding_key
        fed.engine = in_process({"bank": bank, "shop": shop}, caller)
        return fed

    def relation(self, select: str = "k.f, c.grade", label: str = "grade", where: str = "") -> tp.Relation:
        """A relation over both, asked of a bank that was just started."""
        return self.federation().sql(f"SELECT {select} {JOIN} {where}", label=label)

    @property
    def spent(self) -> float:
        """What the bank's ledger says."""
        return Ledger(self.folder / "state" / FILE, "bank").spent("cards").pure


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path)


def labels(relation: tp.Relation, privacy: tp.Privacy) -> dict[int, Any]:
    """The labels that a learner is told, by the id of the row."""
    learner = (tp.LogisticRegression if privacy.label_bounds is None else tp.LinearRegression)(privacy=privacy)
    assert relation.query.label is not None
    asked = learner._ask_labels(relation.client, relation.query.label)
    loss = learner._prepare(relation.client, relation.query.label, asked)
    bank = party_of(relation.client.engine, "bank")
    table = bank.table(relation.client.session, "c", "analyst")
    mapped = relation.mapping.tables["c"]
    ids = table.snapshot.position(mapped.shards[0].row_ids)[mapped.index]
    return dict(zip(ids.tolist(), loss.rows.labels().tolist(), strict=True))


def test_classes_are_noised_as_epsilon_says(bank: Bank) -> None:
    """True classes stay with the probability of randomised response; all classes listed are known to the model."""
    found = labels(bank.relation(), PRIVATE)
    true = np.searchsorted(CLASSES, cards()["grade"].to_numpy(zero_copy_only=False))
    share = np.mean([true[row] == label for row, label in found.items()])
    expected = keep_probability(3, 1.0)
    assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / ROWS)


def test_numbers_are_noised_as_epsilon_says(bank: Bank) -> None:
    """Numbers are clipped to the bounds, and the noise has the variance of its scale and no mean."""
    found = labels(bank.relation("k.f, c.score", "score"), tp.Privacy(label_epsilon=2.0, label_bounds=(2.0, 6.0)))
    true = np.clip(cards()["score"].to_numpy(), 2.0, 6.0)
    noise = np.array([label - true[row] for row, label in found.items()])
    variance = number_variance(2.0, (2.0, 6.0))
    assert abs(noise.mean()) < 5 * np.sqrt(variance / ROWS)
    assert noise.var() == pytest.approx(variance, rel=0.25)


@pytest.mark.parametrize(("select", "label", "privacy"), [("c.grade", "grade", PRIVATE), ("c.score", "score", NUMBERS)])
def test_asking_again_gives_the_same_noise(bank: Bank, select: str, label: str, privacy: tp.Privacy) -> None:
    """By another query, filter or split, in another process: a row's noisy label is the same, and is charged once."""
    first = labels(bank.relation(f"k.f, {select}", label), privacy)
    for other in (
        bank.relation(f"k.g, c.x, {select}", label),
        bank.relation(f"k.f, {select}", label, "WHERE c.part < 2"),
        bank.relation(f"k.f, {select}", label, "WHERE c.part = 3 AND k.g > 1").split(0.3, 1)[1],
        bank.relation(f"k.f, {select}", label).without_reduction(),
    ):
        again = labels(other, privacy)
        assert again
        assert again == {row: first[row] for row in again}
    assert bank.spent == privacy.label_epsilon


def test_a_published_select_repeats_its_noise(tmp_path: Path) -> None:
    """A table without an order of its own is named by the columns that are read: with these, noise is the same."""
    bank = Bank(tmp_path)
    more = f'[tables.chosen]\nsql = "SELECT * FROM cards WHERE part < 3"\n[tables.chosen.columns]\n{COLUMNS}'
    bank.file = write_file(tmp_path, columns=COLUMNS, top=STATE, more=more)

    def asked(part: int) -> dict[int, Any]:
        sql = f"SELECT k.f, c.grade {JOIN.replace('cards', 'chosen')} WHERE c.part >= {part}"
        return labels(bank.federation().sql(sql, label="grade"), PRIVATE)

    first, again = asked(0), asked(2)
    assert again == {row: first[row] for row in again}
    assert (len(first), len(again)) == (ROWS * 3 // 4, ROWS // 4)
    assert Ledger(tmp_path / "state" / FILE, "bank").spent("chosen").pure == 1.0


def test_other_questions_get_other_noise(bank: Bank) -> None:
    """Another epsilon, class list or state of the data is another release: fresh noise, charged each."""
    first = labels(bank.relation(), PRIVATE)
    more = labels(bank.relation(), tp.Privacy(label_epsilon=1.25, label_classes=CLASSES))
    wider = labels(bank.relation(), tp.Privacy(label_epsilon=1.0, label_classes=(*CLASSES, "none")))
    changed = cards().slice(1)  # the first row is gone
    bank.write(changed)
    later = labels(bank.relation(), PRIVATE)
    assert bank.spent == 1.0 + 1.25 + 1.0 + 1.0
    assert first != more
    assert {row: label for row, label in wider.items() if label < 3} != first
    moved = [later[row - 1] == first[row] for row in range(1, ROWS)]
    assert np.mean(moved) < 0.6  # noise that stood still would give 1


def test_a_budget_ends_releases(tmp_path: Path) -> None:
    """A fit that would exceed the table's budget is refused, says what is left, and spends nothing."""
    bank = Bank(tmp_path, "require_dp = true, epsilon = 2.5")
    tp.LogisticRegression(rounds=1, privacy=PRIVATE).fit(bank.relation())
    tp.LogisticRegression(rounds=1, privacy=PRIVATE).fit(bank.relation("k.g, c.grade"))
    with pytest.raises(
        tp.PrivacyError, match=r"party 'bank', table 'cards': epsilon 1\.5 is left of the 2\.5 .* needs 2\."
    ):
        tp.LogisticRegression(privacy=tp.Privacy(label_epsilon=2.0, label_classes=CLASSES)).fit(bank.relation())
    assert bank.spent == 1.0


def test_a_ledger_lets_nobody_test_guesses_of_labels(tmp_path: Path) -> None:
    """Which state of the labels was told is in the ledger under the party's secret: no plain hash of a column is."""
    bank = Bank(tmp_path)
    relation = bank.relation()
    tp.LogisticRegression(rounds=1, privacy=PRIVATE).fit(relation)
    party = party_of(relation.client.engine, "bank")
    snapshot = party.table(relation.client.session, "c", "analyst").snapshot
    state = column_state(snapshot, "grade", lambda scan: snapshot).fingerprint
    assert state.encode() not in (tmp_path / "state" / FILE).read_bytes()


def test_policy_and_job_agree(tmp_path: Path) -> None:
    """Bounds and classes of the policy are used if the job has none; others than those are refused."""
    columns = COLUMNS.replace('grade = "label"', f'grade = {{ uses = ["label"], categories = {list(CLASSES[::-1])} }}')
    columns = columns.replace(
        'score = ["label", "filter"]', 'score = { uses = ["label", "filter"], bounds = [0, 10.0] }'
    )
    bank = Bank(tmp_path, columns=columns)
    plain = tp.Privacy(label_epsilon=1.0)
    assert labels(bank.relation(), plain) == labels(bank.relation(), PRIVATE)
    scores = bank.relation("k.f, c.score", "score")
    learner = tp.LinearRegression(rounds=1)
    assert learner.set_params(privacy=plain).fit(scores).privacy_["label_epsilon"] == 1.0
    learner.set_params(privacy=NUMBERS).fit(scores)
    assert bank.spent == 2.0
    with pytest.raises(tp.PrivacyError, match="the policy has other bounds than label_bounds: leave label_bounds out"):
        learner.set_params(privacy=tp.Privacy(label_epsilon=1.0, label_bounds=(0.0, 9.0))).fit(scores)
    with pytest.raises(tp.PrivacyError, match="label 'grade': the policy has other classes than label_classes"):
        labels(bank.relation(), tp.Privacy(label_epsilon=1.0, label_classes=("low", "high")))


@pytest.mark.parametrize(
    ("make", "label", "privacy", "message"),
    [
        (
            tp.LogisticRegression,
            "grade",
            {},
            r"table 'cards', label 'grade': .*tp.Privacy\(label_classes=\('no', 'yes'",
        ),
        (tp.LinearRegression, "score", {}, r"tp.Privacy\(label_bounds=\(0.0, 5.0\)\), or let the party's policy"),
        (tp.LogisticRegression, "grade", {"label_bounds": (0.0, 1.0)}, "label_bounds are for regressors"),
        (
            tp.LinearRegression,
            "score",
            {"label_classes": (0, 1)},
            "are for classifiers; a regressor needs label_bounds",
        ),
        (tp.LogisticRegression, "score", {"label_classes": ("a", "b")}, "type is double, which the label classes do"),
    ],
)
def test_settings_that_do_not_fit(bank: Bank, make: Any, label: str, privacy: Mapping[str, Any], message: str) -> None:
    """A PrivacyError with advice that tells neither a row nor a value; nothing is charged."""
    with pytest.raises(tp.PrivacyError, match=message) as caught:
        make(privacy=tp.Privacy(label_epsilon=1.0, **privacy)).fit(bank.relation(f"k.f, c.{label}", label))
    assert "high" not in str(caught.value)
    assert bank.spent == 0.0


def test_missing_labels(bank: Bank) -> None:
    """A label that is missing in rows that take part gets noise like any other, and is charged: an error would tell
    that there is one. Where it is filtered by, the rows are gone.
    """
    table = cards()
    holes = pa.array([None if row % 50 == 0 else value for row, value in enumerate(table["score"].to_pylist())])
    bank.write(table.set_column(2, "score", holes))
    assert len(labels(bank.relation("k.f, c.score", "score"), NUMBERS)) == ROWS
    assert bank.spent > 0
    found = labels(bank.relation("k.f, c.score", "score", "WHERE c.score IS NOT NULL"), NUMBERS)
    assert len(found) == ROWS - ROWS // 50


def test_a_class_that_is_not_listed_is_not_told(bank: Bank) -> None:
    """Whether all labels are among the listed classes shows neither in the answer's shape nor in what is charged."""
    seen = []
    for classes in (("high", "low"), ("low", "mid"), ("none", "other")):
        before = bank.spent
        found = labels(bank.relation("k.f, c.grade", "grade"), tp.Privacy(label_epsilon=1.0, label_classes=classes))
        seen.append((len(found), len(set(found.values())), round(bank.spent - before, 9)))
    assert len(set(seen)) == 1


@pytest.mark.parametrize(
    ("select", "where", "how"),
    [
        ("k.f, c.score, c.score + c.x AS y", "", "feature"),
        ("k.f, c.score", "WHERE c.score > 3", "filter"),
        ("k.f, c.score", "WHERE c.score IS NOT NULL AND c.score + 1 > 3", "filter"),
        ("k.f, c.score", "AND CAST(c.score AS BIGINT) = k.g", "join key"),
    ],
)
def test_a_label_is_told_in_one_way_only(tmp_path: Path, select: str, where: str, how: str) -> None:
    """A query that would tell of the label's column beside the noisy label is refused, before anything is asked."""
    fed = federation(tmp_path, {"bank": {"cards": cards()}, "shop": {"clients": clients()}})
    relation = fed.sql(f"SELECT {select} {JOIN} {where}", label="score")
    with pytest.raises(tp.PrivacyError, match=rf"table 'cards', column 'score': .* used as a {how} too"):
        tp.LinearRegression(privacy=NUMBERS).fit(relation)
    if how == "filter":
        allowed = fed.sql(f"SELECT k.f, c.score {JOIN} WHERE (c.score) IS NOT NULL", label="score")
        tp.LinearRegression(privacy=NUMBERS, rounds=1).fit(allowed)


def test_no_true_label_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With noise on, what crosses in a fit and an evaluation holds no vector of true labels, nor does log or ledger."""
    bank = Bank(tmp_path, "require_dp = true")
    true = cards()["score"].to_numpy()
    relation = bank.relation("k.f, c.score", "score")
    replies: list[Any] = []
    call = InProcessTransport.call

    def recording(*told: Any) -> Any:
        replies.append(call(*told))
        return replies[-1]

    monkeypatch.setattr(InProcessTransport, "call", recording)
    train, test = relation.split()
    model = tp.LinearRegression(privacy=tp.Privacy(label_epsilon=4.0, label_bounds=(0.0, 10.0))).fit(train)
    model.evaluate(test)
    vectors = [value for reply in replies for part in reply for value in part.values() if isinstance(value, np.ndarray)]
    of_labels = [vector for vector in vectors if vector.dtype == np.float64 and len(vector) > ROWS // 10]
    assert len(of_labels) >= 2
    for vector in of_labels:
        assert np.isin(vector, true).mean() < 0.01
    kept = (tmp_path / "audit.jsonl").read_text() + (tmp_path / "state" / FILE).read_bytes().decode("latin-1")
    assert true[:50].tobytes().decode("latin-1") not in kept
    assert not any(f"{value!r}, " in kept for value in (7.0, 9.0))
    with pytest.raises(tp.PrivacyError, match="demands differential privacy"):
        tp.LinearRegression(rounds=1).fit(relation)
    model.privacy = None
    with pytest.raises(tp.PrivacyError, match="demands differential privacy"):
        model.evaluate(test)
    with pytest.raises(tp.PrivacyError, match="LABELS only with noise"):
        relation.client.ask("label.numbers", lambda alias, _: {"column": "score"} if alias == "c" else None).read()


def test_what_a_model_says(bank: Bank, tmp_path: Path) -> None:
    """``privacy_`` has what holds by table, party and in total; features without noise have no epsilon."""
    fed = bank.federation()
    relation = fed.sql(f"SELECT k.f, c.grade {JOIN}", label="grade")
    model = tp.LogisticRegression(rounds=2, privacy=PRIVATE).fit(relation)
    promise = model.privacy_
    assert (promise["epsilon"], promise["label_epsilon"], promise["delta"]) == (np.inf, 1.0, 0.0)
    assert promise["tables"]["cards"] == {
        "parties": ["bank"], "label": 1.0, "epsilon": None, "epsilon_given_messages": None,
    }  # fmt: skip
    assert promise["tables"]["clients"]["label"] is None
    assert promise["tables"]["clients"]["epsilon"] == promise["parties"]["shop"]["epsilon"] == np.inf
    assert promise["parties"]["bank"] == {"epsilon": 0.0, "epsilon_given_messages": 0.0}
    assert promise["total"]["epsilon"] == np.inf
    assert "Labels were noised" in promise["assumptions"]
    assert [entry["epsilon"] for entry in model.history_] == [1.0, 1.0]
    assert list(model.classes_) == list(CLASSES)
    warned = warnings_of(fed)
    assert set(model.evaluate(relation)) == {"accuracy", "auc", "log_loss"}
    assert model.evaluated_on_ == "noisy labels"
    assert [event.name for event in warned] == ["labels.noisy"]
    assert warned[0].fields == {"epsilon": 1.0}


def test_a_saved_model_keeps_its_promise(tmp_path: Path) -> None:
    """Settings and ``privacy_`` outlive the process; evaluation asks for noisy labels again."""
    fed = federation(tmp_path, {"bank": {"cards": cards()}})
    relation = fed.sql("SELECT x, grade FROM cards", label="grade")
    model = tp.LogisticRegression(rounds=1, privacy=PRIVATE).fit(relation)
    model.save(tmp_path / "model")
    loaded = tp.load(tmp_path / "model", fed)
    assert loaded.privacy == PRIVATE
    assert loaded.privacy_ == model.privacy_
    assert loaded.evaluate(relation) == model.evaluate(relation)
    pooled = Centralized(tp.LogisticRegression(privacy=PRIVATE)).fit(relation)
    assert pooled.privacy_["label_epsilon"] == 1.0


def test_without_noise_metrics_say_so(tmp_path: Path) -> None:
    """Nothing is told of noise where there is none."""
    fed = federation(tmp_path, {"bank": {"cards": cards(50)}})
    model = tp.LogisticRegression(rounds=1).fit(fed.sql("SELECT x, grade FROM cards", label="grade"))
    warned = warnings_of(fed)
    model.evaluate(fed.sql("SELECT x, grade FROM cards", label="grade"))
    assert (model.evaluated_on_, warned) == ("labels", [])


def test_a_job_with_privacy(tmp_path: Path) -> None:
    """``[learner.privacy]`` of a job file is what tp.Privacy takes; an unknown setting is an error."""
    write_party(tmp_path, "bank", {"cards": cards(200)})
    (tmp_path / "federation.toml").write_text('parties = { bank = "parquet:///bank" }')
    job = tmp_path / "job.toml"
    job.write_text(
        'federation = "federation.toml"\nsql = "SELECT x, grade FROM cards"\nlabel = "grade"\noutput = "run"\n'
        '[learner]\nkind = "LogisticRegression"\nrounds = 2\n[learner.privacy]\nlabel_epsilon = 3\n'
        'label_classes = ["low", "mid", "high"]\n'
    )
    Run.to_train(job, lambda event: None).train()
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    assert [entry["epsilon"] for entry in history] == [3, 3]
    model = Run.of_folder(tmp_path / "run", lambda event: None).model()
    assert model.privacy_["label_epsilon"] == 3
    job.write_text(job.read_text() + "colour = 3\n")
    with pytest.raises(tp.PrivacyError, match="privacy has no setting 'colour'"):
        Run.to_train(job, lambda event: None)
    job.write_text(job.read_text().replace("[learner.privacy]", "privacy = 3\n[other]"))
    with pytest.raises(tp.ConfigError):
        Run.to_train(job, lambda event: None)


def test_dates_and_booleans_are_classes(tmp_path: Path) -> None:
    """Classes are listed as values of the label's type, dates as text; they come back as such."""
    rows = pa.table({"x": np.arange(60.0), "day": pa.array(np.arange(60) % 2, pa.int32()).cast(pa.date32())})
    fed = federation(tmp_path, {"bank": {"days": rows.append_column("odd", pa.array(np.arange(60) % 2 == 1))}})
    privacy = tp.Privacy(label_epsilon=50.0, label_classes=("1970-01-02", "1970-01-01"))
    model = tp.LogisticRegression(rounds=1, privacy=privacy).fit(fed.sql("SELECT x, day FROM days", label="day"))
    assert [str(day) for day in model.classes_] == ["1970-01-01", "1970-01-02"]
    privacy = tp.Privacy(label_epsilon=50.0, label_classes=(True, False))
    relation = fed.sql("SELECT x, odd FROM days", label="odd")
    model = tp.LogisticRegression(rounds=1, privacy=privacy).fit(relation)
    assert model.classes_.tolist() == [False, True]


def test_each_shard_noises_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards have secrets of their own: equal rows at two parties get noise of their own."""
    fed = federation(tmp_path, {"east": {"cards": cards(400)}, "west": {"cards": cards(400)}})
    messages = record_wire(monkeypatch)
    tp.LogisticRegression(rounds=1, privacy=PRIVATE).fit(fed.sql("SELECT x, grade FROM cards", label="grade"))
    east, west = (m.reply["codes"] for m in messages if m.request.op == "label.private_classes" and m.reply)
    assert 0.2 < np.mean(east == west) < 0.7


def test_correction_tells_true_odds(tmp_path: Path) -> None:
    """Of labels with known noise, corrected learning finds the probabilities of the true classes."""
    rng = np.random.default_rng(0)
    for classes, name in ((2, "two"), (3, "three")):
        group = rng.integers(0, 2, 40_000)
        label = np.where(
            rng.random(40_000) < np.where(group == 1, 0.8, 0.1), 1, 2 * rng.integers(0, classes - 1, 40_000)
        )
        fed = federation(tmp_path, {name: {"t": pa.table({"g": group, "y": label})}}, wire="float64")
        relation = fed.sql("SELECT g, y FROM t", label="y")
        privacy = tp.Privacy(label_epsilon=1.0, label_classes=tuple(range(classes)))
        true = np.mean(label[group == 1] == 1)
        errors = []
        for correction in (False, True):
            model = tp.LogisticRegression(privacy=privacy, label_correction=correction).fit(relation)
            errors.append(abs(model.predict_proba(relation)[group == 1][0, 1] - true))
        assert errors[1] < 0.05 < 0.15 < errors[0]


def test_correction_needs_noise(bank: Bank) -> None:
    """There is nothing to correct in labels that are true."""
    with pytest.raises(tp.LearnError, match="label_correction is for labels with noise"):
        tp.LogisticRegression(label_correction=True).fit(bank.relation())
