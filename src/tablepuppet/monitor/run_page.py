"""The parts of a run's page as HTML: its sentence, tiles of parties, warnings, stages, folds, bytes, time and privacy.

Input: a `Run`. Output: `Markup`, escaped: names and errors in it were written by others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from tablepuppet.monitor.markup import Markup, ago, joined, link, table, tag
from tablepuppet.monitor.run_files import Run
from tablepuppet.monitor.run_state import STAGES, Fit, RunState
from tablepuppet.monitor.sentences import ADVICE, DOING, last_metric, progress, summary, to_go, what_to_do
from tablepuppet.runs.figures import metric, metrics_line, number, readable, seconds, shown_time

TILES = 60
ROWS = 100


def headline(run: Run) -> Markup:
    """The sentence that says how it stands, in red if a person is needed, and what that person does."""
    found, what = summary(run), what_to_do(run)
    todo = tag("p", "Do: ", tag("code", what), cls="todo") if what else None
    left = to_go(run)
    facts = [f"{left} to go"] if left else []
    facts += [each for each in (last_metric(run),) if each]
    facts += [f"attempt {run.state.attempts}"] if run.state.attempts > 1 else []
    when = [tag("span", "began ", ago(run.state.begun)), tag("span", " · last heard ", ago(run.state.last))]
    more = tag("p", " · ".join(facts), " · " if facts else None, when, cls="facts") if run.state.begun else None
    text = tag("p", found.text, cls="sentence needs" if found.needs_you else "sentence", id_="sentence")
    return joined([text, todo, more])


def results(run: Run) -> Markup | None:
    """The metrics it came to."""
    if not run.state.metrics:
        return None
    lines = [tag("li", f"{side}: {metrics_line(values)}") for side, values in run.state.metrics.items()]
    return tag("section", tag("h2", "Results"), tag("ul", lines))


def tiles(run: Run, most: int = TILES) -> Markup:
    """A tile per party: whether it answers, its last trip, and how much went up and down; what is bad comes first."""
    state = run.state
    if not state.parties:
        return tag("p", "No party was asked yet.", cls="empty")
    live = run.status in ("running", "waiting")
    order = {"lost": 0, "silent": 1}
    parties = sorted(state.parties.values(), key=lambda each: (order.get(each.status, 2), each.name))
    found = []
    most = max(most, sum(party.status in order for party in parties))
    for party in parties[:most]:
        status = party.status if live or party.status == "lost" else ("answered" if party.trips else party.status)
        bad = status in ("silent", "lost")
        last = f"last trip {shown_time(party.last_seconds)}" if party.trips else "no trip yet"
        found.append(
            tag(
                "li",
                link(
                    party.name,
                    f"run/{run.key}/party/{_quoted(party.name)}",
                    cls="name",
                    title=party.name,
                    id_=f"tile-{party.name}",
                ),
                tag("span", status, cls="status needs" if bad else "status"),
                tag("span", last, ", " if party.heard else None, ago(party.heard) if party.heard else None),
                tag("span", f"↑ {readable(party.bytes_up)}  ↓ {readable(party.bytes_down)}"),
                cls="tile bad" if bad else "tile",
            )
        )
    text = f"and {len(parties) - most} more parties"
    more = tag("p", link(text, f"run/{run.key}", id_="more-tiles")) if len(parties) > most else None
    return joined([tag("ul", found, cls="tiles"), more])


def warnings(run: Run) -> Markup:
    """Warnings and errors with what to do, as text that can be selected and copied."""
    state, found = run.state, list[Markup]()
    if run.status == "failed" and state.ending:
        found.append(tag("li", tag("pre", state.ending), tag("p", what_to_do(run)), cls="warning needs"))
    for each in reversed(state.warnings[-ROWS:]):
        times = f" ({each.times} times)" if each.times > 1 else ""
        advice = ADVICE.get(each.name, "")
        found.append(
            tag(
                "li",
                tag("b", f"{each.name}{times} "),
                ago(each.last),
                tag("pre", each.text),
                advice or None,
                cls="warning",
            )
        )
    if not found:
        return tag("p", "No warnings.", cls="empty")
    return tag("ul", found, cls="warnings")


def stages(run: Run) -> Markup:
    """The stages: which are done, which goes on, and how far it is."""
    known = run.state.stages
    names = [*STAGES, *(name for name in known if name not in STAGES)]
    live = run.status in ("running", "waiting")
    current = run.state.stage
    found = []
    for name in names:
        stage = known.get(name)
        if stage is None:
            mark, text = "·", ""
        elif stage.ended or (not live and run.status == "finished"):
            mark, text = "✓", shown_time(max(0.0, stage.last - stage.begun))
        elif live and stage is current:
            mark, text = "▶", f"{stage.done:,} of {stage.total:,}"
        else:
            mark, text = ("✓", "") if live else ("✗", "")
        what = tag("span", f"{mark} {name}", title=DOING.get(name))
        found.append(tag("li", what, tag("small", text), aria_current="step" if mark == "▶" else None))
    return tag("ol", found, cls="stages")


def strips(run: Run) -> Markup | None:
    """A search: a strip of folds for each candidate, the loss of each fit; each leads to its fit."""
    parts = run.state.parts
    if not parts:
        return None
    by: dict[str, list[Fit]] = {}
    for fit in parts:
        name = ", ".join(each for each in fit.part.split(", ") if not each.startswith("fold "))
        by.setdefault(name or "cross-validation", []).append(fit)
    losses = [_last_loss(fit) for fit in parts]
    known = [each for each in losses if each is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    rows = []
    for name, fits in list(by.items())[:500]:
        cells = []
        for fit in fits:
            loss = _last_loss(fit)
            share = 0.0 if loss is None or high <= low else (high - loss) / (high - low)
            text = "…" if loss is None else metric("loss", loss)
            cells.append(
                link(
                    text, f"run/{run.key}?fit={_quoted(fit.run)}", cls="cell", title=fit.part,
                    style=f"--share: {share:.2f}", id_=f"fit-{fit.run}",
                )
            )  # fmt: skip
        mean = [each for each in (_last_loss(fit) for fit in fits) if each is not None]
        rows.append([name, tag("span", cells, cls="strip"), metric("loss", sum(mean) / len(mean)) if mean else ""])
    caption = f"Candidates by folds: the last loss of each of {len(parts):,} fits, darker is lower"
    return tag("section", tag("h2", "Search"), table(caption, ["candidate", "folds", "mean loss"], rows, 1))


def bytes_by_release(state: RunState) -> Markup | None:
    """What parties sent, by release."""
    parties = sorted(state.parties.values(), key=lambda each: -each.bytes_up)
    releases = sorted({release for party in parties for release in party.released})
    if not releases:
        return None
    words = [each.lower().replace("|", ", ").replace("_", " ") for each in releases]
    rows = [
        [
            party.name,
            *(readable(party.released[each]) if each in party.released else "" for each in releases),
            readable(party.bytes_up),
            readable(party.bytes_down),
        ]
        for party in parties
    ]  # fmt: skip
    heads = ["party", *words, "all up", "all down"]
    return tag("section", tag("h2", "Bytes"), table("What parties sent, by release", heads, rows, len(heads) - 1))


def time_shares(state: RunState) -> Markup | None:
    """Where the time went: asking parties, and the coordinator's own share."""
    fit = state.main
    if fit is None or not fit.rounds:
        return None
    whole = sum(float(each.get("seconds") or 0.0) for each in fit.rounds)
    waited = min(whole, sum(each.waited for number, each in state.times.items() if number))
    share = (
        f"{waited / whole:.0%} waiting for the slowest party of each trip, {1 - waited / whole:.0%} its own work"
        if whole
        else ""
    )
    rows = [
        [party.name, f"{party.trips:,}", shown_time(party.seconds), shown_time(party.seconds / max(1, party.trips))]
        for party in sorted(state.parties.values(), key=lambda each: -each.seconds)
    ]  # fmt: skip
    return tag(
        "section",
        tag("h2", "Time"),
        tag("p", f"{len(fit.rounds):,} rounds in {seconds(whole)}. The coordinator: {share}."),
        table(
            "From requests to answers, by party: computing and the way", ["party", "trips", "seconds", "each"], rows, 3
        ),
    )


def ops_table(state: RunState, party: str | None = None) -> Markup | None:
    """Ops by time, and where they ran."""
    rows = []
    for name, each in state.parties.items():
        if party in (None, name):
            rows += [(op, name, count, spent) for op, (count, spent) in each.ops.items()]
    rows.sort(key=lambda row: -row[3])
    if not rows:
        return None
    shown = [[op, name, f"{count:,}", shown_time(spent)] for op, name, count, spent in rows[:ROWS]]
    return table(
        "Ops, the longest first; several in one trip count for the last", ["op", "party", "trips", "seconds"], shown, 2
    )


def privacy(state: RunState) -> Markup | None:
    """What was spent, and what tables had left when the fit began."""
    fit = state.main
    if fit is None:
        return None
    spent = fit.rounds[-1].get("epsilon") if fit.rounds else None
    budgets = fit.begins.get("budgets") or []
    if spent is None and not budgets:
        return None
    most = fit.begins.get("epsilon")
    text = (
        "no noise on features"
        if spent is None
        else f"epsilon {number(float(spent))} spent{'' if most is None else f' of {number(float(most))}'}"
    )
    rows = [
        [f"{each['party']}.{each['table']}", each["whose"], number(each["epsilon"]), number(each["left"])]
        for each in budgets
    ]
    left = (
        table("Budgets of tables when the fit began", ["table", "whose", "epsilon", "left"], rows, 2) if rows else None
    )
    return tag("section", tag("h2", "Privacy"), tag("p", f"This fit: {text}."), left)


def marks(state: RunState) -> Markup | None:
    """Parties that were silent, lost or came back, by round."""
    if not state.marks:
        return None
    rows = [
        [mark.party or "a party", mark.what, f"{mark.round:,}" if mark.round else "", ago(mark.time)]
        for mark in list(state.marks)[-ROWS:]
    ]
    return tag(
        "section", tag("h2", "Lost parties and retries"), table("By round", ["party", "what", "round", "when"], rows)
    )


def plan(state: RunState) -> Markup | None:
    """The plan as `explain` writes it."""
    fit = state.main
    text = "" if fit is None else str(fit.begins.get("plan") or "")
    if not text:
        return None
    return tag(
        "section",
        tag("h2", "Plan"),
        tag("details", tag("summary", "What was planned, and what it took"), tag("pre", text)),
    )


def rounds_table(fit: Fit | None) -> Markup | None:
    """The figures of the curve as a table, for those who do not see it: the last rounds."""
    if fit is None or not fit.rounds:
        return None
    names = [
        name
        for name in ("loss", "metric", "validation_loss", "validation_metric", "epsilon")
        if fit.rounds[-1].get(name) is not None
    ]
    rows = [
        [str(each.get("round")), *(number(float(each[name])) if each.get(name) is not None else "" for name in names)]
        for each in fit.rounds[-20:]
    ]
    heads = ["round", *(name.replace("_", " ") for name in names)]
    return tag("details", tag("summary", "The last rounds in figures"), table("Rounds", heads, rows, len(names)))


def settings(run: Run) -> Markup | None:
    """What the run is: learner, settings, label, rows."""
    facts, fit = dict(run.state.facts), run.state.main
    begins = {} if fit is None else fit.begins
    rows = [["folder", str(run.path)]]
    rows += [[name, str(facts[name])] for name in ("job", "learner", "label", "purpose") if facts.get(name)]
    rows += [[name, str(begins[name])] for name in ("solver", "rows") if begins.get(name) is not None]
    rows += [
        [f"setting {name}", str(value)]
        for name, value in (facts.get("settings") or begins.get("settings") or {}).items()
    ]
    return tag("section", tag("h2", "Settings"), table("What was asked for", ["what", "value"], rows))


def compared(runs: Sequence[Run]) -> Markup:
    """Several runs side by side."""
    heads = ["what", *(run.name for run in runs)]
    rows: list[list[object]] = [
        ["status", *(run.status for run in runs)],
        ["progress", *(progress(run) for run in runs)],
        ["metric", *(last_metric(run) for run in runs)],
        ["loss", *(_shown_loss(run.state.main) for run in runs)],
        ["time", *(seconds(max(0.0, run.state.last - run.state.begun)) for run in runs)],
        ["bytes", *(readable(sum(p.bytes_up + p.bytes_down for p in run.state.parties.values())) for run in runs)],
    ]
    names = sorted({name for run in runs for name in (run.state.facts.get("settings") or {})})
    for name in names:
        rows.append([f"setting {name}", *(str((run.state.facts.get("settings") or {}).get(name, "")) for run in runs)])
    for side in ("train", "validation", "test"):
        if any(side in run.state.metrics for run in runs):
            rows.append([side, *(metrics_line(run.state.metrics.get(side, {})) for run in runs)])
    return table("Runs side by side", heads, rows)


def before_times(run: Run) -> Iterable[tuple[str, Markup | None]]:
    """The parts below the first screen, by name."""
    yield "results", results(run)
    yield "strips", strips(run)
    yield "time", time_shares(run.state)


def after_times(run: Run) -> Iterable[tuple[str, Markup | None]]:
    """The parts below the map of times, by name."""
    state = run.state
    yield "bytes", bytes_by_release(state)
    yield "privacy", privacy(state)
    yield "marks", marks(state)
    ops = ops_table(state)
    yield "ops", None if ops is None else tag("section", tag("h2", "Ops"), ops)
    yield "plan", plan(state)
    yield "settings", settings(run)


def _last_loss(fit: Fit) -> float | None:
    found = fit.rounds[-1].get("validation_loss", fit.rounds[-1].get("loss")) if fit.rounds else None
    if found is None and fit.rounds:
        found = fit.rounds[-1].get("loss")
    return None if found is None else float(found)


def _shown_loss(fit: Fit | None) -> str:
    loss = None if fit is None else _last_loss(fit)
    return "" if loss is None else metric("loss", loss)


def _quoted(text: str) -> str:
    return quote(text, safe="")
