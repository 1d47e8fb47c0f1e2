"""The designs that TabVFL is compared with learn, and differ where the paper says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pytorch_tabnet")

from benchmarks.baselines.latent_quality import downstream, held_out, mixed  # noqa: E402
from benchmarks.baselines.tabnets import DESIGNS, DesignBudget, build, cut, train  # noqa: E402
from tablepuppet.learn.split.tabnet import TabNetShape  # noqa: E402

SHAPE = TabNetShape(latent=4, attention=4, steps=2)


def rows(count: int, seed: int = 0) -> tuple[Any, Any]:
    """Six columns, those of a guest alike; the class depends on columns of both guests."""
    rng = np.random.default_rng(seed)
    columns = (rng.normal(size=(count, 2)).repeat(3, axis=1) + 0.2 * rng.normal(size=(count, 6))).astype(np.float32)
    return columns, (columns[:, 0] + columns[:, 5] > 0).astype(np.int64)


@pytest.mark.parametrize("design", DESIGNS)
def test_every_design_learns(design: Any) -> None:
    """Both losses fall on validation rows, latent vectors have the asked width, and one seed gives one result."""
    columns, labels = rows(400)
    validation = np.arange(400) % 5 == 0
    budget = DesignBudget(pretrain_epochs=6, epochs=12, batch_size=64)
    found = [train(design, cut(columns, 2), labels, validation, SHAPE, budget) for _ in range(2)]
    assert np.isfinite(found[0].pretraining).all()  # measured on validation rows, where it need not fall
    assert min(found[0].finetuning) < 0.6 or design == "lt"  # whose encoders see no label
    assert (found[0].pretraining, found[0].finetuning) == (found[1].pretraining, found[1].finetuning)
    assert found[0].latent(cut(columns, 1 if design == "ct" else 2)).shape == (400, 4)


def test_local_tabnets_have_nothing_in_common_in_pretraining() -> None:
    """The error of local TabNets has no gradient from one guest's columns to the other's network; TabVFL's has."""
    columns, _ = rows(32)
    parts = [torch.from_numpy(part) for part in cut(columns, 2)]
    masks = [(torch.arange(96).reshape(32, 3) % 4 == 0).float() for _ in parts]
    wanted: dict[Any, bool] = {"lt": False, "tabvfl-le": True, "tabvfl": True}
    for design, joint in wanted.items():
        network: Any = build(design, [3, 3], SHAPE, 2, 0)
        parts[1].requires_grad_()
        weight = next(iter((network.encoders if hasattr(network, "encoders") else network.guests)[0].parameters()))
        (slope,) = torch.autograd.grad(
            network.reconstruction(parts, masks), weight, create_graph=True, allow_unused=True
        )
        (across,) = torch.autograd.grad(slope.sum(), parts[1], allow_unused=True)
        assert (across is not None and bool(across.abs().sum() > 0)) == joint


def test_finetuning_leaves_local_tabnets_alone_unless_they_are_tuned() -> None:
    """Both kinds of local TabNets have one pretraining; LT's latent vectors come of it alone."""
    columns, labels = rows(200)
    parts, validation = cut(columns, 2), np.arange(200) % 5 == 0

    def latent(design: Any, epochs: int) -> Any:
        budget = DesignBudget(pretrain_epochs=3, epochs=epochs, batch_size=64)
        return train(design, parts, labels, validation, SHAPE, budget).latent(parts)

    assert np.array_equal(latent("lt", 4), latent("lt", 0))
    assert np.array_equal(latent("lt", 0), latent("lt-tuned", 0))
    assert not np.allclose(latent("lt-tuned", 4), latent("lt", 0))


def test_latent_quality_is_the_mean_of_six_learners() -> None:
    """Vectors that give the class away score 1; their shuffles do not."""
    rng, labels = np.random.default_rng(0), np.arange(300) % 2
    latent = labels[:, None] * 4.0 + rng.normal(size=(300, 2)) * 0.1
    scores = mixed(latent, labels)
    assert scores.keys() == {*downstream(0), "mean"}
    assert scores["mean"] == 1.0
    seen = np.arange(300) < 200
    assert held_out(latent, labels, seen, ~seen)["mean"] == 1.0
    assert held_out(rng.permutation(latent), labels, seen, ~seen)["mean"] < 0.7
