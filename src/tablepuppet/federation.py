"""`Federation`: the front door. Name databases, write SQL, get a `Relation`.

The story on one page: `Federation` opens a party per URL; `sql` asks them what they publish, turns the text
into a plan, and lets every party read its snapshot; the `Relation` it returns joins blinded keys and learns
through the mapping.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from uuid import uuid4

import msgspec

from tablepuppet.errors import ConfigError, NotPickledError, QueryError, TablePuppetError
from tablepuppet.party.blind import read_blinding_key
from tablepuppet.party.config import TlsPaths
from tablepuppet.party.databases.arrow_tables import InMemory
from tablepuppet.party.databases.urls import anchored, open_database
from tablepuppet.party.delivery import Deliveries, PredictionsEntry
from tablepuppet.party.openings import StaleNonceError
from tablepuppet.party.policy import Category, Policy
from tablepuppet.party.request import MOST_PURPOSE, Declared, Request
from tablepuppet.party.service import Party
from tablepuppet.party.settings_file import read_settings
from tablepuppet.party.tls_files import TlsFiles, read_tls_files
from tablepuppet.prep.pipelines.pipeline import DEFAULT, Pipeline, foresee, selecting
from tablepuppet.privacy.funds import rounded_up
from tablepuppet.privacy.settings import Privacy
from tablepuppet.privacy.signed_keys import TrialAuthority
from tablepuppet.relation import Relation
from tablepuppet.runs import interrupts
from tablepuppet.runs.events import Events, Reader
from tablepuppet.runs.figures import readable
from tablepuppet.runs.progress import default_readers
from tablepuppet.runs.table_view import card
from tablepuppet.session import FederationSettings, Opening, Session
from tablepuppet.spelling import attributes_explained, class_checked, names_checked, shows
from tablepuppet.sql.catalog import Catalog, VerticalTable
from tablepuppet.sql.parameters import Parameters
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import Plan, plan
from tablepuppet.wire.engine import Engine, InProcessTransport, Transport
from tablepuppet.wire.flight_transport import ClientTls, FlightTransport
from tablepuppet.wire.outbox import StandIn, WhenLost
from tablepuppet.wire.protocol import LostError
from tablepuppet.wire.record import Record
from tablepuppet.wire.traffic import TrafficRecords

if TYPE_CHECKING:  # scikit-learn takes a second to load
    from tablepuppet.learn.learners.learner import Learner
    from tablepuppet.learn.selection.search import Search

Wire = Literal["float32", "float64"]
ONE_STATISTIC = 1.25  # times its epsilon is charged for a statistic with noise, at most
OnPartyLost = Literal["fail", "wait", "cache", "zeros"]


class PartyEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A party in a federation file: its URL, levels of columns that are not public, the values columns may have, and
    where predictions about its tables' rows may be delivered. ``identity`` is the name in a service's certificate, if
    it is another than the party's here.
    """

    url: str
    levels: dict[str, str] = {}
    bounds: dict[str, tuple[float, float]] = {}
    categories: dict[str, tuple[Category, ...]] = {}
    predictions: dict[str, PredictionsEntry] = {}
    identity: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether the party is a service elsewhere."""
        return self.url.startswith(("grpc://", "grpc+tls://"))

    @property
    def place(self) -> str:
        """Where it is, in words for people; a URL may hold a password, so of one in this process only its kind."""
        kind, _, rest = self.url.partition("://")
        if self.is_remote:
            return f"service at {rest}"
        return f"{kind}, opened in this process" if kind else "tables of this program"


OPENINGS = 3  # times that a relation is opened whose parties are restarted meanwhile
TLS_HELP = "tls takes three files, as tp.Tls(cert='analyst.crt', key='analyst.key', ca='ca.crt') or a dict of these"


class Tls(msgspec.Struct, forbid_unknown_fields=True):
    """Files of mutual TLS: this coordinator's certificate and key, and the authority of the parties' certificates."""

    cert: str
    key: str
    ca: str

    @classmethod
    def of(cls, given: Tls | Mapping[str, str | Path]) -> Tls:
        """The files that somebody names in Python; ConfigError that says how, if they are none."""
        if isinstance(given, Tls):
            return given
        names = cls.__struct_fields__
        if not isinstance(given, Mapping):
            raise ConfigError(f"{TLS_HELP}, not {type(given).__name__}")
        for name in given:
            if name not in names:
                raise ConfigError(f"tls has no file {name!r}: {TLS_HELP}")
        missing = [name for name in names if name not in given]
        if missing:
            raise ConfigError(f"tls lacks {', '.join(missing)}: {TLS_HELP}")
        return cls(*(str(given[name]) for name in names))

    def files(self) -> TlsFiles:
        """The files; ConfigError if one cannot be read, does not fit the others, or is not good today or to call."""
        return read_tls_files(TlsPaths(self.cert, self.key, self.ca), "analyst")

    def read(self) -> ClientTls:
        """What the files hold; see `files`."""
        found = self.files()
        return ClientTls(found.certificate, found.key, found.authorities)

    def anchored(self, folder: Path) -> Tls:
        """These paths, taken from a folder."""
        return Tls(*(str(folder / path) for path in (self.cert, self.key, self.ca)))


class FederationFile(msgspec.Struct, forbid_unknown_fields=True):
    """What `federation.toml` may say: arguments of `Federation`."""

    parties: dict[str, str | PartyEntry]
    wire: Wire = "float32"
    timeout: float = 60.0
    on_party_lost: OnPartyLost = "fail"
    memory_limit: int | None = None
    tls: Tls | None = None
    key_file: str | None = None
    purpose: str = ""


@dataclass(frozen=True)
class Planned:
    """A query over the catalog of a federation, not opened yet."""

    plan: Plan
    max_categories: int
    openings: list[Opening] = field(default_factory=list)  # for one relation each
    prep: Pipeline = DEFAULT


@class_checked
@shows("catalog", "events", "load", "on_party_lost", "purpose", "sql", "timeout", "traffic", "wire")
@attributes_explained(
    {
        **dict.fromkeys(("query", "execute", "read_sql", "table"), "fed.sql(text, label=...) makes a relation"),
        **dict.fromkeys(("tables", "columns", "schema"), "fed.catalog() lists tables and columns"),
    }
)
class Federation:
    """Databases of several owners, seen as one catalog of tables.

    ``parties`` maps a name to a database URL, or to tables of this program by their names: DataFrames, Arrow tables or
    dicts of columns, such as ``{"mine": {"orders": frame}}``. ``wire`` is a precision: whether numbers of
    rows are sent as float32 or float64. ``timeout`` is the number of seconds after which a silent party counts as lost,
    ``on_party_lost`` what happens then.
    ``memory_limit`` bounds the bytes of a mapping; by default what is free on this machine. ``tls`` and ``key_file``
    are for parties that are services elsewhere: the certificate to call them with (files ``cert``, ``key`` and ``ca``),
    and the blinding key that databases opened in this process must share with them. ``purpose`` is what relations are
    for, in a few words: parties write it into their audit logs, and some demand it. With a ``record`` a run goes on
    after this process has died. ``callbacks`` receive every `Event`. ``verbose`` says what a script prints of its
    progress on standard error: everything, nothing, or by default a line now and then about what takes longer than some
    seconds, if there are no callbacks. A notebook shows progress unless it is False.

    Raises ConfigError for an invalid URL or setting; databases are opened when they are first asked.
    """

    def __init__(
        self,
        parties: Mapping[str, str | PartyEntry | Mapping[str, Any]],
        *,
        wire: Wire = "float32",
        timeout: float = 60.0,
        on_party_lost: OnPartyLost = "fail",
        memory_limit: int | None = None,
        tls: Tls | Mapping[str, str | Path] | None = None,
        key_file: str | Path | None = None,
        purpose: str = "",
        record: Record | None = None,
        callbacks: Iterable[Reader] = (),
        verbose: bool | None = None,
    ):
        _check_settings(parties, wire, timeout, on_party_lost, memory_limit)
        if not isinstance(callbacks, Iterable) or isinstance(callbacks, str):
            raise ConfigError("callbacks is a list of functions that take an event, such as [print]")
        self.wire, self.timeout, self.on_party_lost = wire, timeout, on_party_lost
        self._memory_limit = memory_limit
        if not isinstance(purpose, str) or len(purpose) > MOST_PURPOSE:
            raise ConfigError(f"purpose is a text of at most {MOST_PURPOSE} letters")
        self.purpose, self._run = purpose, uuid4().hex[:16] if record is None else record.run
        if not isinstance(verbose, bool | None):
            raise ConfigError(f"verbose is True, False or None, not {verbose!r}")
        callbacks = list(callbacks)
        shown = any(not getattr(each, "reads_trips", False) for each in callbacks)  # those that keep all show nothing
        self.events = Events([*callbacks, *default_readers(verbose, has_callbacks=shown)])
        tables = {name: InMemory(name, given) for name, given in parties.items() if isinstance(given, Mapping)}
        entries = {name: _entry(given) for name, given in parties.items()}
        _check_once(entries)
        self._places = {name: entry.place for name, entry in entries.items()}
        self._known: Catalog | None = None  # what parties published when they were last asked
        blinding_key = _blinding_key(entries, key_file)
        trial = TrialAuthority()
        here: dict[str, Transport] = {
            name: InProcessTransport(_open_party(name, entry, tables.get(name), blinding_key, trial))
            for name, entry in entries.items()
            if not entry.is_remote
        }
        files = None if tls is None else Tls.of(tls).files()
        credentials = None if files is None else ClientTls(files.certificate, files.key, files.authorities)
        if files is not None and files.warning:
            self.events.emit("warning", "tls.both_ends", files.warning)
        remote: dict[str, Transport] = {
            name: FlightTransport(
                name,
                entry.url,
                credentials,
                timeout,
                identity=entry.identity,
                wait=on_party_lost == "wait",
                silent=partial(self._silent, name),
            )
            for name, entry in entries.items()
            if entry.is_remote
        }
        if record is None:
            self.engine = Engine(here | remote, events=self.events)
        else:
            losses = self._stand_in is not None
            recorded = {name: record.of(name, transport, losses=losses) for name, transport in remote.items()}
            self.engine = Engine(here | recorded, record.new_session, self.events)
        self.engine.job = Declared(self.purpose, self._run)

    def __getstate__(self) -> dict[str, Any]:
        raise NotPickledError("a federation is open connections, and cannot be pickled: open it again")

    def _silent(self, party: str, message: str) -> None:
        self.events.emit("warning", "party.silent", message, party=party)

    def _lost_or_back(self, party: str, error: LostError | None) -> None:
        if error is None:
            self.events.emit("info", "party.back", f"party {party!r} is back", party=party)
        else:
            self.events.emit(
                "warning",
                "party.lost",
                f"{error}; a fit continues without it if its answers can be replaced",
                party=party,
            )

    @property
    def _stand_in(self) -> StandIn | None:
        return self.on_party_lost if self.on_party_lost == "cache" or self.on_party_lost == "zeros" else None

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        purpose: str = "",
        record: Record | None = None,
        callbacks: Iterable[Reader] = (),
        verbose: bool | None = None,
    ) -> Federation:
        """The federation that a TOML file describes; relative paths in it start at the file's folder.

        A ``purpose`` replaces that of the file.
        """
        file = Path(path)
        settings, folder = read_settings(file, "federation file", FederationFile), file.parent
        arguments = msgspec.structs.asdict(settings) | {
            "parties": {name: _anchored(entry, folder) for name, entry in settings.parties.items()},
            "tls": settings.tls and settings.tls.anchored(folder),
            "key_file": settings.key_file and folder / settings.key_file,
            "purpose": purpose or settings.purpose,
        }
        try:
            return cls(**arguments, record=record, callbacks=callbacks, verbose=verbose)
        except ConfigError as error:
            raise ConfigError(f"federation file {str(file)!r}: {error}") from error

    @property
    def has_services(self) -> bool:
        """Whether some of the parties are services elsewhere."""
        return any(map(self.engine.is_service, self.engine.parties))

    def __repr__(self) -> str:
        return f"<Federation: {', '.join(self.engine.parties)}>"

    def _repr_html_(self) -> str:
        """What is known already: no party is asked to show it."""
        facts = {
            party: place if self._known is None else f"{place}; {self._known.tables_of(party) or 'no table'}"
            for party, place in self._places.items()
        }
        facts["precision"] = f"{self.wire} for numbers of rows on their way (wire)"
        facts["moved so far"] = readable(self.engine.traffic.bytes)
        note = "" if self._known is not None else "; fed.catalog() lists their tables"
        return card(f"Federation of {len(facts) - 2} {'party' if len(facts) == 3 else 'parties'}{note}", facts)

    def catalog(self) -> Catalog:
        """Vertical tables, shards, columns, types and row counts, asked anew.

        A party that refuses, or cannot answer, is left out and warned of; ``refusals`` of the catalog says why. Raises
        CatalogError if shards of a table do not agree, and the error of the first party if none answers.
        """
        found = self._describe()[0]
        tables = found.tables()
        for party in self.engine.parties:
            if party not in found.parties and party not in found.refusals:
                message = (
                    f"party {party!r} publishes no table: look whether its URL leads to the right file, folder or "
                    "database; a service publishes what its party file names for this caller"
                )
                self.events.emit("warning", "catalog.empty", message, party=party)
        self._warn_of_parts(tables)
        return found

    def _warn_of_parts(self, tables: Iterable[VerticalTable]) -> None:
        """Warn of tables in shards of which one aggregates."""
        for table in tables:
            if table.partly_aggregated is not None:
                self.events.emit("warning", "catalog.partly_aggregated", table.partly_aggregated, table=table.name)

    def _describe(self) -> tuple[Catalog, Opening]:
        """What all parties publish, and what to open one relation with; those that refuse are warned of."""
        parties = self.engine.parties
        outcomes = self.engine.trip([(party, Request("describe")) for party in parties])
        named, refusals = {}, dict[str, TablePuppetError]()  # by the federation's names
        for party, outcome in zip(parties, outcomes, strict=True):
            if isinstance(outcome, TablePuppetError) and interrupts.received() is None:
                refusals[party] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                named[party] = outcome[0]
        if not named:
            raise next(iter(refusals.values()))
        for party, error in refusals.items():
            self.events.emit("warning", "catalog.refused", f"party {party!r} is left out: {error}", party=party)
        marks = {reply["key"]: party for party, reply in named.items()}
        if len(marks) > 1:
            first, second, *_ = marks.values()
            raise ConfigError(
                f"parties {first!r} and {second!r} blind under different keys, so nothing would join; give all parties "
                "the same blinding key file"
            )
        nonces = {party: reply["nonce"] for party, reply in named.items() if reply.get("nonce")}
        shards = (replace(shard, party=party) for party, reply in named.items() for shard in reply["tables"])
        self._known = Catalog(shards, refusals)
        return self._known, Opening(nonces, next(iter(marks)))

    @names_checked
    def sql(
        self,
        text: str,
        label: str | None = None,
        *,
        categorical: Sequence[str] = (),
        drop: Sequence[str] = (),
        max_categories: int = 256,
        prep: Pipeline | None = None,
        params: Parameters | None = None,
        learner: Learner | Search | Literal["matrix"] | None = None,
        privacy: Privacy | None = None,
    ) -> Relation:
        """The relation that a union of conjunctive queries describes; parties read what it needs.

        ``label`` names the column to learn; ``categorical`` treats columns of numbers as categories; ``drop`` takes
        columns out; text with more than ``max_categories`` distinct values is no feature. ``prep`` is the pipeline
        that makes features of columns: by default missing numbers get their mean, numbers are standardised, and text
        becomes one column per category. ``params`` are the values of ``$name`` in the SQL. Some parties let their
        operators approve a job before they read: then ``learner`` says what the relation is for, a learner, a search or
        "matrix", by default statistics only, and ``privacy`` which noise statistics will have; no more is answered.

        Raises QueryError, underlined, for what is no union of conjunctive queries over the catalog; ApprovalError while
        an operator has not approved the job.
        """
        planned = self.plan(
            text, label, categorical=categorical, drop=drop, max_categories=max_categories, prep=prep, params=params
        )
        return self.open(planned, learner, privacy)

    def plan(
        self,
        text: str,
        label: str | None = None,
        *,
        categorical: Sequence[str] = (),
        drop: Sequence[str] = (),
        max_categories: int = 256,
        prep: Pipeline | None = None,
        params: Parameters | None = None,
        where_selected: bool = False,
    ) -> Planned:
        """What `sql` would let parties read: they are asked what they publish, and nothing else.

        With ``where_selected``, label, ``categorical``, ``drop`` and ``params`` count where the query has them.
        """
        if not isinstance(max_categories, Integral) or max_categories < 1:
            raise ConfigError(f"max_categories must be a whole number of at least 1, not {max_categories!r}")
        if not isinstance(text, str) or not isinstance(label, str | None):
            raise QueryError("sql takes the query as text, and the label as the name of a selected column")
        if isinstance(categorical, str) or isinstance(drop, str):
            raise QueryError("categorical and drop take lists of column names, such as drop=['a']")
        if not isinstance(params, Mapping | None):
            raise QueryError("params is a dict of values by name, such as params={'since': date(2024, 1, 1)}")
        catalog, opening = self._describe()
        query = parse(text, catalog, label, categorical, drop, params=params, where_selected=where_selected)
        planned, pipeline = plan(query, catalog), DEFAULT if prep is None else prep
        if not isinstance(pipeline, Pipeline):
            raise QueryError(f"prep is a pipeline, such as tp.prep.Pipeline([...]), not {type(prep).__name__}")
        if prep is not None:  # so that what does not fit is refused before a party reads
            planned = plan(selecting(pipeline, planned, max_categories), catalog)
            foresee(pipeline, planned, max_categories)
        self._warn_of_parts({table.name: table for table in planned.tables.values()}.values())
        return Planned(planned, max_categories, [opening], pipeline)

    def open(
        self,
        planned: Planned,
        learner: Learner | Search | Literal["matrix"] | None = None,
        privacy: Privacy | None = None,
    ) -> Relation:
        """The relation of a plan; parties read their tables now. ``learner`` and ``privacy``: see `sql`."""
        when_lost = WhenLost(self._stand_in, self.timeout, self._lost_or_back)
        settings = FederationSettings(
            self.wire, self._memory_limit, planned.max_categories, when_lost, planned.prep,
            *self._declared(planned, learner, privacy),
        )  # fmt: skip
        for left in reversed(range(OPENINGS)):
            opening = planned.openings.pop() if planned.openings else self._describe()[1]
            with suppress(StaleNonceError) if left else nullcontext():  # a party was restarted since its catalog
                return Relation(Session(planned.plan, self.engine, self.events, settings, opening))
        raise AssertionError("the last try returns or raises")

    def _declared(
        self, planned: Planned, learner: Learner | Search | Literal["matrix"] | None, privacy: Privacy | None
    ) -> tuple[Declared, dict[str, float]]:
        """What parties are told that a relation is for, and the most that it spends on a table, by party."""
        plan, used = planned.plan, getattr(learner, "learner", learner)  # that of a search
        name = used if isinstance(used, str) else type(used).__name__
        if learner not in (None, "matrix") and not hasattr(learner, "planned_epsilons"):
            raise ConfigError('learner is a learner, such as tp.LogisticRegression(), or "matrix"')
        asked = privacy if learner is None or isinstance(learner, str) else learner.privacy
        job = Declared(self.purpose, self._run, "" if learner is None else name)
        if asked is None or not any(s.require_approval for table in plan.tables.values() for s in table.shards):
            return job, {}
        if learner is None or isinstance(learner, str):
            most = dict.fromkeys(plan.parties, rounded_up(ONE_STATISTIC * (asked.feature_epsilon or 0.0)))
        else:
            most = learner.planned_epsilons(plan, planned.max_categories, planned.prep)
        return msgspec.structs.replace(job, delta=asked.delta), {p: e for p, e in most.items() if e > 0}

    @property
    def traffic(self) -> list[dict[str, Any]]:
        """Bytes and messages by party, direction and release, since construction; a notebook shows parties beside each
        other.
        """
        return TrafficRecords(self.engine.traffic.to_list())


def _check_settings(
    parties: Mapping[str, Any], wire: str, timeout: float, on_party_lost: str, memory_limit: int | None
) -> None:
    example = "name and database URL, such as {'shop': 'duckdb:///shop.db'}"
    if not isinstance(parties, Mapping):
        raise ConfigError(f"the parties of a federation are a dict of {example}, not {type(parties).__name__}")
    if not parties:
        raise ConfigError(f"a federation needs at least one party: {example}")
    if len({str(name).lower() for name in parties}) < len(parties):
        raise ConfigError("two parties have the same name except for case, which SQL ignores; rename one")
    for name, entry in parties.items():
        if not isinstance(entry, str | PartyEntry | Mapping):
            raise ConfigError(
                f"party {name!r}: the database must be a URL as text, such as 'duckdb:///shop.db' or "
                "'parquet:///folder', or a dict of tables by name, such as {'orders': frame}, not "
                f"{type(entry).__name__}"
            )
        if (
            isinstance(entry, PartyEntry)
            and entry.is_remote
            and (entry.bounds or entry.categories or entry.predictions)
        ):
            raise ConfigError(
                f"party {name!r}: a service has bounds, categories and predictions in its own party file, not here"
            )
        if not isinstance(name, str) or not name.replace("_", "").replace("-", "").isalnum():
            raise ConfigError(f"party name {name!r}: use letters, digits, _ and -, so that SQL can say {name}.table")
    for setting, value, kind in (("wire", wire, Wire), ("on_party_lost", on_party_lost, OnPartyLost)):
        if value not in get_args(kind):
            raise ConfigError(f"{setting}={value!r} must be one of {', '.join(get_args(kind))}")
    if not isinstance(timeout, Real) or not timeout > 0:
        raise ConfigError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    if memory_limit is not None and (not isinstance(memory_limit, Integral) or memory_limit < 0):
        raise ConfigError(f"memory_limit must be a whole number of bytes, not {memory_limit!r}")


def _check_once(entries: Mapping[str, PartyEntry]) -> None:
    """ConfigError if two entries are one service, by its address or by the name of its certificate."""
    known: dict[tuple[str, str], str] = {}
    for name, entry in entries.items():
        if not entry.is_remote:
            if entry.identity:
                raise ConfigError(f"party {name!r}: identity is the name in the certificate of a service elsewhere")
            continue
        address = entry.url.partition("://")[2].rstrip("/").lower()
        host, _, port = address.rpartition(":")
        marks = [("address", f"{'127.0.0.1' if host == 'localhost' else host}:{port}")]
        if entry.url.startswith("grpc+tls"):
            marks.append(("certificate", (entry.identity or name).lower()))
        for mark in marks:
            if mark in known:
                same = "have the same address" if mark[0] == "address" else f"expect the certificate of {mark[1]!r}"
                raise ConfigError(
                    f"parties {known[mark]!r} and {name!r} are one party given twice: both {same}; remove one of them"
                )
            known[mark] = name


def _blinding_key(entries: Mapping[str, PartyEntry], key_file: str | Path | None) -> bytes:
    """The key under which databases in this process blind: the parties' own where there are such, else a fresh one."""
    if key_file is not None:
        return read_blinding_key(Path(key_file))
    here = [name for name, entry in entries.items() if not entry.is_remote]
    if here and len(here) < len(entries):
        raise ConfigError(
            f"party {here[0]!r} is opened in this process and joins with services elsewhere: give key_file, the "
            "blinding key that all parties share, or let it be a service too"
        )
    return secrets.token_bytes(32)


def _entry(given: str | PartyEntry | Mapping[str, Any]) -> PartyEntry:
    """A party that is given by its URL or its tables only has no settings."""
    if isinstance(given, PartyEntry):
        return given
    return PartyEntry(given if isinstance(given, str) else "")


def _open_party(
    name: str, entry: PartyEntry, tables: InMemory | None, blinding_key: bytes, trial: TrialAuthority
) -> Party:
    policy = Policy.from_names(entry.levels, name, entry.bounds, entry.categories)
    database = tables or open_database(name, entry.url, "grpc+tls://host:port")
    for table, target in entry.predictions.items():
        if target.problem:
            raise ConfigError(f"party {name!r}, predictions.{table}.{target.problem}")
    deliveries = Deliveries(name, entry.predictions, database, url=entry.url)
    identity = partial(trial.identity, name)
    return Party(name, database, blinding_key, policy, identity=identity, deliveries=deliveries)


def _anchored(entry: str | PartyEntry, folder: Path) -> PartyEntry:
    """The entry with a relative file path made absolute from the federation file's folder."""
    entry = PartyEntry(entry) if isinstance(entry, str) else entry
    if entry.is_remote:
        return entry
    places = {table: place.anchored(folder) for table, place in entry.predictions.items()}
    return msgspec.structs.replace(entry, url=anchored(entry.url, folder), predictions=places)
