"""Who sees which release in which algorithm; ``python -m tablepuppet.learn.release_table`` prints it.

What an op lets out, and whether with noise, comes from the registry; only when an op is asked for is said here.
"""

from __future__ import annotations

import tablepuppet.learn.party_ops  # noqa: F401 - registers every op
from tablepuppet.party.ops import REGISTRY, Op

ASKED: dict[str, tuple[str, ...]] = {
    "every relation": ("keys.blind", "rows.use", "rows.sample"),
    "`predict(rel, ids=[...])`": ("rows.ids",),
    "`predict(rel, deliver_to=...)`": ("deliver.begin", "deliver.permit", "deliver.write"),
    "`secure_sum`": ("secure.hello", "secure.roster", "secure.confirm"),
    "`describe`, encoders without privacy": ("statistics.numbers", "statistics.categories"),
    "`describe`, `quantile`, `histogram`": ("statistics.shape", "statistics.buckets", "statistics.bins"),
    "`correlation`, `covariance`, `crosstab`, `group_means`": (
        "statistics.products", "statistics.crosstab", "statistics.groups",
    ),
    "the same, columns of two tables": ("columns.numbers", "columns.codes"),
    "`describe`, `categories_`, `save`, of public columns": ("categories.names",),
    "encoders with `feature_epsilon`": ("private.ranges", "private.moments", "private.categories"),
    "encoders": ("encode.build",),
    "labels without privacy": ("label.numbers", "label.classes"),
    "labels with `label_epsilon`": ("label.private_numbers", "label.private_classes"),
    "`evaluate(rel, at_party=True)`": ("label.errors", "label.hits"),
    "linear `lbfgs`, `admm`": ("ridge.start", "ridge.direction", "ridge.advance"),
    "the same, tables with several shards": ("ridge.gram",),
    "the same with `inner_rounds`": ("ridge.shard", "ridge.consensus"),
    "networks, noisy steps": ("model.start",),
    "networks by `lbfgs`": ("lbfgs.turn", "lbfgs.move"),
    "networks by `admm`": ("proximal.solve", "proximal.consensus"),
    "`sgd`": ("sgd.step",),
    "tables with several shards": ("model.gradient", "model.apply"),
    "noisy steps: `feature_epsilon` of networks and `sgd`": ("steps.descend", "steps.gradient"),
    "`predict`, `evaluate`, validation": ("model.predict",),
    "`coef_`, shards that did not train": ("model.parameters",),
    "`save` with `prediction_epsilon`": ("ridge.size",),
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
    """With an argument that asks for it, an op has noise."""
    if isinstance(found.private, tuple):
        return f"if asked: {', '.join(f'`{name}`' for name in found.private)}"
    return "yes" if found.private else "no"


if __name__ == "__main__":
    print(release_table())
