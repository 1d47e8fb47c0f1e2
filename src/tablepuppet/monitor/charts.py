"""Options of charts (ECharts, which NiceGUI bundles) from the figures of runs; long series are thinned to a screen."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tablepuppet.monitor.run_state import Fit, PartyState, RunState
from tablepuppet.runs.figures import readable, shown_time

POINTS = 500
COLUMNS, CELLS = 100, 3000  # of the map of times
LANE = 16  # pixels of a party where there are many
GREY, BLUE, ORANGE, GREEN, RED = "#808080", "#2f7ed8", "#d97706", "#0f9d58", "#d93025"
SERIES = (BLUE, ORANGE, GREEN, "#8e5bd0", "#00838f", "#b0457b", "#6b7a00", "#a65628")
KINDS = {
    "describe": GREY,
    "open": "#8e5bd0",
    "keys": "#8e5bd0",
    "statistics": ORANGE,
    "labels": GREEN,
    "encode": ORANGE,
}


def thinned(values: Sequence[Any], most: int = POINTS) -> list[Any]:
    """Every so-manieth value, and the last.

    >>> thinned([1, 2, 3, 4, 5], 3)
    [1, 3, 5]
    """
    step = max(1, -(-len(values) // most))
    found = list(values[::step])
    return found if not values or (len(values) - 1) % step == 0 else [*found, values[-1]]


def curve(fit: Fit | None, what: str) -> dict[str, Any]:
    """Loss or metric by round, of validation rows too, beside that of a constant."""
    rounds = [] if fit is None else thinned(fit.rounds)
    name = what if what == "loss" or fit is None else str(fit.begins.get("metric", "metric"))
    series = [_line(name, BLUE, [[each.get("round"), each.get(what)] for each in rounds])]
    if any(each.get(f"validation_{what}") is not None for each in rounds):
        held = [[each.get("round"), each.get(f"validation_{what}")] for each in rounds]
        series.append(_line(f"validation {name}", ORANGE, held))
    constant = None if fit is None else fit.begins.get("constant", {}).get(what)
    if constant is not None and rounds:
        ends = [[rounds[0].get("round"), constant], [rounds[-1].get("round"), constant]]
        series.append(_line("constant", GREY, ends) | {"lineStyle": {"type": "dashed", "width": 2}})
    return _axes(series, "round", name)


def beside(runs: Sequence[tuple[str, RunState]]) -> dict[str, Any]:
    """The losses of several runs in one picture."""
    series = []
    for at, (name, state) in enumerate(runs):
        rounds = thinned(state.main.rounds) if state.main is not None else []
        series.append(_line(name, SERIES[at % len(SERIES)], [[each.get("round"), each.get("loss")] for each in rounds]))
    return _axes(series, "round", "loss")


def times(state: RunState) -> dict[str, Any]:
    """A lane for each party, and one for the coordinator: seconds by round, darker where it took longer."""
    fit = state.main
    spent = {} if fit is None else {each.get("round"): float(each.get("seconds") or 0) for each in fit.rounds}
    numbers = [each for each in sorted(state.times) if each in spent]
    lanes = ["coordinator", *sorted(state.parties)]
    step = max(1, -(-len(numbers) // min(COLUMNS, CELLS // len(lanes) + 1)))
    groups = [numbers[start : start + step] for start in range(0, len(numbers), step)]
    cells: list[list[float]] = []
    for column, group in enumerate(groups):
        for row, lane in enumerate(lanes):
            if lane == "coordinator":
                value = sum(max(0.0, spent.get(each, 0.0) - state.times[each].waited) for each in group)
            else:
                value = sum(state.times[each].parties.get(lane, 0.0) for each in group)
            cells.append([column, row, round(value / len(group), 5)])
    labels = [str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}" for group in groups]
    most = max((cell[2] for cell in cells), default=1.0) or 1.0
    return {
        "animation": False,
        "tooltip": {"confine": True},
        "grid": {"left": 110, "right": 16, "top": 8, "bottom": 70},
        "xAxis": {"type": "category", "data": labels, "name": "round", **_ink()},
        "yAxis": {"type": "category", "data": lanes, "inverse": True, **_ink(95)},
        "visualMap": {
            "min": 0, "max": most, "orient": "horizontal", "left": "center", "bottom": 0, "precision": 4,
            "text": [f"{shown_time(most)} of a round", "0"], "textStyle": {"color": GREY},
            "inRange": {"color": ["#cfe2f7", "#0b4a94"]},
        },
        "series": [{"type": "heatmap", "data": cells, "progressive": 0}],
    }  # fmt: skip


def timeline(trips: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A lane for each party, a bar for each request as long as it took; requests of one trip begin together."""
    lanes = sorted({str(each.get("party", "")) for each in trips})
    place = {lane: at for at, lane in enumerate(lanes)}
    start = min((each["time"] - each.get("seconds", 0.0) for each in trips), default=0.0)
    data = []
    for each in trips:
        ops = [str(op) for op in each.get("ops", ())]
        end, spent = each["time"] - start, float(each.get("seconds", 0.0))
        colour = (
            RED
            if not each.get("answered", True)
            else next((KINDS[o.split(".")[0]] for o in ops if o.split(".")[0] in KINDS), BLUE)
        )
        data.append(
            {
                "name": f"trip {each.get('trip', '')}: {', '.join(ops)[:200]}",
                "value": [place[str(each.get("party", ""))], max(0.0, end - spent), end, spent],
                "itemStyle": {"color": colour},
            }
        )  # fmt: skip
    draw = (
        "(p, api) => { const a = api.coord([api.value(1), api.value(0)]), b = api.coord([api.value(2), api.value(0)]),"
        " h = Math.min(22, Math.max(3, api.size([0, 1])[1] * 0.6));"
        " return {type: 'rect', shape: {x: a[0], y: a[1] - h / 2, width: Math.max(1, b[0] - a[0]), height: h},"
        " style: api.style()}; }"
    )
    return {
        "animation": False,
        "tooltip": {
            ":formatter": "p => p.name.replace(/[<>&]/g, ' ') + ': ' + (p.value[3] * 1000).toFixed(1) + ' ms'",
            "confine": True,
        },
        "grid": {"left": 110, "right": 16, "top": 8, "bottom": 80},
        "dataZoom": [
            {"type": each, "xAxisIndex": 0, "filterMode": "weakFilter", "bottom": 8} for each in ("slider", "inside")
        ],
        "xAxis": {"type": "value", "name": "s", "min": 0, **_ink()},
        "yAxis": {"type": "category", "data": lanes, "inverse": True, **_ink(95)},
        "series": [
            {"type": "custom", ":renderItem": draw, "encode": {"x": [1, 2], "y": 0}, "data": data, "clip": True},
        ],
    }  # fmt: skip


def over_time(party: PartyState) -> dict[str, Any]:
    """Bytes of a party by minute, the last hours."""
    minutes = sorted(party.over_time)[-240:]
    labels = [time.strftime("%H:%M", time.localtime(each * 60)) for each in minutes]
    return bars(labels, [party.over_time[each] for each in minutes], "bytes by minute")


def sizes(party: PartyState) -> dict[str, Any]:
    """How large replies of a party were."""
    powers = sorted(party.sizes)
    return bars(
        [f"< {readable(2**each)}" for each in powers], [party.sizes[each] for each in powers], "replies by size"
    )


def bars(labels: Sequence[str], values: Sequence[float], name: str) -> dict[str, Any]:
    """Bars with labels."""
    return {
        "animation": False,
        "tooltip": {"confine": True},
        "grid": {"left": 60, "right": 16, "top": 24, "bottom": 50},
        "xAxis": {"type": "category", "data": list(labels), **_ink()},
        "yAxis": {"type": "value", "name": name, **_ink()},
        "series": [{"type": "bar", "data": list(values), "itemStyle": {"color": BLUE}}],
    }


def _line(name: str, colour: str, points: list[list[Any]]) -> dict[str, Any]:
    return {
        "type": "line", "name": name, "data": points, "showSymbol": len(points) < 40, "symbolSize": 5,
        "itemStyle": {"color": colour}, "lineStyle": {"width": 2}, "connectNulls": True,
    }  # fmt: skip


def _axes(series: list[dict[str, Any]], x: str, y: str) -> dict[str, Any]:
    return {
        "animation": False,
        "tooltip": {"trigger": "axis", "confine": True},
        "legend": {"textStyle": {"color": GREY}, "top": 0, "type": "scroll"},
        "grid": {"left": 60, "right": 20, "top": 52, "bottom": 44},
        "xAxis": {"type": "value", "name": x, "nameLocation": "middle", "nameGap": 26, "minInterval": 1,
                  "min": "dataMin", "max": "dataMax", **_ink()},
        "yAxis": {"type": "value", "name": y, "scale": True, **_ink()},
        "series": series,
    }  # fmt: skip


def height(options: Mapping[str, Any]) -> int:
    """How high a chart with a lane for each party must be, in pixels, for each to be read."""
    return max(420, LANE * len(options["yAxis"]["data"]) + 100)


def _ink(width: int = 0) -> dict[str, Any]:
    """Colours that are read on white and on black; labels longer than ``width`` pixels, if it is given, are cut."""
    cut = {"width": width, "overflow": "truncate"} if width else {}
    return {
        "axisLabel": {"color": GREY, "hideOverlap": True, **cut},
        "nameTextStyle": {"color": GREY},
        "axisLine": {"lineStyle": {"color": GREY}},
        "splitLine": {"lineStyle": {"color": "rgba(128,128,128,0.25)"}},
    }
