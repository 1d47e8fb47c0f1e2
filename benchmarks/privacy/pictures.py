"""Draws RMSE by round, like the paper's Figure 6, and RMSE by epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BLUE, RED, GREEN, GREY = "#1b6ca8", "#c8553d", "#5b8c5a", "0.45"
COLOURS = {"lbfgs": BLUE, "auto": BLUE, "admm": RED, "sgd": GREEN}


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
        axis.axhline(figures["pooled"][kind], color=GREY, lw=1)
        axis.annotate("pooled, no privacy", (0.98, figures["pooled"][kind]), xycoords=("axes fraction", "data"),
                      ha="right", va="bottom", color=GREY)  # fmt: skip
        axis.axhline(figures["pooled"][kind] + (0.05 if kind == "linear" else 0.02), color=GREY, lw=0.8, ls=":")
        axis.annotate("what the paper loses", (0.98, figures["pooled"][kind] + (0.05 if kind == "linear" else 0.02)),
                      xycoords=("axes fraction", "data"), ha="right", va="top", color=GREY)  # fmt: skip
        axis.set(xlabel="rounds (sgd: epochs)", ylabel="test RMSE", title=f"{kind}, epsilon_given_messages 1")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, loc="center right")
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
        axis.plot(
            [p["epsilon"] for p in points], [p["rmse"] for p in points], marker=marker, color=colour, label=meaning
        )
    for name, words in (("pooled", "pooled, no privacy"), ("constant", "the mean rating for everybody")):
        axis.axhline(figures[name], color=GREY, lw=1)
        axis.annotate(
            words, (0.98, figures[name]), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=GREY
        )
    axis.set(xscale="log", xlabel="epsilon, delta 1e-5", ylabel="test RMSE", title="MovieLens-1M, linear regression")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, loc="center right")
    picture.tight_layout()
    picture.savefig(path, dpi=110)
    plt.close(picture)
