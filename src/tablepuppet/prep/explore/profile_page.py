"""A `Profile` and its page: HTML with its own style and drawings, which needs no network; every text is escaped.

Input: statistics. Output: a whole page for a file, or a part of one for a notebook. Nothing is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from rich.console import Group
from rich.text import Text

from tablepuppet.errors import ConfigError, without_controls
from tablepuppet.prep.explore.correlation import ColumnMatrix
from tablepuppet.prep.explore.describe import Description
from tablepuppet.prep.explore.histograms import Histogram
from tablepuppet.prep.explore.noisy_statistics import Spent
from tablepuppet.runs.figures import NOT_APPLICABLE, UNKNOWN, WITHHELD, fixed
from tablepuppet.runs.table_view import ShownAsTable, TableView
from tablepuppet.store.files import write_output_file

WIDTH, HEIGHT, LINE, LETTER = 300, 90, 16, 6  # of a drawing, of a line in it, and of a letter
FEW_VALUES = 12  # that have a line each
MOST_PAIRS = 40  # columns of a heat map
FACTS = ("mean", "std", "min", "q25", "median", "q75", "max", "skew", "kurtosis", "distinct", "top", "top_share")

LEGEND = "Bars: joined rows by value, range or category. Line below: values that are there (blue) and missing (red)."
STYLE = """
.tp-profile { font: 14px/1.45 system-ui, sans-serif; color: inherit; max-width: 76em; }
.tp-profile h1 { font-size: 1.5em; margin: 0 0 .3em; } .tp-profile h2 { font-size: 1.15em; margin: 1.6em 0 .6em; }
.tp-profile pre { font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
.tp-profile pre { white-space: pre-wrap; word-break: normal; overflow-wrap: break-word; }
.tp-profile pre { border-left: 3px solid #8885; padding: .2em .8em; opacity: .8; }
.tp-profile ul { list-style: none; padding: 0; margin: 0; }
.tp-profile li { display: flex; padding: .25em 0; border-top: 1px solid #8883; }
.tp-profile .kind { flex: none; width: 9.5em; font-weight: 600; color: #b8560c; }
.tp-profile .cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(21em, 1fr)); gap: 1em; }
.tp-profile .cards { margin-top: .6em; }
.tp-profile .card { border: 1px solid #8885; border-radius: 8px; padding: .7em .9em; break-inside: avoid; }
.tp-profile .card h3 { font-size: 1em; margin: 0; overflow-wrap: anywhere; }
.tp-profile .small { opacity: .65; font-size: .88em; }
.tp-profile dl { display: grid; grid-template-columns: auto 1fr auto 1fr; gap: 0 .7em; margin: .5em 0 0; }
.tp-profile dl { font-size: .88em; }
.tp-profile dt { opacity: .65; white-space: nowrap; } .tp-profile dd { margin: 0; overflow-wrap: anywhere; }
.tp-profile dd { font-variant-numeric: tabular-nums; }
.tp-profile svg { width: 100%; height: auto; display: block; margin-top: .5em; }
.tp-profile .bar { fill: #3b7dd8; } .tp-profile svg text { fill: currentColor; font-size: 10px; }
.tp-profile .missing { height: 5px; background: #3b7dd855; border-radius: 3px; margin-top: .5em; overflow: hidden; }
.tp-profile .missing i { display: block; height: 100%; background: #d9534f; }
.tp-profile .label { border: 2px solid #b8560c; }
.tp-profile .badge { background: #b8560c; color: #fff; border-radius: 4px; padding: 0 .45em; font-size: .8em; }
.tp-profile .beside { margin-top: .6em; } .tp-profile a { color: inherit; font-weight: bold; }
.tp-profile .card:target { outline: 3px solid #3b7dd8; }
.tp-profile .class0 { fill: #d9822b; } .tp-profile .class1 { fill: #3b7dd8; } .tp-profile .class2 { fill: #4f9d69; }
.tp-profile .class3 { fill: #9b6bd3; } .tp-profile .class4 { fill: #8a8f98; }
.tp-profile .key { margin-right: 1em; font-size: .88em; white-space: nowrap; }
.tp-profile .key svg { display: inline-block; width: .8em; margin: 0 .35em 0 0; }
.tp-profile .withheld { fill: #8888; }
.tp-profile .heat { overflow-x: auto; } .tp-profile .heat svg { min-width: 30em; max-width: 60em; }
"""


@dataclass(frozen=True)
class Warned:
    """Something to watch out for."""

    column: str
    kind: str
    message: str


@dataclass(frozen=True)
class CategoryBars:
    """The most frequent categories, and how many joined rows have any."""

    names: list[str]
    counts: list[float]
    total: float


@dataclass(frozen=True)
class Against:
    """A feature beside the label: how strongly the two depend on each other, and a line of numbers by category."""

    measured: str
    caption: str = ""
    names: list[str] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)  # shares by class, or one mean
    texts: list[str] = field(default_factory=list)  # the same in words, if there is one number
    heads: list[str] = field(default_factory=list)  # classes
    is_share: bool = False


@dataclass(frozen=True, repr=False, eq=False)
class Profile(ShownAsTable):
    """What there is to know of the joined rows before learning from them.

    ``description``, ``histograms`` and ``correlations`` are the statistics; ``warnings`` what to watch out for. With a
    `Privacy`, ``spent`` is what they have cost, and there are no correlations.
    """

    sql: str
    joined_rows: int
    description: Description
    histograms: dict[str, Histogram]
    categories: dict[str, CategoryBars]
    correlations: ColumnMatrix | None
    warnings: list[Warned]
    note: str = ""
    spent: Spent | None = None
    label: str | None = None
    against: dict[str, Against] = field(default_factory=dict)  # features beside the label

    def save(self, path: str | Path) -> Path:
        """Write one HTML file that needs nothing else, and return its path."""
        place = Path(path).expanduser()
        try:
            write_output_file(place, page(self).encode())
        except OSError as error:
            raise ConfigError(f"profile: {str(place)!r} cannot be written: {error.strerror}") from error
        return place

    def table_view(self) -> TableView:
        rows = [[each.column, each.kind, each.message] for each in self.warnings]
        warned = f"{len(rows) or 'no'} warning{'s' * (len(rows) != 1)}"
        title = f"Profile of {self.joined_rows:,} joined rows: {warned}"
        title += "" if self.spent is None else f"; with noise: {self.spent}"
        return TableView(title, {"column": "left", "warning": "left", "": "left"}, rows)

    def __rich__(self) -> Group:
        return super().__rich__() if self.warnings else Group(Text(self.table_view().title))

    def __str__(self) -> str:
        shown = super().__str__() if self.warnings else self.table_view().title
        return f"{shown}\nsave('page.html') writes all of it"

    def _repr_html_(self) -> str:
        return fragment(self)


def page(found: Profile) -> str:
    """A whole HTML document."""
    body = "body { margin: 2em; background: #fff; color: #1b1f24; }"
    dark = "@media (prefers-color-scheme: dark) { body { background: #15181c; color: #e6e8ea; } }"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Profile of the joined rows</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{body}{dark}</style></head><body>{fragment(found)}</body></html>\n"
    )


def fragment(found: Profile) -> str:
    """A part of another page, such as a notebook: style, drawings and warnings."""
    rows = found.description.to_arrow().to_pylist()
    parts = [
        f"<h1>Profile of {found.joined_rows:,} joined rows</h1>",
        f'<div class="small">{_counted(rows)}</div>',
        f"<pre>{_text(found.sql.strip())}</pre>",
        f'<div class="small">{_text(found.note)}</div>' if found.note else "",
        _warnings(found.warnings, {row["column"]: _anchor(row["column"], found) for row in rows}),
        f'<h2>Columns</h2><div class="small">{LEGEND}</div><div class="cards">',
        *(_card(row, found) for row in rows),
        "</div>",
        _heat_map(found.correlations),
    ]
    return f'<style>{STYLE}</style><div class="tp-profile">{"".join(parts)}</div>'


def _counted(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many columns of how many tables there are."""
    tables = len({row["table"] for row in rows})
    return f"{len(rows)} column{'s' * (len(rows) != 1)} of {tables} table{'s' * (tables != 1)}"


def _text(text: str) -> str:
    return escape(without_controls(text) if "\n" not in text else "\n".join(map(without_controls, text.splitlines())))


def _anchor(column: str, found: Profile) -> str:
    """The name of a column's card, different from those of other profiles in one notebook."""
    return f"tp-{crc32(f'{found.sql} {found.joined_rows}'.encode()):x}-{crc32(column.encode()):x}"


def _warnings(warnings: Sequence[Warned], anchors: Mapping[str, str]) -> str:
    if not warnings:
        return "<h2>Warnings</h2><div>none</div>"
    lines = (
        f'<li><span class="kind">{_text(each.kind)}</span><span><a href="#{anchors[each.column]}">{_text(each.column)}'
        f"</a> {_text(each.message)}</span></li>"
        for each in warnings
    )
    return f"<h2>{len(warnings)} warning{'s' * (len(warnings) != 1)}</h2><ul>{''.join(lines)}</ul>"


def _card(row: Mapping[str, Any], found: Profile) -> str:
    name, share = row["column"], row["missing"] / max(row["count"] + row["missing"], 1)
    shown_facts = found.description.facts(name)
    facts = "".join(
        f"<dt>{fact.replace('_', ' ')}</dt><dd>{_text(shown_facts[fact])}</dd>"
        for fact in FACTS
        if shown_facts.get(fact) not in (None, "", NOT_APPLICABLE)
    )
    drawing = ""
    if name in found.histograms and len(found.histograms[name].counts):
        by_value = found.histograms[name].by_value() or _booleans(row)
        drawing = _histogram(found.histograms[name]) if by_value is None else _values(by_value)
    elif name in found.categories:
        drawing = _bars(found.categories[name])
    missing = f'<div class="missing" title="{share:.1%} missing"><i style="width: {share:.2%}"></i></div>'
    missing += f'<div class="small">{_text(shown_facts["count"])} values, {_text(shown_facts["missing"])} missing</div>'
    is_label = name == found.label
    badge = '<span class="badge">label</span> ' if is_label else ""
    head = f'<h3>{badge}{_text(name)} <span class="small">{_text(row["table"])} · {_text(row["type"])}</span></h3>'
    beside = "" if found.label is None or is_label else _beside(found.against.get(name), found.label)
    kind = "card label" if is_label else "card"
    return f'<div class="{kind}" id="{_anchor(name, found)}">{head}{drawing}{missing}<dl>{facts}</dl>{beside}</div>'


def _booleans(row: Mapping[str, Any]) -> dict[str, float] | None:
    """Joined rows by value of a column of booleans, whose mean is the share of true; None of all others."""
    if row["type"] != "BOOLEAN" or row["mean"] is None:
        return None
    share = min(max(row["mean"], 0.0), 1.0)  # noise may take it beyond
    return {"false": row["count"] * (1 - share), "true": row["count"] * share}


def _beside(found: Against | None, label: str) -> str:
    """A feature beside the label: bars of shares or means."""
    if found is None:
        return f'<div class="small beside">with {_text(label)}: {UNKNOWN}</div>'
    measured = f"; {_text(found.measured)}" if found.caption and found.measured else _text(found.measured)
    head = f'<div class="small beside">{_text(found.caption) or f"with {_text(label)}: "}{measured}</div>'
    if not found.names:
        return head
    most = 1.0 if found.is_share else max(max(abs(value) for row in found.values for value in row), 1e-300)
    room = WIDTH + 20 - 125 - 5 - LETTER * max(map(len, found.texts), default=0)  # no text is cut by the edge
    parts = []
    for number, (name, row) in enumerate(zip(found.names, found.values, strict=True)):
        y, x = number * LINE, 125.0
        parts.append(f'<text x="0" y="{y + 11}">{_text(_short(name))}</text>')
        for place, value in enumerate(row):
            size = max(min(125, room), 10) * abs(value) / most
            parts.append(f'<rect class="class{place}" x="{x:.1f}" y="{y + 3}" width="{size:.1f}" height="10"/>')
            x += size
        if found.texts:
            parts.append(f'<text x="{x + 5:.1f}" y="{y + 11}">{_text(found.texts[number])}</text>')
    legend = "".join(
        f'<span class="key"><svg viewBox="0 0 10 10"><rect class="class{place}" width="10" height="10"/></svg>'
        f"{_text(_short(name))}</span>"
        for place, name in enumerate(found.heads)
        if len(found.heads) > 1
    )
    drawing = f'<svg viewBox="0 0 {WIDTH + 20} {LINE * len(found.names) + 4}" role="img">{"".join(parts)}</svg>'
    return f"{head}{drawing}<div>{legend}</div>"


def _short(name: str) -> str:
    return name if len(name) <= 17 else f"{name[:16]}…"


def _values(found: Mapping[str, float]) -> str:
    """One bar per value: lines with shares of a few, columns of more."""
    names, counts = list(found), list(found.values())
    if len(names) <= FEW_VALUES:
        return _bars(CategoryBars(names, counts, sum(counts)), "histogram")
    step, most = WIDTH / len(names), max(counts)
    every = max(-(-len(names) // FEW_VALUES), math.ceil(1.5 * LETTER * max(map(len, names)) / step))
    parts = []
    for number, (name, count) in enumerate(zip(names, counts, strict=True)):
        x, height = number * step, HEIGHT * count / most
        place = f'x="{x + step * 0.1:.1f}" y="{HEIGHT - height:.1f}" width="{step * 0.8:.1f}" height="{height:.1f}"'
        parts.append(f'<rect class="bar" {place}><title>{_text(name)}: {count:,.0f}</title></rect>')
        if number % every == 0:
            room = LETTER * len(name) / 2  # the first and the last are not cut by the edge
            middle = min(max(x + step / 2, room), WIDTH - room)
            parts.append(f'<text x="{middle:.1f}" y="{HEIGHT + 12}" text-anchor="middle">{_text(name)}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 16}" role="img" aria-label="histogram">{"".join(parts)}</svg>'


def _histogram(found: Histogram) -> str:
    """Bars whose area is the joined rows; very wide bins at the ends are cut."""
    edges, counts = found.edges, found.counts
    first, last = float(edges[0]), float(edges[-1])
    if not found.exact and len(edges) > 4:  # the outermost cells may reach very far
        inner = max(float(edges[-2] - edges[1]), 1e-300)
        first, last = max(first, float(edges[1]) - inner / 8), min(last, float(edges[-2]) + inner / 8)
    span = max(last - first, 1e-300)
    widths = np.maximum(np.diff(edges) / span, 1e-9)
    heights = np.maximum(counts, 0.0) / widths  # noise may make a count negative
    heights = heights / max(float(heights.max()), 1e-300) * HEIGHT
    bars = []
    for low, high, height in zip(edges[:-1], edges[1:], heights, strict=True):
        left, right = (min(max((float(each) - first) / span, 0.0), 1.0) * WIDTH for each in (low, high))
        size = max(right - left - 0.6, 0.4)
        bars.append(
            f'<rect class="bar" x="{left:.1f}" y="{HEIGHT - height:.1f}" width="{size:.1f}" height="{height:.1f}"/>'
        )
    ends = found.ends(np.array([first, last]))[0]
    ends[0] = ends[0] if found.exact else f"≈ {ends[0]}"
    labels = (
        f'<text x="0" y="{HEIGHT + 12}">{_text(ends[0])}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT + 12}" text-anchor="end">{_text(ends[1])}</text>'
    )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 16}" role="img" aria-label="histogram">{"".join(bars)}{labels}</svg>'


def _bars(found: CategoryBars, kind: str = "categories") -> str:
    """One bar per category, with its share."""
    line, most = LINE, max([*found.counts, 1.0])
    parts = []
    for number, (name, count) in enumerate(zip(found.names, found.counts, strict=True)):
        y, size = number * line, 150 * count / most
        parts.append(
            f'<text x="0" y="{y + 11}">{_text(_short(name))}</text>'
            f'<rect class="bar" x="125" y="{y + 3}" width="{size:.1f}" height="10"/>'
            f'<text x="{130 + size:.1f}" y="{y + 11}">{count / max(found.total, 1.0):.1%}</text>'
        )
    size_ = f'viewBox="0 0 {WIDTH + 20} {line * len(found.names) + 4}"'
    return f'<svg {size_} role="img" aria-label="{kind}">{"".join(parts)}</svg>'


def _heat_map(found: ColumnMatrix | None) -> str:
    """Correlations as colours: red goes along, blue against; grey where a policy withholds them."""
    if found is None or len(found.columns) < 2:
        return ""
    names, size = found.columns[:MOST_PAIRS], 26
    left, top = 130, 90
    cells = []
    for i, first in enumerate(names):
        cells.append(f'<text x="{left - 6}" y="{top + i * size + 17}" text-anchor="end">{_text(first[:20])}</text>')
        x = left + i * size + 16
        cells.append(f'<text x="{x}" y="{top - 6}" transform="rotate(-45 {x} {top - 6})">{_text(first[:16])}</text>')
        for j, second in enumerate(names):
            value, withheld = float(found.values[i, j]), bool(found.withheld[i, j])
            shown = UNKNOWN if np.isnan(value) else fixed(value, 3)
            spot = f'x="{left + j * size}" y="{top + i * size}" width="{size - 1}" height="{size - 1}"'
            colour = "#d9534f" if value > 0 else "#3b7dd8"
            fill = f'fill="{colour}" fill-opacity="{0.0 if np.isnan(value) else abs(value):.3f}"'
            fill = 'class="withheld"' if withheld else fill
            title = f"{_text(first)}, {_text(second)}: {WITHHELD if withheld else shown}"
            cells.append(f"<rect {spot} {fill}><title>{title}</title></rect>")
            if not withheld:
                centre = f'x="{left + j * size + 12.5}" y="{top + i * size + 16}"'
                number = NOT_APPLICABLE if np.isnan(value) else fixed(value, 1)
                cells.append(f'<text {centre} text-anchor="middle">{number}</text>')
    side = len(names) * size
    more = "" if len(names) == len(found.columns) else f'<div class="small">the first {MOST_PAIRS} columns</div>'
    width, height = left + side + 70, top + side + 8
    drawing = f'<svg viewBox="0 0 {width} {height}" role="img" style="max-width: {width}px">{"".join(cells)}</svg>'
    return f'<h2>Correlation</h2>{_heat_legend(found)}{more}<div class="heat">{drawing}</div>'


def _heat_legend(found: ColumnMatrix) -> str:
    """What colours mean, and why some pairs have none."""
    text = (
        "Red: both columns are high in the same rows. Blue: one is high where the other is low. The stronger the "
        "colour, the closer."
    )
    keys = []
    if found.withheld.any():
        keys.append(
            '<svg viewBox="0 0 10 10"><rect class="withheld" width="10" height="10"/></svg>withheld by a policy'
        )
    if (np.isnan(found.values) & ~found.withheld).any():
        keys.append(f"{NOT_APPLICABLE} {UNKNOWN}")
    spans = "".join(f'<span class="key">{key}</span>' for key in keys)
    return f'<div class="small">{text}</div><div>{spans}</div>'
