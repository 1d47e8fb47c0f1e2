"""The metrics of a party for its operator's monitoring: counters and gauges for Prometheus, in a registry of its own.

Input: how each request ended, as in the audit log; names of limits that were reached; functions that return gauges when
metrics are read. Output: numbers, for whoever the operator allows to read them. Labels are words of this package and of
the party file: verbs, ops, releases, rules, limits, tables, and callers that the policy names (all others are
``other``). They contain no text that a caller chose and no value of a row, and no caller can add a series.
"""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tablepuppet.errors import TablePuppetError
from tablepuppet.party.ledger import Ledger
from tablepuppet.party.policy import Policy
from tablepuppet.versions import PROTOCOL, VERSION

log = logging.getLogger("tablepuppet.party")
OTHER = "other"  # the label of callers that the policy does not name
BEYOND_LIMITS = ("epsilon", "epsilon_per_caller", "disk", "descriptors")  # what runs out beside `limits`
BUCKETS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 300.0)  # seconds
Values = Iterable[tuple[tuple[str, ...], float]]  # of labels


class Metrics(Collector):
    """The counters and gauges of one party; ``limits`` are those of the party file by name."""

    def __init__(self, party: str, policy: Policy, limits: Mapping[str, float]):
        self.registry = CollectorRegistry(auto_describe=False)
        self._policy = policy
        self._requests = self._counter("requests", "Verbs and ops, by how they ended.", "verb", "op", "outcome")
        self._of_callers = self._counter("caller_requests", "Verbs and ops of a caller.", "caller", "outcome")
        self._caller_bytes = self._counter(
            "caller_bytes", "Bytes of arguments and replies of a caller.", "caller", "way"
        )
        self._refusals = self._counter("refusals", "Requests that were not answered, by rule or error.", "rule")
        self._seconds = self._counter("seconds", "Seconds spent on verbs and ops.", "verb", "op")
        self._received = self._counter("received_bytes", "Bytes of arguments of ops, by what these release.", "release")
        self._sent = self._counter("sent_bytes", "Bytes of replies, by release.", "release")
        self._reached = self._counter("limit_reached", "How often a limit ran out: refused, waited or ended.", "limit")
        self._sessions = self._counter("sessions_changed", "Sessions that began or ended, by how.", "event")
        self._left = self._counter(
            "connections_without_call", "Connections that were seen, and ended before somebody who may call had called."
        )
        self._times = Histogram(
            "tablepuppet_request_seconds", "Seconds of one verb or op.", ["verb"], buckets=BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        self._limits = frozenset((*limits, *BEYOND_LIMITS))
        for name in sorted(self._limits):
            self._reached.labels(name)  # from zero on, so that the first time is an increase
        self._constant(
            "limit", "Limits of the party file.", {(name,): limit for name, limit in limits.items()}, "limit"
        )
        info: dict[tuple[str, ...], float] = {(party, VERSION, str(PROTOCOL)): 1.0}
        self._constant("build_info", "The party, and the versions that it runs.", info, "party", "version", "protocol")
        self._gauges: dict[str, tuple[str, tuple[str, ...], Callable[[], Values]]] = {}  # read when somebody looks
        self._failed: set[str] = set()  # of them, when they were last read
        self.registry.register(self)
        ProcessCollector(registry=self.registry)  # memory, descriptors and CPU of the process, where there is /proc

    def adopt(self, policy: Policy) -> None:
        """Name the callers of another policy from now on."""
        self._policy = policy

    def ended(
        self, caller: str, verb: str, op: str, release: str, outcome: str, rule: str, seconds: float, received: int,
        sent: int,
    ) -> None:  # fmt: skip
        """Count a request that the audit log has a line of."""
        who = self._named("caller", caller)
        self._of_callers.labels(who, outcome).inc()
        self._caller_bytes.labels(who, "received").inc(received)
        self._caller_bytes.labels(who, "sent").inc(sent if outcome == "ok" else 0)
        self._requests.labels(verb, op, outcome).inc()
        self._seconds.labels(verb, op).inc(seconds)
        self._times.labels(verb).observe(seconds)
        self._received.labels(release).inc(received)
        if outcome == "ok":
            self._sent.labels(release).inc(sent)
        elif rule:
            self._refusals.labels(rule).inc()
            self.reached(rule)

    def reached(self, limit: str) -> None:
        """Count that a limit ran out; other rules are none."""
        if limit in self._limits:
            self._reached.labels(limit).inc()

    def session(self, event: str) -> None:
        """Count a session that was opened, restored, closed, expired and so on."""
        self._sessions.labels(event).inc()

    def left(self) -> None:
        """Count a connection that ended without a call."""
        self._left.inc()

    def gauge(self, name: str, text: str, read: Callable[[], Values], *labels: str) -> None:
        """Have values read whenever somebody looks; values of equal labels are added up."""
        self._gauges[f"tablepuppet_{name}"] = (text, labels, read)

    def budgets(self, ledger: Ledger) -> None:
        """Have read what was spent of privacy budgets, and what is left, for all callers and for each that is named."""

        def read(field: str) -> Values:
            for table, rules in self._policy.tables.items():
                for account in ledger.accounts(table, rules.budget):
                    value = getattr(account, field)
                    if value is not None and (not account.caller or self._is_named(account.caller)):
                        yield (table, account.caller), value

        spent = "Epsilon that was spent of a table; without a caller: by all together."
        self.gauge("epsilon_spent", spent, lambda: read("spent"), "table", "caller")
        left = "Epsilon that is left of the budget of a table; without a caller: for all together."
        self.gauge("epsilon_left", left, lambda: read("left"), "table", "caller")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tablepuppet_{name}", text, labels, registry=self.registry)

    def _constant(self, name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> None:
        gauge = Gauge(f"tablepuppet_{name}", text, labels, registry=self.registry)
        for each, value in values.items():
            gauge.labels(*each).set(value)

    def _is_named(self, caller: str) -> bool:
        return caller in (self._policy.allow or ())

    def _named(self, label: str, value: str) -> str:
        """A label's value that no caller can have chosen."""
        return value if label != "caller" or not value or self._is_named(value) else OTHER

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges as they are now; one that cannot be read is left out, and said once."""
        for name, (text, labels, read) in self._gauges.items():
            found, total = GaugeMetricFamily(name, text, labels=labels), Tally[tuple[str, ...]]()
            try:
                for values, number in read():
                    total[tuple(map(self._named, labels, values))] += number  # type: ignore[assignment]
            except (OSError, TablePuppetError) as error:
                if name not in self._failed:
                    log.warning("metrics: %s cannot be read now (%s)", name, type(error).__name__)
                self._failed.add(name)
                continue
            self._failed.discard(name)
            for values, number in total.items():
                found.add_metric(values, number)
            yield found
