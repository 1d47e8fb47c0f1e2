"""Saved models whose parameters stay with parties that are services."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.party.policy import LEVELS, CallerLimits, Level, Policy
from tablepuppet.party.release import Release
from tests.learn.materialised import ALL, JOIN, predictions, shop
from tests.relations import write_party
from tests.wire.services import calling, served


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("shop")
    return {name: write_party(folder, name, tables) for name, tables in shop(1).items()}


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies that let no parameters out."""
    monkeypatch.setitem(LEVELS, Level.PUBLIC, ~Release.PARAMETERS)


def relation_of(fed: tp.Federation, label: str = "returned") -> tp.Relation:
    return fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label)


def test_a_policy_without_parameters(urls: dict[str, str], tmp_path: Path, silent: None) -> None:
    """Where parameters may not leave, a model is fitted, saved, loaded and used all the same; coef_ is refused."""
    with served(urls, state=tmp_path / "state") as servers:
        fed = calling(servers, wire="float64")
        relation = relation_of(fed)
        model = tp.LogisticRegression(rounds=3).fit(relation)
        model.save(tmp_path / "model")
        found = tp.load(tmp_path / "model", fed)
        np.testing.assert_allclose(predictions(found, relation), predictions(model, relation), atol=1e-12)
        for each in (model, found):
            with pytest.raises(tp.PrivacyError, match="does not release PARAMETERS"):
                each.coef_  # noqa: B018


def test_nobody_keeps_it(urls: dict[str, str], tmp_path: Path, silent: None) -> None:
    """Without a state_dir and without a release, save is refused with advice, and leaves nothing."""
    with served(urls) as servers:
        model = tp.LogisticRegression(rounds=3).fit(relation_of(calling(servers)))
        with pytest.raises(tp.PrivacyError, match=r"(?s)PARAMETERS.*cannot keep its part.*set state_dir"):
            model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [tp.MLPRegressor, tp.LinearRegression])
def test_every_family(urls: dict[str, str], tmp_path: Path, kind: Any) -> None:
    """Linear models and networks, in the label's own units; a loaded model can be saved again, over itself too."""
    with served(urls, state=tmp_path / "state") as servers:
        fed = calling(servers, wire="float64")
        relation = relation_of(fed, "paid")
        model = kind(rounds=2).fit(relation)
        expected = model.predict(relation)
        model.save(tmp_path / "one")
        found = tp.load(tmp_path / "one", fed)
        found.save(tmp_path / "two")
        tp.forget(tmp_path / "one", fed)
        np.testing.assert_allclose(found.predict(relation), expected, atol=1e-9)
        again = tp.load(tmp_path / "two", fed)
        again.save(tmp_path / "two")
        for each in (again, tp.load(tmp_path / "two", fed)):
            np.testing.assert_allclose(each.predict(relation), expected, atol=1e-9)
        with pytest.raises(tp.PartyError, match="another was saved over it, load it"):
            found.predict(relation)


def test_limits_in_memory(urls: dict[str, str], tmp_path: Path) -> None:
    """A caller that announces relations or begins models for ever is told the limit; a new session begins anew."""
    with served(urls, policy=Policy(limits=CallerLimits(views=3, fits=4))) as servers:
        fed = calling(servers)
        relation = relation_of(fed)
        for seed in range(2):  # the relation itself is one too
            relation.split(0.2, seed=seed)[0].describe()
        with pytest.raises(tp.PartyError, match=r"relations of this session: there are 3.*limits\.views"):
            relation.split(0.2, seed=2)[0].describe()
        kept = [relation_of(fed) for _ in range(5)]
        for each in kept[:4]:
            tp.LogisticRegression(rounds=1).fit(each)
        with pytest.raises(tp.PartyError, match=r"models of this caller: there are 4.*limits\.fits"):
            tp.LogisticRegression(rounds=1).fit(kept[4])
        del relation, kept, each
        tp.LogisticRegression(rounds=1).fit(relation_of(fed))
