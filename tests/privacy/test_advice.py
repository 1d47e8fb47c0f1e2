"""What errors about promises, noise, keys and certificates advise works."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import tablepuppet as tp
from tablepuppet.privacy.accountant import Spending, addable, gaussian_epsilon, noise_multiplier
from tablepuppet.privacy.certificates import CA_DAYS, issue, new_authority
from tablepuppet.privacy.label import keep_probability, noisy_numbers, true_shares
from tablepuppet.privacy.noise import gaussian_sigma, steps_of
from tablepuppet.privacy.secure_sum import add_words, to_words
from tablepuppet.privacy.signed_keys import Identity
from tablepuppet.privacy_plan import plan_privacy
from tests.advice import Advice, check_all_are_tried, said
from tests.advised_shop import Shop
from tests.relations import write_party


def promised(**promise: Any) -> Callable[[Shop], Any]:
    """A fit with this promise."""
    return lambda shop: tp.LinearRegression(privacy=tp.Privacy(**promise)).fit(shop.rel)


def certified(shop: Shop, name: str, start: datetime | None = None, *, authority: bool = True) -> bool:
    folder = shop.folder / f"authority{len(list(shop.folder.iterdir()))}"
    folder.mkdir()
    if authority:
        new_authority(folder)
    return issue(folder, name, start=start).certificate.exists()


def noisy(names: list[str]) -> Any:
    """Labels of two rows, with noise that their names decide."""
    settings: dict[str, Any] = {"bounds": (0.0, 1.0), "epsilon": 1.0, "secret": b"s" * 16, "expression": "y"}
    return noisy_numbers(np.array([0.5, 0.5]), pa.array(names), **settings)


def signed(key: Any) -> bool:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return len(Identity(b"", pem, b"").sign(b"text")) > 0


def planned(shop: Shop, promise: str = "feature_epsilon = 0.01", columns: str = "x, z", policy: str = "") -> Any:
    """What the plan of a fit over 4,000 rows warns of; its warnings, if noise hides no column."""
    folder, row = shop.folder / "planned", np.arange(4000.0)
    if not folder.exists():
        folder.mkdir()
        write_party(folder, "store", {"t": pa.table({"x": row, "z": row % 7, "y": row % 9})})
    (folder / "federation.toml").write_text(f"[parties.store]\nurl = 'parquet:///store'\n{policy}")
    (folder / "job.toml").write_text(
        f"federation = 'federation.toml'\nsql = 'SELECT {columns}, y FROM t'\nlabel = 'y'\noutput = 'run'\n"
        f"[learner]\nkind = 'LinearRegression'\n[learner.privacy]\n{promise}\n"
    )
    return [text for text in plan_privacy(folder / "job.toml").warnings if "noise will hide columns" in text]


def enough(shop: Shop) -> bool:
    """The epsilon that the plan names is enough; so are bounds in the policy."""
    [text] = planned(shop)
    named = text.partition("feature_epsilon=")[2].partition(",")[0]
    bounds = "[parties.store.bounds]\n't.x' = [0, 4000]\n't.z' = [0, 6]\n"
    return not planned(shop, f"feature_epsilon = {named}") and not planned(shop, policy=bounds)


BOTH: dict[str, Any] = {"label_epsilon": 2.0, "label_bounds": (-9.0, 12.0), "label_classes": (0, 1)}
CASES = [
    Advice(
        "would take more noise than parties add: use a larger epsilon or ",
        lambda _: addable(noise_multiplier(1e-6, 1e-9, 1000), 1e-6, 1e-9),
        lambda _: [
            addable(noise_multiplier(epsilon, delta, steps), epsilon, delta)
            for epsilon, delta, steps in ((1.0, 1e-9, 1000), (1e-6, 1e-2, 1000), (1e-5, 1e-9, 1))
        ],
    ),
    Advice(
        "would leave next to no noise: use a smaller one",
        lambda _: addable(noise_multiplier(1e14, 1e-6), 1e14, 1e-6),
        lambda _: [addable(noise_multiplier(epsilon, 1e-6), epsilon, 1e-6) for epsilon in (0.1, 10.0)],
    ),
    Advice(
        "so that nothing can be charged: use more noise",
        lambda _: Spending.of_gaussian(1e-200),
        lambda _: Spending.of_gaussian(1.0),
    ),
    Advice(
        "is used up by the other releases, before the steps: use a larger one",
        lambda _: noise_multiplier(1.0, 1e-6, beside=1.0),
        lambda _: gaussian_epsilon(noise_multiplier(8.0, 1e-6, beside=1.0), 1e-6, beside=1.0) <= 8.0,
    ),
    Advice(
        "is taken by the authority itself: choose another",
        partial(certified, name="ca"),
        partial(certified, name="bank"),
    ),
    Advice(
        "cannot be an owner's name: use up to 63 letters",
        partial(certified, name="my bank"),
        partial(certified, name="my-bank_1.de"),
    ),
    Advice(
        "the authority's certificate has expired: make a new one",
        partial(certified, name="bank", start=datetime.now(UTC) + timedelta(days=CA_DAYS + 1)),
        partial(certified, name="bank"),
    ),
    Advice(
        "holds no authority: make one with",
        partial(certified, name="bank", authority=False),
        partial(certified, name="bank"),
    ),
    Advice(
        "label bounds are too close together for numbers of their size: give wider ones",
        promised(label_epsilon=1.0, label_bounds=(1e17, 1e17 + 16)),
        promised(label_epsilon=1.0, label_bounds=(0.0, 1e17)),
    ),
    Advice(
        "use the primary key, or all columns and an ordinal", lambda _: noisy(["a", "a"]), lambda _: noisy(["a", "b"])
    ),
    Advice(
        "likelier than the others; use a larger label epsilon",
        lambda _: true_shares(np.array([0.4, 0.6]), keep_probability(2, 1e-17)),
        lambda _: true_shares(np.array([0.4, 0.6]), keep_probability(2, 1.0)),
    ),
    Advice(
        "cannot be rounded safely: use a larger epsilon",
        lambda _: gaussian_sigma(noise_multiplier(1e-6, 1e-9), 1.0, 10**9),
        lambda _: gaussian_sigma(noise_multiplier(1.0, 1e-9), 1.0, 10**9),
    ),
    Advice(
        "nothing is released; clip values first",
        lambda _: steps_of(np.array([np.inf, 1.0]), 2.0**-30),
        lambda _: steps_of(np.clip(np.array([np.inf, 1.0]), 0, 9), 2.0**-30).tolist() == [9 << 30, 1 << 30],
    ),
    Advice(
        "scale the label or the columns, use a smaller lr, or learn without secure_sum",
        lambda _: to_words(1e6, 50, 3),
        lambda _: float(add_words([to_words(1e6 / 1e3, 50, 3)] * 3, 50)) == 3e3,
    ),
    Advice(
        "noisy lists of categories alone need 1e-12 of it ",
        promised(feature_epsilon=50.0, delta=1e-20),
        promised(feature_epsilon=50.0, delta=1e-11),
    ),
    Advice(
        "such a promise would allow ",
        promised(feature_epsilon=50.0, delta=0.1),
        promised(feature_epsilon=50.0, delta=8e-4),
    ),
    Advice(
        "label_bounds are for numbers and label_classes for classes: give one of them",
        promised(**BOTH),
        promised(**{name: value for name, value in BOTH.items() if name != "label_classes"}),
    ),
    Advice(
        "labels would leave without noise: set label_epsilon too",
        promised(label_bounds=(-9.0, 12.0)),
        promised(label_bounds=(-9.0, 12.0), label_epsilon=1.0),
    ),
    Advice(
        "is of a kind that signs no secure sums; use EC or RSA",
        lambda _: signed(ed448.Ed448PrivateKey.generate()),
        lambda _: signed(ec.generate_private_key(ec.SECP256R1())) and signed(rsa.generate_private_key(65537, 2048)),
    ),
    Advice(": noise will hide columns without bounds or categories", lambda shop: said(planned(shop)), enough),
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_advised_works(shop: Shop, case: Advice) -> None:
    """What was refused is done then, with what the error names."""
    case.follow(shop)


def test_every_advice_is_tried() -> None:
    """An error that advises something has a case."""
    check_all_are_tried(["privacy", "privacy_plan.py"], CASES, {})
