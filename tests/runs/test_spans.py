"""Spans of OpenTelemetry: those of a fit, and of a party that answers it, are one trace."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tablepuppet as tp
from tablepuppet.runs import spans
from tests.party.policed import CANARY
from tests.wire.services import served

trace = pytest.importorskip("opentelemetry.trace", reason="opentelemetry is not installed")


class Span(trace.NonRecordingSpan):  # type: ignore[misc, name-defined]
    """A span that is kept."""

    def __init__(self, number: int, name: str, parent: Any, facts: dict[str, Any]):
        known = trace.get_current_span(parent).get_span_context() if parent is not None else None
        known = known or trace.get_current_span().get_span_context()
        super().__init__(trace.SpanContext(known.trace_id or number, number, False, trace.TraceFlags(1)))
        self.name, self.parent, self.facts, self.ended, self.failed = name, known.span_id, facts, False, ""

    def end(self, end_time: int | None = None) -> None:
        """It is over."""
        assert not self.ended
        self.ended = True

    def set_attribute(self, key: str, value: Any) -> None:
        """One fact more."""
        self.facts[key] = value

    def set_status(self, status: Any, description: str | None = None) -> None:
        """It has failed."""
        self.failed = status.description


class Kept:
    """Keeps spans, as a set-up of the real one would send them away."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def get_tracer(self, *_: Any, **__: Any) -> Kept:
        """Itself."""
        return self

    def start_span(self, name: str, context: Any = None, **given: Any) -> Span:
        """A span."""
        self.spans.append(Span(len(self.spans) + 1, name, context, dict(given["attributes"])))
        return self.spans[-1]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    provider = Kept()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return provider


@pytest.mark.parametrize("is_service", [False, True])
def test_a_fit_is_one_trace(kept: Kept, tmp_path: Path, is_service: bool) -> None:
    """Run, rounds, trips, calls and what the party did, each within the one before; no value of a row is in them."""
    rows = "".join(f"{at},{at * 2.5},{CANARY}\n" for at in range(1, 80))
    (tmp_path / "items.csv").write_text("weight,price,kind\n" + rows)
    urls = {"shop": f"csv://{tmp_path}"}
    with ExitStack() as stack:
        services = stack.enter_context(served(urls)) if is_service else {}
        places = {name: f"grpc://127.0.0.1:{each.port}" for name, each in services.items()} or urls
        relation = tp.Federation(places).sql("SELECT weight, price FROM items", label="price")
        model = tp.LinearRegression(rounds=3, solver="sgd").fit(relation)
    by = dict(enumerate(kept.spans, 1))
    assert all(span.ended for span in kept.spans)
    assert len([span for span in kept.spans if span.name == "round"]) >= len(model.history_)
    losses = [span.facts.get("tablepuppet.loss") for span in kept.spans if span.name == "round"]
    assert losses[: len(model.history_)] == [each["loss"] for each in model.history_]
    found = [span for span in kept.spans if "tablepuppet.verb" in span.facts and "sgd" in span.name]
    assert found, {span.name for span in kept.spans}
    line = [found[-1]]
    while line[-1].parent:
        line.append(by[line[-1].parent])
    assert [span.name for span in line[1:]] == ["call", "trip", "round", "run"]
    assert len({span.get_span_context().trace_id for span in line}) == 1
    assert CANARY not in str([(span.name, span.facts, span.failed) for span in kept.spans])


def test_what_a_caller_names_is_no_text(kept: Kept) -> None:
    """A party takes ids and a flag of a header, or nothing; a refusal is a span with its rule."""
    good = f"00-{7:032x}-{9:016x}-01"
    for header, parent in ((good, 9), (good + "\n", 0), (f"00-{0:032x}-{9:016x}-01", 0), (CANARY, 0), ("", 0)):
        with spans.asked_with(header):
            spans.answered({"verb": "run", "op": "labels", "rule": "min_rows"}, "denied", 0.1)
        assert kept.spans[-1].parent == parent
        assert kept.spans[-1].failed == "min_rows"
    assert CANARY not in str([span.facts for span in kept.spans])


def test_nobody_pays_who_wants_none() -> None:
    """Where nothing was set up there are no spans, and no header travels."""
    assert not spans.is_traced()
    assert spans.traceparent() == ""
    with spans.of_trip("run", 1) as trip:
        assert trip is None
