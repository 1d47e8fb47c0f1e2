"""What a run comes down to, in words: one sentence of how it stands, and what to do about what went wrong."""

from __future__ import annotations

import math
from typing import NamedTuple

from tablepuppet.monitor.run_files import Run
from tablepuppet.monitor.run_state import Fit, PartyState, RunState
from tablepuppet.runs.figures import metric, number, seconds

DOING = {
    "open": "parties read their tables", "join": "joining keys", "prepare": "preparing labels and features",
    "fit": "learning", "predict": "predicting", "search": "searching", "folds": "cross-validating",
    "pretrain": "learning without labels", "describe": "computing statistics", "guests": "guests learn",
}  # fmt: skip
ADVICE = {
    "party.silent": "See whether the party's process runs and its address can be reached; the run waits meanwhile.",
    "party.lost": "Ask the party's operator to start it again; the run goes on if its answers can be replaced.",
    "fit.short": "Give it more rounds, or a larger tol.",
    "column.dropped": "List the column in categorical, or leave it out with drop.",
    "column.id": "Leave ids out: drop=[...].",
    "features.none": "Select columns to learn from.",
    "privacy.useless": "Give it a larger epsilon, fewer rounds or more rows.",
    "catalog.refused": "Ask the party's operator to name you in allow; the message says what it refused.",
}

LONGEST = 40  # letters of a party's name in a sentence


class Summary(NamedTuple):
    """A run in one sentence, and whether a person has to do something."""

    text: str
    needs_you: bool


def summary(run: Run) -> Summary:
    """How a run stands."""
    state, status = run.state, run.status
    if run.problem:
        return Summary(f"{run.name}: {run.problem}", True)
    parts = [f"{run.name}: {_position(run)}"]
    fit = state.main
    if fit is not None and fit.rounds:
        parts.append(_loss(fit))
    if status in ("running", "waiting"):
        parts.append(_parties(state))
    epsilon = _epsilon(state)
    if epsilon:
        parts.append(epsilon)
    lost = any(party.status == "lost" for party in state.parties.values()) and status in ("running", "waiting")
    needs = status in ("waiting", "failed", "stopped", "died") or lost or (fit is not None and _diverges(fit))
    return Summary("; ".join(part for part in parts if part), needs)


def what_to_do(run: Run) -> str:
    """What somebody has to do about a run that has not finished; nothing if there is nothing."""
    if run.resumable:
        return f"tablepuppet resume {run.path}"
    if run.status == "failed":
        return "Correct what the error names, then train again."
    if run.status in ("stopped", "died"):
        return "Train again: there is nothing that could be continued."
    return ""


def progress(run: Run) -> str:
    """How far it is, in a few words."""
    fit, stage = run.state.main, run.state.stage
    if run.status == "finished":
        return _ending(fit)
    if fit is not None and fit.rounds:
        return f"round {fit.rounds[-1].get('round', len(fit.rounds)):,} of at most {fit.limit:,}"
    if stage is not None:
        return f"{DOING.get(stage.name, stage.name)} ({stage.done:,} of {stage.total:,})"
    return "nothing yet"


def to_go(run: Run) -> str:
    """How long it may take, at its pace until now."""
    fit = run.state.main
    if run.status != "running" or fit is None or len(fit.rounds) < 2 or fit.fitted:
        return ""
    spent = [float(each.get("seconds") or 0.0) for each in fit.rounds[-20:]]
    left = max(0, fit.limit - int(fit.rounds[-1].get("round", len(fit.rounds))))
    return f"at most {seconds(left * sum(spent) / len(spent))}" if left else ""


def last_metric(run: Run) -> str:
    """Its metric: of the test side if it is known, else of the last round."""
    for side in ("test", "validation", "train"):
        if side in run.state.metrics:
            name, value = next(iter(run.state.metrics[side].items()), ("", None))
            return "" if value is None else f"{name} {metric(name, value)} ({side})"
    fit = run.state.main
    if fit is None or not fit.rounds or fit.rounds[-1].get("metric") is None:
        return ""
    name = str(fit.begins.get("metric", "metric"))
    return f"{name} {metric(name, float(fit.rounds[-1]['metric']))}"


def _position(run: Run) -> str:
    state, fit, stage = run.state, run.state.main, run.state.stage
    if run.status == "failed":
        return f"failed: {state.ending.splitlines()[0] if state.ending else 'no reason is known'}"
    if run.status == "stopped":
        return f"stopped{_at(fit)}"
    if run.status == "died":
        return f"its process has ended without a word{_at(fit)}"
    if run.status == "finished":
        return _ending(fit)
    if run.status == "waiting":
        silent = [_short(party.name) for party in state.parties.values() if party.status in ("silent", "lost")]
        more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
        return f"waiting for {', '.join(silent[:3]) or 'a party'}{more}{_at(fit)}"
    if fit is not None and fit.rounds and not fit.fitted:
        return f"round {int(fit.rounds[-1].get('round', len(fit.rounds))):,} of at most {fit.limit:,}, {_learns(fit)}"
    if stage is not None:
        done = f" ({stage.done:,} of {stage.total:,})" if stage.total > 1 else ""
        return f"{DOING.get(stage.name, stage.name)}{done}"
    return "it has begun"


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _at(fit: Fit | None) -> str:
    return f" at round {len(fit.rounds):,}" if fit is not None and fit.rounds else ""


def _ending(fit: Fit | None) -> str:
    if fit is None:
        return "finished"
    rounds = int(fit.fitted.get("rounds") or len(fit.rounds))
    return f"finished, {fit.fitted.get('stopped', 'done')} after {rounds:,} round{'' if rounds == 1 else 's'}"


def _learns(fit: Fit) -> str:
    """Whether the loss still falls."""
    losses = [float(each["loss"]) for each in fit.rounds if each.get("loss") is not None]
    if _diverges(fit):
        return "not learning: worse than a constant"
    if len(losses) > 10 and min(losses[-5:]) > min(losses[:-5]):
        return "no longer falling"
    return "learning"


def _diverges(fit: Fit) -> bool:
    if len(fit.rounds) < 5:
        return False
    loss, constant = fit.rounds[-1].get("loss"), fit.constant
    return loss is None or (constant is not None and float(loss) > 1.5 * constant)


def _loss(fit: Fit) -> str:
    loss, constant = fit.rounds[-1].get("loss"), fit.constant
    shown = "loss not a number" if loss is None or math.isnan(float(loss)) else f"loss {metric('loss', float(loss))}"
    return shown if constant is None else f"{shown}, constant {metric('loss', constant)}"


def _parties(state: RunState) -> str:
    by: dict[str, list[PartyState]] = {}
    for party in state.parties.values():
        by.setdefault(party.status, []).append(party)
    answering = len(by.get("answering", []))
    found = [f"{answering} part{'y' if answering == 1 else 'ies'} answering"] if answering else []
    for status in ("silent", "lost"):
        names = [party.name for party in by.get(status, [])]
        if names:
            found.append(
                f"{', '.join(map(_short, names[:3]))}{f' and {len(names) - 3} more' if len(names) > 3 else ''} {status}"
            )
    return ", ".join(found)


def _epsilon(state: RunState) -> str:
    fit = state.main
    if fit is None or not fit.rounds or fit.rounds[-1].get("epsilon") is None:
        return ""
    most = fit.begins.get("epsilon")
    spent = f"epsilon {number(float(fit.rounds[-1]['epsilon']), 2)}"
    return spent if most is None else f"{spent} of {number(float(most), 3)}"
