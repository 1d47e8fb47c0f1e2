"""Who sees which release in which algorithm: ``python -m tablepuppet.learn.release_table`` prints it for the docs.

What an op lets out, and whether with noise, comes from the registry; only when an op is asked for is said here.
"""

from __future__ import annotations

import tablepuppet.learn.party_ops  # noqa: F401 - registers every op
from tablepuppet.party.ops import REGISTRY, Op

ASKED: dict[str, tuple[str, ...]] = {
    "every relation": ("keys.blind", "rows.use", "rows.sample"),
    "`secure_sum`": ("secure.hello", "secure.roster", "secure.confirm"),
    "`describe`, encoders without privacy": ("statistics.numbers", "statistics.categories"),
    "encoders with `feature_epsilon`": ("private.ranges", "private.moments", "private.categories"),
    "encoders": ("encode.build",),
    "labels without privacy": ("label.numbers", "label.classes"),
    "labels with `label_epsilon`": ("label.private_numbers", "label.private_classes"),
    "`evaluate(rel, at_party=True)`": ("label.errors", "label.hits"),
    "linear `lbfgs`, `admm`": ("linear.start", "linear.direction", "linear.advance"),
    "the same, tables with several shards": ("linear.gram", "linear.gradient", "linear.image"),
    "the same with `inner_rounds`": ("linear.shard", "linear.consensus"),
    "linear `lbfgs`, `admm` with `feature_epsilon`": ("private.start", "private.direction"),
    "the same and `prediction_epsilon`": ("private.noisy_direction", "private.image", "private.predict"),
    "`feature_epsilon`, several shards": ("private.gram", "private.gradient"),
    "linear `sgd`": ("linear.sgd", "linear.sgd_gradient", "linear.sgd_image"),
    "noisy steps, `feature_epsilon` of networks and `sgd`": (
        "private.begin",
        "private.descend",
        "private.image_within",
        "private.noisy_descend",
        "private.predict_within",
        "private.sampled_gradient",
    ),
    "networks": ("network.start",),
    "networks by `lbfgs`": ("network.turn", "network.move", "network.gradient"),
    "networks by `admm`": ("network.solve", "network.consensus"),
    "networks by `sgd`": ("network.sgd", "network.sgd_gradient", "network.sgd_image"),
    "`predict`, `evaluate`, validation": ("linear.predict", "network.predict", "network.image"),
    "`coef_`, shards that did not train": ("linear.parameters", "network.parameters"),
    "`coef_` with `feature_epsilon`": ("private.parameters",),
    "`save`, `coef_` once loaded, with `prediction_epsilon`": ("private.size", "parts.noisy_parameters"),
    "validation, `save`, `tp.load`, `tp.forget`": (
        "model.keep", "model.restore", "parts.store", "parts.check", "parts.copy", "parts.settle", "parts.parameters",
    ),
}  # fmt: skip
"""When ops are asked for; every op stands in one line."""


def release_table() -> str:
    """The table in Markdown; KeyError if an op is asked for by nobody."""
    lines = ["| asked in | op | what the coordinator sees | noise |", "| --- | --- | --- | --- |"]
    told = {name: when for when, names in ASKED.items() for name in names}
    missing = sorted(set(REGISTRY) - set(told))
    if missing:
        raise KeyError(f"say in ASKED when {', '.join(missing)} is asked for")
    for name, when in told.items():
        found = REGISTRY[name]
        lines.append(f"| {when} | `{name}` | {', '.join(found.releases.names)} | {_noise(found)} |")
    return "\n".join(lines)


def _noise(found: Op) -> str:
    return "yes" if found.private else "no"


if __name__ == "__main__":
    print(release_table())
