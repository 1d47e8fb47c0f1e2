"""Noisy steps at a party: drawn again alike, charged before they are told, on a sample that nobody sees."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.learn import private_sgd
from tablepuppet.learn.part import part_of
from tablepuppet.party.ops import LocalTable, View
from tablepuppet.prep.encoded_table import EncodedTable
from tablepuppet.privacy.accountant import Spending
from tablepuppet.privacy.noise import sampling_epsilon

ROWS = 400
STEPS = {"table_rows": ROWS, "clip": 1.0, "multiplier": 2.0, "sampling": 0.25}
MODELS = pytest.mark.parametrize("hidden", [None, [4]], ids=["linear", "network"])


def encoded_rows() -> EncodedTable:
    """Numbers and categories; the first rows are null records."""
    rng = np.random.default_rng(0)
    dense, codes = rng.normal(size=(ROWS, 2)), rng.integers(0, 3, ROWS).astype(np.int32)
    dense[:10], codes[:10] = 0.0, -1
    return EncodedTable(dense, (codes,), (3,))


def local_table(nonce: str = "session", charges: list[Any] | None = None) -> LocalTable:
    """A shard whose rows are encoded; what is charged is written down."""
    stand_in: Any = SimpleNamespace(scan=SimpleNamespace(alias="t", party="p"), party="p", must_mask=False)
    stand_in.rules = SimpleNamespace(secure_sum=False)
    stand_in.is_bound, stand_in.refusal = False, lambda rule, reason: PrivacyError(reason, rule=rule)
    table = LocalTable(
        snapshot=stand_in, grant=stand_in, secret=b"", run="", secure=stand_in, noise_secret=b"known to the party",
        nonce=nonce, wire="float64",
    )  # fmt: skip
    table.charged = lambda cost, purpose, release: None if charges is None else charges.append((cost, release))
    table.views["v"] = View(np.arange(ROWS), np.full(ROWS, 3))
    table.state["v/e"] = encoded_rows()
    return table


def begun(hidden: list[int] | None, **settings: Any) -> LocalTable:
    """A shard at the start of a model."""
    if hidden is not None:
        pytest.importorskip("opacus", reason="private networks need the extra `deep`")
    table = local_table(**settings)
    private_sgd.begin(table, "v", "e", "m", seed=0, hidden=hidden, outputs=1)
    return table


def steps(table: LocalTable, number: int = 3, **changed: Any) -> dict[str, Any]:
    """Some steps of a round."""
    rows = np.sin(np.arange(ROWS)) / ROWS
    given = {"rows": rows, "pull": 1 / ROWS, "rates": np.full(number, 0.1), "momentum": 0.5, "l2": 0.0} | STEPS
    return private_sgd.descend(table, "v", "e", "m", **(given | changed))


@MODELS
def test_drawn_again_alike(hidden: list[int] | None) -> None:
    """A session that is computed again has the same samples and noise; another session has others."""
    told = [steps(begun(hidden, nonce=nonce))["image"] for nonce in ("one", "one", "two")]
    np.testing.assert_array_equal(told[0], told[1])
    assert not np.array_equal(told[0], told[2])


@MODELS
def test_charged_for_each_step(hidden: list[int] | None) -> None:
    """Each step costs what Gaussian noise on a sample costs, under a name of its own."""
    charges: list[Any] = []
    table = begun(hidden, charges=charges)
    steps(table, 3)
    size = part_of(table, "m").theta.size
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
    assert not part_of(table, "m").theta.any()


@MODELS
def test_predictions_of_all_rows(hidden: list[int] | None) -> None:
    """They come for rows that are in no sample too: which rows a step used is not told. At first all are zero."""
    table = begun(hidden)
    assert not steps(table, 0)["image"].any()
    image = steps(table, 1, sampling=1e-3)["image"]
    assert image.shape == (ROWS,)
    assert image[10:].all()


def test_other_values_have_other_noise_and_cost_anew() -> None:
    """A release of the same number in the same session, but of other values, as after a change of what came before it:
    the difference of both has noise, and both are charged. The same values again have the same noise, and its name.
    """
    charges: list[Any] = []
    told = []
    for values in (np.zeros(5), np.zeros(5), np.ones(5)):
        told.append(local_table("one", charges).noisy(values, 1.0, 2.0, "gradient") - values)
    np.testing.assert_array_equal(told[0], told[1])
    assert np.abs(told[2] - told[0]).min() > 1e-6
    names = [name for _, name in charges]
    assert names[0] == names[1] != names[2]
    samples = [local_table("one").sample(ROWS, 0.25, given) for given in (b"a", b"a", b"b")]
    assert [list(samples[0]) == list(other) for other in samples[1:]] == [True, False]


def test_samples_are_poisson() -> None:
    """Rows are in a sample on their own: sizes vary as they should, and every sample is another."""
    table, found = local_table(), []
    for _ in range(200):
        found.append(table.sample(ROWS, 0.25))
        table._releases += 1
    sizes = np.array([len(chosen) for chosen in found])
    assert abs(sizes.mean() - 100) < 5 * np.sqrt(75 / 200)
    assert 40 < sizes.var() < 120
    often = np.bincount(np.concatenate(found), minlength=ROWS)
    assert abs(often - 50).max() < 6 * np.sqrt(37.5)


@pytest.mark.parametrize("sampling", [1.0, 0.3])
def test_noisy_gradient_is_right_on_average(sampling: float) -> None:
    """Over many samples the noisy gradient is the clipped one over all rows, with the noise that was asked for."""
    table = begun(None)
    part, rows = part_of(table, "m"), np.sin(np.arange(ROWS)) / ROWS
    drawn = private_sgd.NoisySteps.of(
        table, "v", "e", private_sgd.rows_of(part), part.theta, rows, 0.0, ROWS, 1.0, 2.0, sampling
    )
    found = np.stack([drawn.gradient(part.theta) for _ in range(2000)])
    whole = drawn.clipped(part.theta, np.arange(ROWS)) / ROWS
    noise = 2.0 / (sampling * ROWS)
    np.testing.assert_allclose(found.mean(axis=0), whole, atol=6 * 3 * noise / np.sqrt(2000))
    if sampling == 1:
        np.testing.assert_allclose(found.std(axis=0), noise, rtol=0.1)


@MODELS
def test_noisy_predictions_of_null_records(hidden: list[int] | None) -> None:
    """Null records predict zero, and noise is added to all rows, for a bound that rows do not change."""
    charges: list[Any] = []
    table = begun(hidden, charges=charges)
    steps(table)
    del charges[:]
    told = private_sgd.predict_within(table, "v", "e", "m", bound=1.0, image_multiplier=1e-6)["image"]
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
        steps(begun(None), sampling=1.5)


def test_a_shard_must_have_begun() -> None:
    """A step without what is wanted of the rows is an error."""
    with pytest.raises(PartyError, match="has not begun"):
        private_sgd.sampled_gradient(
            local_table(), "v", "e", "m", theta=np.zeros(5), pull=0.0, hidden=None, outputs=1, **STEPS
        )


def test_rows_that_are_listed_twice_are_refused() -> None:
    """Such a row would add twice its bound."""
    table = begun(None)
    table.views["v"] = View(np.zeros(ROWS, np.int64), np.full(ROWS, 3))
    with pytest.raises(PrivacyError, match="listed twice"):
        steps(table)
