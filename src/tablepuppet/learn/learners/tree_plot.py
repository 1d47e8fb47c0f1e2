"""Pictures of trees: what columns gain, and the nodes of one tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tablepuppet.learn.learners.picture import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BARS = 30
BAR, LINE, NODE, LEAF = "#1d4ed8", "grey", "#dbeafe", "#fed7aa"


def draw_importances(importances: Mapping[str, float], title: str) -> Figure:
    """A bar for each column, the largest above; at most thirty."""
    shown = sorted(importances.items(), key=lambda item: item[1])[-MOST_BARS:]
    figure = new_figure(7.0, 1.2 + 0.24 * len(shown))
    axis = figure.subplots()
    axis.barh([name for name, _ in shown], [share for _, share in shown], color=BAR)
    axis.set_xlabel("share")
    axis.grid(axis="x", alpha=0.3)
    figure.suptitle(title, fontsize=10)
    return figure


def draw_tree(nodes: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """The nodes of a tree as `trees_` has them: column and joined rows, and of leaves what they add to the score.

    Rows that go left are drawn to the left.
    """
    places, leaves = dict[int, tuple[float, int]](), 0
    stack = [(0, 0, False)]
    while stack:
        number, depth, are_children_placed = stack.pop()
        node = nodes[number]
        if node["table"] is None:
            places[number] = float(leaves), depth
            leaves += 1
        elif are_children_placed:
            places[number] = (places[node["left"]][0] + places[node["right"]][0]) / 2, depth
        else:
            stack += [(number, depth, True), (node["right"], depth + 1, False), (node["left"], depth + 1, False)]
    deepest = max(depth for _, depth in places.values())
    figure = new_figure(min(max(5.0, 0.9 * leaves), 60.0), 1.6 + 0.9 * deepest)
    axis = figure.subplots()
    for number, (across, depth) in places.items():
        node = nodes[number]
        is_leaf = node["table"] is None
        for child in () if is_leaf else (node["left"], node["right"]):
            axis.plot([across, places[child][0]], [-depth, -places[child][1]], color=LINE, lw=0.8, zorder=1)
        words = f"{node['value']:+.3g}" if is_leaf else str(node["column"])
        box = {"boxstyle": "round", "facecolor": LEAF if is_leaf else NODE, "edgecolor": LINE, "lw": 0.5}
        axis.text(across, -depth, f"{words}\n{node['count']:,.0f}", ha="center", va="center", fontsize=7, bbox=box)
    axis.set_xlim(-0.6, max(leaves - 0.4, 0.6))
    axis.set_ylim(-deepest - 0.5, 0.5)
    axis.axis("off")
    figure.suptitle(title, fontsize=10)
    return figure
