"""Draws how algorithms come near the optimum, like the paper's Figures 5, 7 and 8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.learning.movielens import CLOSE


def draw(task: str, figures: Mapping[str, Any], path: Path) -> None:
    """Objective above the centralised one, against rounds and against communication time."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    best = figures["centralised"]["objective"]
    curves = {name: found["curve"] for name, found in figures.items() if isinstance(found, dict) and "curve" in found}
    colours = {"LBFGS": "#1b6ca8", "ADMM": "#c8553d", "SGD": "#5b8c5a"}
    picture, axes = plt.subplots(1, 3, figsize=(13, 4.2), sharey=True)
    for axis, (key, label) in zip(
        axes, [("round", "rounds (SGD: epochs)"), ("US-UK", "seconds, US-UK"), ("US-US", "seconds, US-US")], strict=True
    ):
        for name, points in curves.items():
            colour = next(value for part, value in colours.items() if part in name)
            style = "-" if name.endswith("-V") else "--" if name.startswith("RFL") else ":"
            above = [max(point["objective"] / best - 1, 1e-9) for point in points]
            wide = "LBFGS" in name  # its points may lie under those of ADMM
            axis.plot(
                [point[key] for point in points], above, style, marker="s" if wide else "o", ms=8 if wide else 4,
                markerfacecolor="none" if wide else colour, color=colour, label=name, lw=1.6,
            )  # fmt: skip
        axis.axhline(CLOSE, color="0.6", lw=0.8)
        axis.set_yscale("log")
        axis.set_ylim(3e-10, 1)
        axis.set_xlabel(label)
        axis.grid(alpha=0.25)
        if key != "round":
            axis.set_xscale("log")
    axes[0].set_ylabel("training objective above the optimum (share)")
    axes[0].text(0.98, CLOSE * 1.3, "0.1 %", color="0.4", ha="right", transform=axes[0].get_yaxis_transform())
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    handles, names = axes[0].get_legend_handles_labels()
    picture.legend(handles, names, loc="lower center", ncols=len(names), frameon=False)
    picture.suptitle(f"MovieLens-1M, {task}: mapping and preparation included in seconds")
    picture.tight_layout(rect=(0, 0.07, 1, 1))
    picture.savefig(path, dpi=110)
    plt.close(picture)
