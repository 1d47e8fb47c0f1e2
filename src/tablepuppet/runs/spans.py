"""Spans of OpenTelemetry: run, round, trip and call at the coordinator, and op at the party, in one trace.

Only where the process has set OpenTelemetry up, as ``opentelemetry-instrument`` does: nothing is imported here, and
nothing is done otherwise. Attributes are what events hold: names of parties, ops, releases and rules, and counts. What
travels is a W3C ``traceparent``; a party reads two ids and a flag of it, and no text of the caller.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

HEADER = "traceparent"
_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-0([01])")
_CALLER: ContextVar[str] = ContextVar("traceparent", default="")
_ROUNDS: dict[str, Any] = {}  # by run: the span of the round that goes on, None between two
ROUND_FIELDS = ("round", "loss", "metric", "bytes_up", "bytes_down", "epsilon")


def is_traced() -> bool:
    """Whether somebody wants spans."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    return trace is not None and type(trace.get_tracer_provider()).__name__ not in (
        "ProxyTracerProvider",
        "NoOpTracerProvider",
    )


def _trace() -> Any:
    return sys.modules["opentelemetry.trace"]


def _begin(name: str, parent: Any = None, kind: str = "INTERNAL", start: int | None = None, **facts: Any) -> Any:
    """A span that has begun; its parent is the one that goes on here, if none is given."""
    trace = _trace()
    context = None if parent is None else trace.set_span_in_context(parent)
    attributes = {f"tablepuppet.{key}": value for key, value in facts.items() if value not in (None, "")}
    return trace.get_tracer("tablepuppet").start_span(
        name, context=context, kind=trace.SpanKind[kind], attributes=attributes, start_time=start
    )


@contextmanager
def _current(span: Any) -> Iterator[Any]:
    """A span that goes on inside; an error marks it, by its class alone."""
    trace = _trace()
    try:
        with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield span
    except BaseException as error:
        _fails(span, type(error).__name__)
        raise
    finally:
        span.end()


def _fails(span: Any, why: str) -> None:
    trace = _trace()
    span.set_status(trace.Status(trace.StatusCode.ERROR, why))


@contextmanager
def of_run(run: str, part: str) -> Iterator[None]:
    """The span of a run, around all that is done in it."""
    if not is_traced():
        yield
        return
    try:
        with _current(_begin("run", run=run, part=part)):
            yield
    finally:
        _end_round(run)
        _ROUNDS.pop(run, None)


def heard(run: str, name: str, fields: Any) -> None:
    """An event of a run: rounds begin after `fit.begins`, and each ends with its `fit`."""
    if name == "fit.begins":
        _ROUNDS[run] = None
    elif run in _ROUNDS and name in ("fit", "fitted"):
        if name == "fit" and fields.get("done") == 0:
            return
        _end_round(run, {key: fields[key] for key in ROUND_FIELDS if fields.get(key) is not None})
        if name == "fitted":
            del _ROUNDS[run]


def _end_round(run: str, facts: dict[str, Any] | None = None) -> None:
    span = _ROUNDS.get(run)
    if span is not None:
        for key, value in (facts or {}).items():
            span.set_attribute(f"tablepuppet.{key}", value)
        span.end()
        _ROUNDS[run] = None


@contextmanager
def of_trip(run: str | None, number: int) -> Iterator[Any]:
    """The span of a trip, for its calls; None if nobody wants any."""
    if not is_traced():
        yield None
        return
    if run in _ROUNDS and _ROUNDS[run] is None:
        _ROUNDS[run] = _begin("round", run=run)
    with _current(_begin("trip", _ROUNDS.get(run or ""), trip=number, run=run)) as span:
        yield span


@contextmanager
def of_call(trip: Any, party: str, ops: Sequence[str]) -> Iterator[None]:
    """The span of one call of a party; of the parts of the request it has the names."""
    if trip is None:
        yield
        return
    with _current(_begin("call", trip, "CLIENT", party=party, ops=list(ops))):
        yield


def traceparent() -> str:
    """What a party is sent for its spans to be of this trace; nothing without one."""
    if not is_traced():
        return ""
    context = _trace().get_current_span().get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-0{int(context.trace_flags) & 1}"


@contextmanager
def asked_with(header: str) -> Iterator[None]:
    """Spans inside are of the trace that a caller named, if it is one."""
    before = _CALLER.set(header)
    try:
        yield
    finally:
        _CALLER.reset(before)


def answered(party_facts: dict[str, Any], outcome: str, seconds: float) -> None:
    """A party has answered a verb or an op, or refused it: a span that ends now."""
    if not is_traced():
        return
    trace, parent, now = _trace(), None, time.time_ns()
    form = _FORM.fullmatch(_CALLER.get())
    if form is not None and int(form[1], 16) and int(form[2], 16):
        named = trace.SpanContext(int(form[1], 16), int(form[2], 16), True, trace.TraceFlags(int(form[3])))
        parent = trace.NonRecordingSpan(named)
    name = party_facts.get("op") or party_facts.get("verb") or "request"
    span = _begin(name, parent, "SERVER", now - int(seconds * 1e9), outcome=outcome, **party_facts)
    if outcome != "ok":
        _fails(span, str(party_facts.get("rule") or outcome))
    span.end(now)
