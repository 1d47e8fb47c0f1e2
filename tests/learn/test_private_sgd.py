"""Noisy steps at a party: drawn again alike, charged before they are told, on a sample that nobody sees."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.learn.private import steps as noisy_steps
from tablepuppet.learn.tables import ops as model_ops
from tablepuppet.learn.tables.dense import Network
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.tables.parameters import parameters_of
from tablepuppet.party.arguments import PredictionNoise, SampleNoise
from tablepuppet.party.bounded import Bounded, Owned
from tablepuppet.party.kept import Shelf
from tablepuppet.party.ledger import Budget, Ledger
from tablepuppet.party.local_table import Charge, LocalTable, RelationRows, Unlogged
from tablepuppet.party.ops import find_op
from tablepuppet.prep.encode.encode import EncodedShard
from tablepuppet.prep.encode.encoded_table import EncodedTable, SealedTable
from tablepuppet.privacy.accountant import Spending
from tablepuppet.privacy.noise import sampling_epsilon

ROWS = 400
NOISE = SampleNoise(ROWS, clip=1.0, multiplier=2.0, sampling=0.25)
MODELS = pytest.mark.parametrize("hidden", [None, [4]], ids=["linear", "network"])


def encoded_rows() -> EncodedTable:
    """Numbers and categories; the first rows are null records."""
    rng = np.random.default_rng(0)
    dense, codes = rng.normal(size=(ROWS, 2)), rng.integers(0, 3, ROWS).astype(np.int32)
    dense[:10], codes[:10] = 0.0, -1
    return EncodedTable(dense, (codes,), (3,))


def local_table(nonce: str = "session", charges: list[Any] | None = None, charged: Charge | None = None) -> LocalTable:
    """A shard whose rows are encoded; what is charged is written down, or handed to a ledger."""
    stand_in: Any = SimpleNamespace(scan=SimpleNamespace(alias="t", party="p"), party="p", must_mask=False)
    stand_in.rules = SimpleNamespace(secure_sum=False, budget=Budget())
    stand_in.is_bound, stand_in.refusal = False, lambda rule, reason: PrivacyError(reason, rule=rule)
    stand_in.watched = lambda look: stand_in
    unused: Any = None
    table = LocalTable(
        snapshot=stand_in, caller="analyst", grant=stand_in, secure=stand_in, wire="float64", secret=b"", run_key=b"",
        category_secrets={}, noise_secret=b"known to the party", nonce=nonce, views=Bounded(), _held_here=Bounded(),
        _held_models=Owned(Bounded(), {}, ""), _shelf=Shelf(""), made=Unlogged(), charged=unused, split_by=unused,
        refine=unused, _read_now=unused, _read_beside=unused, deliveries=unused,
    )  # fmt: skip

    def charge(cost: Spending, purpose: str, release: str | None, line: str) -> None:
        if charges is not None:
            charges.append((cost, release))

    table.charged = charged or charge
    table.views["v"] = RelationRows(np.arange(ROWS), np.full(ROWS, 3))
    table.state["v/e"] = EncodedShard(SealedTable.of(encoded_rows()), table.views["v"], private=True)
    return table


def begun(hidden: list[int] | None, **settings: Any) -> LocalTable:
    """A shard at the start of a model."""
    if hidden is not None:
        pytest.importorskip("torch", reason="private networks need the extra `deep`")
    table = local_table(**settings)
    spec = Linear(1) if hidden is None else Network(hidden, 1)
    model_ops.start(table, "v", "e", "m", spec, seed=0, zero=True)
    return table


def steps(table: LocalTable, number: int = 3, **changed: Any) -> dict[str, Any]:
    """Some steps of a round."""
    rows = np.sin(np.arange(ROWS)) / ROWS
    given = {
        "rows": rows,
        "proximal": 1 / ROWS,
        "rates": np.full(number, 0.1),
        "momentum": 0.5,
        "l2": 0.0,
        "noise": NOISE,
    }
    return find_op("steps.descend").function(table, view="v", encoding="e", model="m", **(given | changed))


@MODELS
def test_drawn_again_alike(hidden: list[int] | None) -> None:
    """A session that is computed again has the same samples and noise; another session has others."""
    told = [steps(begun(hidden, nonce=nonce))["outputs"] for nonce in ("one", "one", "two")]
    np.testing.assert_array_equal(told[0], told[1])
    assert not np.array_equal(told[0], told[2])


@MODELS
def test_charged_for_each_step(hidden: list[int] | None) -> None:
    """Each step costs what Gaussian noise on a sample costs, under a name of its own."""
    charges: list[Any] = []
    table = begun(hidden, charges=charges)
    steps(table, 3)
    size = parameters_of(table, "m").theta.size
    cost = Spending.of_gaussian(2.0, 1, 0.25) + Spending.of_pure(sampling_epsilon(size))
    assert [each for each, _ in charges] == [cost] * 3
    assert len({release for _, release in charges}) == 3


def test_nothing_is_told_that_cannot_be_charged() -> None:
    """Where the budget is spent, parameters stay as they were."""
    table = begun(None)

    def refuse(*_: Any) -> None:
        raise PrivacyError("nothing is left")

    table.charged = refuse
    with pytest.raises(PrivacyError, match="nothing is left"):
        steps(table)
    assert not parameters_of(table, "m").theta.any()


@MODELS
def test_predictions_of_all_rows(hidden: list[int] | None) -> None:
    """They come for rows that are in no sample too: which rows a step used is not told. At first all are zero."""
    table = begun(hidden)
    assert not steps(table, 0)["outputs"].any()
    image = steps(table, 1, noise=replace(NOISE, sampling=1e-3))["outputs"]
    assert image.shape == (ROWS,)
    assert image[10:].all()


class Log(dict[str, Any]):
    """Releases of a session that outlive its process."""

    def put(self, name: str, values: Any, size: int) -> None:
        self[name] = values


def test_what_was_sent_is_sent_again(tmp_path: Path) -> None:
    """A party that was killed sends the release that it has sent, computes nothing for it and charges nothing, also if
    other values would come out now. One that was killed in the middle of a release has not paid for nothing.
    """
    ledger, log, told, spent = Ledger(tmp_path / "ledger.sqlite", "p"), Log(), [], []

    def charge(cost: Spending, purpose: str, release: str | None, line: str) -> None:
        ledger.charge("t", "ann", cost, Budget(), purpose=purpose, release=release, line=line)

    def killed() -> list[Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local_table("one", charged=charge).noisy(killed, (5,), 1.0, 2.0, "gradient")
    for values in (np.zeros(5), np.zeros(5), np.ones(5)):
        table = local_table("one", charged=charge)
        table.made = log
        told.append(table.noisy(partial(list, [values]), (5,), 1.0, 2.0, "gradient"))
        spent.append(ledger.spent("t").pure)
    np.testing.assert_array_equal(told[0], told[1])
    np.testing.assert_array_equal(told[0], told[2])
    assert spent == [sampling_epsilon(5)] * 3
    assert np.abs(local_table("one").noisy(partial(list, [np.ones(5)]), (5,), 1.0, 2.0, "gradient") - told[0] - 1).all()


def test_no_two_releases_have_a_name() -> None:
    """Not those of one op, of two ops, or of an op that was refused and the next; an op never comes again."""
    charges: list[Any] = []
    table = local_table(charges=charges)
    for place in ((1, 0), (1, 1), (2, 0), None, (7, 0), None):
        table.begin(place)
        for _ in range(2):
            table.noisy(partial(list, [np.zeros(5)]), (5,), 1.0, 2.0, "gradient")
    assert len({name for _, name in charges}) == 12
    with pytest.raises(PartyError, match="came twice"):
        table.begin((7, 0))


def test_samples_are_those_of_a_release() -> None:
    """The same whenever a release is computed, and others for other parameters."""
    samples = [local_table("one").sample(ROWS, 0.25, given) for given in (b"a", b"a", b"b")]
    assert [list(samples[0]) == list(other) for other in samples[1:]] == [True, False]


@MODELS
@pytest.mark.parametrize("shape", [(-1, 1), (1, -1), (-1, ROWS), (0,), ()])
def test_parameters_keep_their_shape(hidden: list[int] | None, shape: tuple[int, ...]) -> None:
    """Later parameters of a round have the shape of the first, or are refused before a sample is drawn and charged: of
    another shape they would mix the predictions of rows.
    """
    charges: list[Any] = []
    table = begun(hidden, charges=charges)
    theta, spec = np.zeros(parameters_of(table, "m").theta.size), Linear(1) if hidden is None else Network(hidden, 1)
    ask = partial(noisy_steps.gradient, table, "v", "e", "m", spec, proximal=1.0, noise=NOISE)
    assert ask(theta=theta, rows=np.zeros(ROWS))["sums"].shape == theta.shape
    other = np.zeros([theta.size if size < 0 else size for size in shape])
    with pytest.raises(PartyError, match="parameters of another shape"):
        ask(theta=other)
    assert len(charges) == 1
    assert ask(theta=theta + 1)["sums"].shape == theta.shape


@pytest.mark.parametrize("op", ["descend", "gradient"])
def test_what_is_refused_changes_nothing(op: str) -> None:
    """Where the budget ends between two steps, parameters and rounds are those from before the first: a party that is
    started anew does not run a refused request again, and must stand where it stood.
    """
    table, left = begun(None), [3]

    def charge(*_: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise PrivacyError("nothing is left")

    table.charged = charge
    if op == "descend":
        with pytest.raises(PrivacyError):
            steps(table, 5, prediction_noise=PredictionNoise(1.0, 1.0))
        part = parameters_of(table, "m")
        assert not part.theta.any()
        assert part.velocity is None
    else:
        ask = partial(noisy_steps.gradient, table, "v", "e", "m", Linear(1), np.zeros(5), 0.0, NOISE)
        ask(rows=np.ones(ROWS))
        before, left[0] = table.state["m/v/steps"], 0
        with pytest.raises(PrivacyError):
            ask(rows=np.zeros(ROWS))
        assert table.state["m/v/steps"] is before


def test_the_charge_comes_before_any_row() -> None:
    """Nothing is computed of rows before the release is charged, and what a charge refuses is not computed."""
    seen: list[str] = []

    def rows() -> list[Any]:
        seen.append("rows")
        return [np.zeros(5)]

    table = local_table(charged=lambda *_: seen.append("charge"))
    table.noisy(rows, (5,), 1.0, 2.0, "gradient")
    assert seen == ["charge", "rows"]


def test_samples_are_poisson() -> None:
    """Rows are in a sample on their own: sizes vary as they should, and every sample is another."""
    table, found = local_table(), []
    for _ in range(200):
        found.append(table.sample(ROWS, 0.25))
        table.begin()
    sizes = np.array([len(chosen) for chosen in found])
    assert abs(sizes.mean() - 100) < 5 * np.sqrt(75 / 200)
    assert 40 < sizes.var() < 120
    often = np.bincount(np.concatenate(found), minlength=ROWS)
    assert abs(often - 50).max() < 6 * np.sqrt(37.5)


@pytest.mark.parametrize("sampling", [1.0, 0.3])
def test_noisy_gradient_is_right_on_average(sampling: float) -> None:
    """Over many samples the noisy gradient is the clipped one over all rows, with the noise that was asked for."""
    table = begun(None)
    part, rows = parameters_of(table, "m"), np.sin(np.arange(ROWS)) / ROWS
    noise = replace(NOISE, sampling=sampling)
    drawn = noisy_steps.NoisySteps.of(table, "v", "e", part.model.by_row, part.theta, rows, 0.0, noise)
    found = np.stack([drawn.gradient(part.theta) for _ in range(2000)])
    whole = np.sum(list(drawn.parts(part.theta, np.arange(ROWS))), axis=0) / ROWS
    deviation = 2.0 / (sampling * ROWS)
    np.testing.assert_allclose(found.mean(axis=0), whole, atol=6 * 3 * deviation / np.sqrt(2000))
    if sampling == 1:
        np.testing.assert_allclose(found.std(axis=0), deviation, rtol=0.1)


@MODELS
def test_noisy_predictions_of_null_records(hidden: list[int] | None) -> None:
    """Null records predict zero, and noise is added to all rows, for a bound that rows do not change."""
    charges: list[Any] = []
    table = begun(hidden, charges=charges)
    steps(table)
    del charges[:]
    told = model_ops.predict(table, "v", "e", "m", PredictionNoise(1e-6, 1.0))["outputs"]
    assert np.abs(told[:10]).max() < 1e-4 < np.abs(told).max() <= 1.0 + 1e-4
    assert charges[0][0].gaussian == Spending.of_gaussian(1e-6).gaussian


@pytest.mark.parametrize("rows", [np.zeros(3), np.full(ROWS, np.nan)])
def test_bad_rows_are_refused(rows: Any) -> None:
    """Too few numbers, and those that are none."""
    with pytest.raises(PartyError, match="one finite number"):
        steps(begun(None), rows=rows)


def test_a_sample_of_more_than_all_is_refused() -> None:
    """A party takes no sampling probability above 1."""
    with pytest.raises(PrivacyError, match="sampling probability"):
        steps(begun(None), noise=replace(NOISE, sampling=1.5))


def test_a_shard_must_have_begun() -> None:
    """A step without what is wanted of the rows is an error."""
    with pytest.raises(PartyError, match="has not started"):
        noisy_steps.gradient(local_table(), "v", "e", "m", Linear(1), np.zeros(5), 0.0, NOISE)


def test_rows_that_are_listed_twice_are_refused() -> None:
    """Such a row would add twice its bound; that other rows are announced after it was encoded hides nothing."""
    table, once = begun(None), local_table().views["v"]
    twice = RelationRows(np.zeros(ROWS, np.int64), np.full(ROWS, 3))
    table.views["v"] = twice
    table.state["v/e"] = EncodedShard(SealedTable.of(encoded_rows()), twice, private=True)
    with pytest.raises(PrivacyError, match="listed twice"):
        steps(table)
    table.views["v"] = once
    with pytest.raises(PartyError, match="has not encoded the rows"):
        steps(table)
