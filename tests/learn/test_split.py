"""Networks across parties: the same as one network on the materialised join, however tables are cut."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.baselines import joined_tables
from tablepuppet.errors import PartyError
from tablepuppet.learn.solve.schedule import Allowed, Cost, RoundAllowance
from tablepuppet.learn.tables.dense import linear_layers
from tablepuppet.learn.tables.narrow import widened
from tablepuppet.learn.tables.parameters import Adam
from tablepuppet.learn.tables.torch_table import FlatModule
from tablepuppet.mapping.batches import batches
from tablepuppet.party.request import Reply, Request
from tablepuppet.prep.columns.label import ask_classes, ask_numbers, joined_classes, joined_numbers
from tablepuppet.store.folder import sealed
from tests.learn.materialised import ALL, JOIN, Array, shop
from tests.party.policed import federation as federation_of
from tests.party.policed import open_party, write_file
from tests.relations import federation, write_party
from tests.wire.losing import LosingParty, losing

torch = pytest.importorskip("torch", reason="networks need the extra `deep`")

TASKS: dict[str, int | None] = {"paid": None, "returned": 2, "grade": 4}
SIZE, SEED, LR, L2, EPOCHS = 37, 5, 0.01, 1e-3, 3
tasks = pytest.mark.parametrize("label", TASKS)
BOTTOM = tp.bottom.mlp(hidden=(6,), embedding=3, activation="tanh")


@pytest.fixture(scope="module", params=[1, 2], ids=["one shard", "two shards"])
def fed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), shop(request.param), wire="float64")


def relation_of(fed: tp.Federation, label: str) -> tp.Relation:
    return fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label)


def learner(label: str, **settings: Any) -> Any:
    given: dict[str, Any] = {
        "bottom": BOTTOM,
        "top": (5,),
        "epochs": EPOCHS,
        "batch_size": SIZE,
        "lr": LR,
        "l2": L2,
        "seed": SEED,
    }
    return (tp.SplitNNRegressor if TASKS[label] is None else tp.SplitNNClassifier)(**given | settings)


def pooled_parameters(relation: tp.Relation, model: Any, label: str) -> dict[str, Array]:
    """The parameters after the same epochs of torch's own Adam on the rows of the materialised join."""
    client, asked = relation.client, relation.query.label
    assert asked is not None
    if TASKS[label] is None:
        numbers: Any = joined_numbers(client, asked, ask_numbers(client, asked))
        targets, constant = torch.tensor(numbers / numbers.std()), np.array([(numbers / numbers.std()).mean()])
    else:
        numbers = joined_classes(client, asked, ask_classes(client, asked)).numbers
        shares = np.bincount(numbers) / len(numbers)
        constant = np.log(shares) if len(shares) > 2 else np.array([np.log(shares[1] / shares[0])])
        constant = constant - constant.mean() if len(shares) > 2 else constant
        targets = torch.tensor(numbers.astype(np.int64))
    tables = {a: torch.tensor(t.matrix()) for a, t in joined_tables(client, model.encoding_).items()}
    specs = model._model.specs
    networks = {a: specs[a].over(rows.shape[1], a) for a, rows in tables.items() if rows.shape[1]}
    modules = {
        a: FlatModule(torch.nn.Sequential(*linear_layers(n.dense.sizes, specs[a].activation)), double=True)
        for a, n in networks.items()
    }
    starts = {a: n.start(SEED, a, len(model.encoding_.numbers[a])) for a, n in networks.items()}
    flats = {a: torch.tensor(theta, requires_grad=True) for a, theta in starts.items()}
    top = model._top(dict.fromkeys(networks, 3), constant, True)
    flats[""] = torch.tensor(top.theta, requires_grad=True)
    optimiser = torch.optim.Adam(list(flats.values()), LR, weight_decay=L2)
    for epoch in range(EPOCHS):
        optimiser.param_groups[0]["lr"] = 0.5 * LR * (1 + np.cos(np.pi * (epoch + 0.5) / EPOCHS))
        for batch in batches(client.rows, list(networks), SIZE, SEED, epoch + 1):
            optimiser.zero_grad()
            rows = torch.from_numpy(batch.rows)
            joined = {a: modules[a](flats[a], tables[a][rows]) for a in networks}
            scores = top.flat(flats[""], torch.cat([joined[a] for a in networks], dim=1))
            if TASKS[label] is None:
                loss = 0.5 * ((scores[:, 0] - targets[rows]) ** 2).mean()
            elif TASKS[label] == 2:
                loss = torch.nn.functional.binary_cross_entropy_with_logits(scores[:, 0], targets[rows].double())
            else:
                loss = torch.nn.functional.cross_entropy(scores, targets[rows])
            loss.backward()
            optimiser.step()
    return {alias: flat.detach().numpy() for alias, flat in flats.items()}


@tasks
def test_it_is_one_network_on_the_join(fed: tp.Federation, label: str) -> None:
    relation = relation_of(fed, label)
    model = learner(label).fit(relation)
    wanted = pooled_parameters(relation, model, label)
    top = wanted.pop("")
    assert model._model.top.theta == pytest.approx(top, abs=1e-9)
    found = model._model.parameters()
    assert found.keys() == wanted.keys()
    for alias, theta in wanted.items():
        assert found[alias] == pytest.approx(theta, abs=1e-9), alias


def test_adam_is_torchs() -> None:
    rng = np.random.default_rng(0)
    theta = rng.normal(size=20)
    point = torch.tensor(theta.copy(), requires_grad=True)
    theirs, ours = torch.optim.Adam([point], 0.03, weight_decay=0.1), Adam.over(20)
    for _ in range(7):
        gradient = rng.normal(size=20)
        point.grad = torch.tensor(gradient)
        theirs.step()
        theta = ours.stepped(theta, gradient, 0.03, 0.1, 20)
    assert theta == pytest.approx(point.detach().numpy(), abs=1e-12)


@tasks
def test_it_is_saved_and_loaded(fed: tp.Federation, label: str, tmp_path: Path) -> None:
    relation = relation_of(fed, label)
    model = learner(label).fit(relation)
    model.save(tmp_path / "model")
    loaded = tp.load(tmp_path / "model", fed)
    assert np.array_equal(loaded.predict(relation), model.predict(relation))


SHORT: dict[str, Any] = {"epochs": 2, "batch_size": SIZE, "seed": SEED}
SWAPPED = (
    "SELECT i.weight, o.price, o.returned FROM orders o JOIN items i ON o.item_id = i.item_id",
    "SELECT c.credit, i.weight, i.kind, o.price, o.returned FROM orders o JOIN items i ON o.item_id = i.item_id "
    "JOIN cards c ON o.card_id = c.card_id",
)


@pytest.mark.parametrize("sql", SWAPPED, ids=["two tables", "three tables, one in shards"])
@pytest.mark.parametrize(
    "made",
    [
        lambda: tp.SplitNNClassifier(**SHORT),
        lambda: tp.FedOnceClassifier(guest_epochs=1, **SHORT),
        lambda: tp.TabVFLClassifier(latent=4, pretrain_epochs=1, **SHORT),
    ],
    ids=["SplitNN", "FedOnce", "TabVFL"],
)
def test_a_loaded_model_predicts_the_same_whatever_select_names_first(made: Any, sql: str, tmp_path: Path) -> None:
    """Tables are in another order in SELECT than in FROM; also in a new federation, and saved once more."""
    pytest.importorskip("pytorch_tabnet", reason="TabNet needs the extra `deep`")
    orders, others = shop(2 if "cards" in sql else 1), shop(1)
    parties = {n: t for n, t in others.items() if "orders" not in t} | {
        n: t for n, t in orders.items() if "orders" in t
    }
    urls = {name: write_party(tmp_path, name, tables) for name, tables in parties.items()}
    fed = tp.Federation(urls)
    model = made().fit(fed.sql(sql, label="returned"))
    wanted = model.predict_proba(fed.sql(sql, label="returned"))
    model.save(tmp_path / "model")
    tp.load(tmp_path / "model", fed).save(tmp_path / "again")
    for other in (fed, tp.Federation(urls)):
        for folder in ("model", "again"):
            loaded: Any = tp.load(tmp_path / folder, other)
            assert loaded.get_params() == model.get_params()
            assert loaded.predict_proba(other.sql(sql, label="returned")) == pytest.approx(wanted, abs=1e-6)


def test_a_folder_without_the_order_of_tables_is_refused(fed: tp.Federation, tmp_path: Path) -> None:
    """Earlier versions wrote such: it would predict wrongly where SELECT has another order than FROM."""
    learner("paid", epochs=1).fit(relation_of(fed, "paid")).save(tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    facts = json.loads(path.read_text())
    del facts["own"]["beside"], facts["digest"]
    path.write_text(sealed(facts, path.parent / facts["content"]))
    with pytest.raises(tp.LearnError, match=r"the order of their tables.*fit and save the model again"):
        tp.load(tmp_path / "model", fed)


def test_it_stops_early_and_keeps_the_best(fed: tp.Federation) -> None:
    train, test = relation_of(fed, "returned").split(0.3, 1)
    model = learner("returned", epochs=60, lr=0.05, patience=3).fit(train, test)
    losses = [entry["validation_loss"] for entry in model.history_]
    assert model.best_round_ == 1 + int(np.argmin(losses))
    assert model.evaluate(test)["log_loss"] == pytest.approx(min(losses), abs=1e-9)


def test_automatic_settings_learn_an_interaction_between_tables(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    users, items, n = 200, 150, 6000
    a, b = rng.normal(size=users), rng.normal(size=items)
    u, i = rng.integers(users, size=n), rng.integers(items, size=n)
    y = (a[u] * b[i] > 0).astype(int)
    parties = {
        "x": {"ratings": pa.table({"u": u, "i": i, "y": y, "noise": rng.normal(size=n)})},
        "y": {"users": pa.table({"u": np.arange(users), "a": a})},
        "z": {"items": pa.table({"i": np.arange(items), "b": b})},
    }
    fed = federation(tmp_path, parties)
    relation = fed.sql(
        "SELECT r.noise, s.a, t.b, r.y FROM ratings r JOIN users s USING (u) JOIN items t USING (i)", label="y"
    )
    train, test = relation.split(0.2, 0)
    assert tp.SplitNNClassifier().fit(train).evaluate(test)["auc"] > 0.97
    assert tp.MLPClassifier().fit(train).evaluate(test)["auc"] < 0.7  # a sum of scores cannot


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_numbers_of_16_bits_halve_the_bytes(tmp_path: Path, wire: str, shards: int) -> None:
    """Gradients are small: in float16 they travel in units of the largest of a batch, or most would vanish."""
    fed = federation(tmp_path, shop(shards))
    relation = relation_of(fed, "returned")

    def fitted(wire: str) -> tuple[Any, int]:
        before = embedded_bytes(fed)
        return learner("returned", epochs=5, wire=wire).fit(relation), embedded_bytes(fed) - before

    (whole, more), (narrow, fewer) = fitted("auto"), fitted(wire)
    assert fewer < 0.65 * more
    tolerance = 2e-3 if wire == "float16" else 1e-2
    assert narrow.history_[-1]["loss"] == pytest.approx(whole.history_[-1]["loss"], rel=tolerance)
    assert narrow.predict_proba(relation) == pytest.approx(whole.predict_proba(relation), abs=10 * tolerance)
    narrow.save(tmp_path / "model")
    assert tp.load(tmp_path / "model", fed).predict_proba(relation) == pytest.approx(narrow.predict_proba(relation))


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80, 0xFF80])
def test_bits_that_are_no_number_are_refused(bits: int) -> None:
    """NaN and infinities in 16 bits, as those of floats."""
    with pytest.raises(PartyError, match="must be finite"):
        widened(np.array([0x3F80, bits], np.uint16))


def embedded_bytes(fed: tp.Federation) -> int:
    """Bytes of embeddings."""
    return sum(e["bytes"] for e in fed.traffic if e["release"] == "EMBEDDINGS" and e["direction"] == "up")


# Lost parties


def at_batches(party: LosingParty, lost: range) -> None:
    """Let a party be lost during some of its steps."""
    call, steps = party.call, itertools.count()

    def counted(request: Request, patience: float | None = None) -> Reply:
        if any(step.op == "split.step" for step in request.steps):
            party.lost = next(steps) in lost
        return call(request, patience)

    party.call = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("mode", ["cache", "zeros"])
def test_it_goes_on_without_a_lost_party(tmp_path: Path, mode: Any) -> None:
    urls = {name: write_party(tmp_path, name, tables) for name, tables in shop(1).items()}
    fed, parties = losing(urls, on_party_lost=mode)
    at_batches(parties["supplier0"], range(5, 12))
    relation = relation_of(fed, "returned")
    model = learner("returned", epochs=6).fit(relation)
    assert any(entry["lost"] == ["supplier0"] for entry in model.history_)
    assert model.history_[-1]["lost"] == []
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]
    assert np.isfinite(model.predict_proba(relation)).all()


@pytest.mark.parametrize("epochs", [8, "auto"])
def test_it_has_not_converged_while_a_party_is_lost(tmp_path: Path, epochs: Any) -> None:
    """Its objective is flat, or that of rows held out, but the party may have more to add."""
    urls = {name: write_party(tmp_path, name, tables) for name, tables in shop(1).items()}
    ended: dict[str, list[Any]] = {}
    for lost in (range(0), range(20, 10**9)):
        fed, parties = losing(urls, on_party_lost="zeros")
        at_batches(parties["supplier0"], lost)
        seen: list[tp.Event] = []
        model = learner("returned", epochs=epochs, lr=1e-9, callbacks=[seen.append]).fit(relation_of(fed, "returned"))
        ended[model.stopped_] = [event.message for event in seen if event.name == "fit.short"]
        assert model.converged_ == model.history_[-1]["converged"] == (model.stopped_ == "converged")
    assert ended["converged"] == []
    assert "ended without supplier0; fit again when all parties answer" in ended["party lost"][0]


# Policies


def policed(folder: Path, table: str) -> tp.Federation:
    return federation_of(open_party(write_file(folder, table=table)))


CARDS = "SELECT c.credit, c.open, c.region, c.fraud FROM cards c"


def test_embeddings_need_an_opt_in(tmp_path: Path) -> None:
    relation = policed(tmp_path, "").sql(CARDS, label="fraud")
    with pytest.raises(tp.PrivacyError, match=r"'bank', table 'cards': does not release EMBEDDINGS.*embeddings = "):
        tp.SplitNNRegressor(epochs=1).fit(relation)


@pytest.mark.parametrize(
    ("kind", "settings", "ways"),
    [
        ("SplitNN", {}, "set epochs=6 or less, or make batch_size larger, or ask"),
        (
            "TabVFL",
            {"pretrain_epochs": 2},
            "set epochs=6 or less, or make batch_size larger, or lower pretrain_epochs, ",
        ),
        ("FedOnce", {"rounds": 3}, "set epochs=6 or less, or make batch_size larger, or lower rounds, or ask"),
    ],
)
def test_a_limit_of_replies_is_about_epochs(kind: str, settings: dict[str, Any], ways: str) -> None:
    """The error names settings that the learner has."""
    made = getattr(tp, f"{kind}Classifier")(epochs=500, batch_size=10, **settings)
    made._promise = None
    allowed = RoundAllowance([])
    allowed.tables = [Allowed("bank", "cards", 60, 0, Cost(0, 10))]
    with pytest.raises(tp.PrivacyError, match=rf"could need 5,000 for 500 epochs; {ways}"):
        made.plan_rounds(100, lambda batches: allowed)


@pytest.mark.parametrize("kind", [tp.SplitNNRegressor, tp.TabVFLRegressor])
def test_where_noise_is_demanded_other_learners_are_named(tmp_path: Path, kind: Any) -> None:
    file = write_file(tmp_path, top='state_dir = "state"', more="[tables.cards.budget]\nrequire_dp = true")
    (tmp_path / "state").mkdir()
    relation = federation_of(open_party(file)).sql(CARDS, label="fraud")
    for privacy in (None, tp.Privacy(label_epsilon=1.0, label_bounds=(0, 1))):
        with pytest.raises(
            tp.PrivacyError, match=r"learn with tp\.MLPClassifier, tp\.MLPRegressor or FedOnce.*feature_eps"
        ):
            kind(epochs=1, privacy=privacy).fit(relation)
    with pytest.raises(tp.PrivacyError, match=r"demands differential privacy; learn with privacy=tp"):
        tp.FedOnceRegressor(epochs=1).fit(relation)


def test_a_run_that_would_exceed_the_limit_is_refused_before_it_begins(tmp_path: Path) -> None:
    fed = policed(tmp_path, "embeddings = { max_width = 4, max_epochs = 3 }")
    relation = fed.sql(CARDS, label="fraud")
    with pytest.raises(tp.PrivacyError, match="at most 4 numbers, not 8"):
        tp.SplitNNRegressor(epochs=1).fit(relation)
    narrow = tp.bottom.mlp(hidden=(4,), embedding=4)
    with pytest.raises(tp.PrivacyError, match=r"released 3 times in a session; 4 epochs need up to 4.*epochs to 3 or"):
        tp.SplitNNRegressor(epochs=4, bottom=narrow).fit(relation)
    assert not [line for line in fed.traffic if "EMBEDDINGS" in str(line["release"])]
    model = tp.SplitNNRegressor(epochs=2, bottom=narrow).fit(relation)
    model.predict(relation)
    with pytest.raises(tp.PrivacyError, match="embeddings of a row 3 times"):
        model.predict(relation)


def test_a_policy_holds_against_own_requests(tmp_path: Path) -> None:
    """Whoever sends requests of its own gets no wider embeddings, no more of them, and none by other ops."""
    fed = policed(tmp_path, "embeddings = { max_width = 2, max_epochs = 2 }")
    relation = fed.sql(CARDS, label="fraud")
    client, encoding = relation.client, relation.fit_encoding()

    def ask(op: str, **arguments: Any) -> Any:
        return client.ask(op, lambda alias, shard: {"encoding": encoding.id, **arguments}).read()

    wide, narrow = (msgspec.structs.replace(tp.bottom.mlp((2,), width), double=True) for width in (3, 2))
    theta = np.zeros(narrow.theta_shape(5))
    with pytest.raises(tp.PrivacyError, match="at most 2 numbers"):
        ask("split.apply", spec=wide, theta=np.zeros(wide.theta_shape(5)))
    ask("split.apply", spec=narrow, theta=theta, places=np.zeros(2, np.int32))  # one row, twice
    with pytest.raises(tp.PrivacyError, match="embeddings of a row 2 times"):
        ask("split.apply", spec=narrow, theta=theta, places=np.zeros(1, np.int32))
    ask("model.start", model="m", spec=narrow, seed=0)
    with pytest.raises(tp.PartyError, match="embeddings, not scores"):
        ask("model.predict", model="m")


# Bad input


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"bottom": tp.bottom.cnn(shape=(3, 3))}, "takes images of 1 x 3 x 3 = 9 columns, but the table has"),
        ({"bottom": {"o": tp.bottom.mlp()}}, "bottom names no network for table"),
        ({"bottom": tp.bottom.registered("nobody")}, "no bottom network 'nobody' is registered here"),
        (
            {"bottom": {"orders": tp.bottom.mlp()}},
            "bottom names 'orders'.*keys are the aliases of the query, here 'o', 'i'",
        ),
        ({"bottom": "mlp"}, "bottom must be a bottom network"),
        ({"top": 32}, r"top must be the width of each hidden layer, as in \(16,\)"),
        ({"epochs": 0}, "epochs must be"),
        ({"privacy": tp.Privacy(feature_epsilon=1.0)}, "no form with noise on features"),
        ({"solver": "sgd"}, "has no setting 'solver'"),
    ],
)
def test_bad_settings_have_clear_errors(fed: tp.Federation, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(tp.TablePuppetError, match=match):
        learner("returned", **settings).fit(relation_of(fed, "returned"))


ANY: Any = tp.bottom  # with arguments of any type


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (lambda: ANY.mlp(hidden=32), r"^hidden must be at most 16 of: .*, as in \(32,\), not 32"),
        (lambda: ANY.mlp(hidden=(-3,)), r"^hidden must be .*, not \(-3,\)"),
        (lambda: ANY.mlp(hidden="32"), "^hidden must be .*, not '32'"),
        (lambda: ANY.mlp(embedding=0), "^embedding must be a number from 1 to 10000, not 0"),
        (lambda: ANY.mlp(embedding="8"), "^embedding must be .*, not '8'"),
        (lambda: ANY.mlp(activation="rel"), "^activation must be one of 'relu', 'tanh', not 'rel'"),
        (lambda: ANY.mlp(hiden=(8,)), "^mlp has no argument 'hiden'; did you mean 'hidden'"),
        (lambda: ANY.cnn(shape=196), r"^shape must be \(height, width\) or .*, not 196"),
        (lambda: ANY.cnn(shape=(14, 0)), "^shape must be"),
        (lambda: ANY.cnn(shape=(14, 14), channels=8), "^channels must be"),
        (lambda: ANY.cnn(shape=(14, 14), kernel=0), "^kernel must be a number from 1 to 15, not 0"),
        (lambda: ANY.tabnet(embedding=None), "^embedding must be"),
        (lambda: ANY.registered("a b"), "^name must be"),
        (lambda: tp.SplitNNClassifier.of_plain({"bottom": {"kind": "mlp", "embedding": 0}}), "^bottom: embedding must"),
    ],
)
def test_networks_of_tables_are_checked_when_they_are_made(made: Any, match: str) -> None:
    """Errors name the setting and what would be allowed."""
    with pytest.raises(tp.TablePuppetError, match=match):
        made()


@pytest.mark.parametrize("made", [tp.SplitNNClassifier, tp.FedOnceClassifier, tp.TabVFLClassifier])
def test_constant_columns_are_an_error_and_no_warning(made: Any, tmp_path: Path) -> None:
    """There is no network without inputs; nothing says that there would be."""
    pytest.importorskip("pytorch_tabnet", reason="TabNet needs the extra `deep`")
    rows = pa.table({"a": [1.0] * 20, "y": [0, 1] * 10})
    fed = federation(tmp_path, {"x": {"t": rows}})
    seen: list[str] = []
    fed.events.subscribe(lambda event: seen.append(event.name))
    with pytest.raises(tp.LearnError, match="no feature is left to learn from, and networks across parties need one"):
        made(epochs=1).fit(fed.sql("SELECT t.a, t.y FROM t", label="y"))
    assert "features.none" not in seen


def test_an_operators_own_module_is_known_by_its_name(fed: tp.Federation) -> None:
    tp.bottom.register("halves", lambda width, outputs: torch.nn.Linear(width, outputs, bias=False))
    model = learner("returned", bottom=tp.bottom.registered("halves", 2)).fit(relation_of(fed, "returned"))
    assert {len(theta) % 2 for theta in model._model.parameters().values()} == {0}
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]


def test_a_module_that_fails_is_named(fed: tp.Federation) -> None:
    """Whether it cannot be made, is no module, fails on rows or returns other numbers than it should."""
    relation = relation_of(fed, "returned")
    for factory, wrong in (
        (lambda width, outputs: 1 // 0, "cannot be made of .*ZeroDivisionError"),
        (lambda width, outputs: width, "is no torch module but int"),
        (lambda width, outputs: torch.nn.Linear(width + 1, outputs), "fails on rows: RuntimeError"),
        (
            lambda width, outputs: torch.nn.Linear(width, outputs + 1),
            r"returns \(\d+, 3\) for \d+ rows, not \(rows, 2\)",
        ),
    ):
        tp.bottom.register("broken", factory)
        with pytest.raises(tp.LearnError, match=f"bottom network 'broken', which is registered here, {wrong}"):
            learner("returned", bottom=tp.bottom.registered("broken", 2)).fit(relation)
    for name, given in (("m", 3), (3, torch.nn.Linear)):
        with pytest.raises(tp.LearnError, match="takes a name and a function"):
            tp.bottom.register(name, given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "made",
    [
        tp.bottom.mlp(), tp.bottom.cnn((4, 6), (3,), hidden=[5]), tp.bottom.tabnet(embedding=3),
        tp.bottom.registered("x", 2),
    ],
)  # fmt: skip
def test_bottoms_are_shown_as_they_are_made(made: Any) -> None:
    assert eval(repr(made), {"tp": tp}) == made


def test_one_seed_one_result_and_job_files(fed: tp.Federation) -> None:
    first, again = (learner("grade").fit(relation_of(fed, "grade")) for _ in range(2))
    assert np.array_equal(first._model.top.theta, again._model.top.theta)
    both: dict[str, Any] = {"o": tp.bottom.mlp((4, 3), 2), "i": tp.bottom.cnn((2, 3), (4,), embedding=5, hidden=[6])}
    for given in (both, both["i"], tp.bottom.registered("x")):
        told = tp.SplitNNClassifier(bottom=given).plain_settings()
        assert tp.SplitNNClassifier.of_plain(told).bottom == given


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (
            {"o": {"kind": "mlp"}},
            r"under `tables`: \[learner\.bottom\.tables\.o\]; in each set kind to one of mlp, cnn",
        ),
        (
            {"kind": "mpl"},
            "bottom has kind 'mpl': set kind to one of mlp, cnn, tabnet, registered; or networks by alias",
        ),
        ("mlp", "bottom must be a section, not 'mlp'"),
        ({"kind": "mlp", "width": 3}, "bottom: .*width"),
    ],
)
def test_bottoms_of_job_files_that_cannot_be(given: Any, match: str) -> None:
    with pytest.raises(tp.ConfigError, match=match):
        tp.SplitNNClassifier.of_plain({"bottom": given})


def test_the_order_of_rows_counts_for_mini_batches_only(tmp_path: Path) -> None:
    """Services have row ids of their own: batches of all rows give the model of one process, others another one."""
    urls = {name: write_party(tmp_path, name, tables) for name, tables in shop(1).items()}
    for size, equal in ((10**6, True), (SIZE, False)):
        feds = tp.Federation(urls, wire="float64"), losing(urls)[0]
        here, there = (learner("returned", batch_size=size).fit(relation_of(fed, "returned")) for fed in feds)
        assert np.allclose(here._model.top.theta, there._model.top.theta, rtol=1e-9) == equal


def test_a_cnn_sees_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.normal(size=(400, 8, 8))
    bright = pictures[:, 2:4, 2:4].sum(axis=(1, 2)) > 0
    pixels = {f"p{i:02}": pictures.reshape(400, 64)[:, i] for i in range(64)}
    table = pa.table({"id": np.arange(400), **pixels, "bright": bright.astype(int)})
    relation = federation(tmp_path, {"a": {"t": table}}).sql(
        f"SELECT {', '.join(f't.{name}' for name in pixels)}, t.bright FROM t", label="bright"
    )
    for hidden in ((), (6,)):
        bottom = tp.bottom.cnn((8, 8), (8,), embedding=4, hidden=hidden)
        model = tp.SplitNNClassifier(bottom=bottom, epochs=60, seed=1).fit(relation)
        assert model.evaluate(relation)["accuracy"] > 0.95
        connected = sum((into + 1) * out for into, out in itertools.pairwise((8 * 4 * 4, *hidden, 4)))
        assert [len(theta) for theta in model._model.parameters().values()] == [(3 * 3 + 1) * 8 + connected]
