"""Draws RMSE by round, like the paper's Figure 6, and RMSE by epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BLUE, RED, GREEN, GREY = "#1b6ca8", "#c8553d", "#5b8c5a", "0.45"
COLOURS = {"lbfgs": BLUE, "auto": BLUE, "admm": RED, "sgd": GREEN}
PAPER_LOSES = {"linear": 0.05, "network": 0.02}


def draw_rounds(figures: Mapping[str, Any], path: Path) -> None:
    """Test RMSE by round, one picture for each kind of model that was measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    curves = {name: told for name, told in figures.items() if isinstance(told, dict) and "curve" in told}
    kinds = [kind for kind in figures["pooled"] if any(name.startswith(kind) for name in curves)]
    picture, axes = plt.subplots(1, len(kinds), figsize=(6.5 * len(kinds), 4.4), squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        for name, told in curves.items():
            if not name.startswith(kind):
                continue
            colour = next(value for part, value in COLOURS.items() if part in name)
            style, marker = ("--", "s") if name.endswith("shards") else ("-", "o")
            rounds = range(1, len(told["curve"]) + 1)
            axis.plot(rounds, told["curve"], style, marker=marker, ms=5, mfc="none", color=colour, label=name)
        lines = {"pooled, no privacy": figures["pooled"][kind]}
        lines["the mean rating for everybody"] = figures["constant"]
        lines["what the paper loses"] = figures["pooled"][kind] + PAPER_LOSES[kind]
        for words, height in lines.items():
            axis.axhline(height, color=GREY, lw=0.8)
            where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "top", "color": GREY}
            axis.annotate(words, (0.98, height), **where)
        axis.set_ylim(figures["pooled"][kind] - 0.004)
        axis.set(xlabel="rounds (sgd: epochs)", ylabel="test RMSE", title=f"{kind}, epsilon_given_messages 1")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=2)
    picture.tight_layout()
    picture.savefig(path, dpi=110)
    plt.close(picture)


def draw_epsilon(figures: Mapping[str, Any], path: Path) -> None:
    """Test RMSE against epsilon, for both meanings."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    picture, axis = plt.subplots(figsize=(7, 4.4))
    for meaning, colour, marker in (("given messages", BLUE, "o"), ("everything noised", RED, "s")):
        points = figures[meaning]
        epsilons = [point["epsilon"] for point in points]
        axis.plot(
            epsilons, [point["median"] for point in points], marker=marker, color=colour, label=f"{meaning}, median"
        )
        best, worst = ([point[end] for point in points] for end in ("best", "worst"))
        axis.fill_between(
            epsilons, best, worst, color=colour, alpha=0.12, lw=0, label=f"best to worst of {figures['fits']} fits"
        )
    for name, words, place in (
        ("pooled", "pooled, no privacy", "top"),
        ("constant", "the mean rating for everybody", "bottom"),
    ):
        axis.axhline(figures[name], color=GREY, lw=1)
        spot: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": place, "color": GREY}
        axis.annotate(words, (0.98, figures[name]), **spot)
    axis.set_ylim(figures["pooled"] - 0.004, figures["constant"] + 0.012)
    axis.set(xscale="log", xlabel="epsilon, delta 1e-5", ylabel="test RMSE", title="MovieLens-1M, linear regression")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, loc="upper right")
    picture.tight_layout()
    picture.savefig(path, dpi=110)
    plt.close(picture)
