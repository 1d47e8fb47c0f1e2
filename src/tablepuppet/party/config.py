"""The party file: everything that the operator of one party decides, in TOML.

Comes in: a path. Goes out: settings that were checked, with paths made absolute, and the `Policy` they spell. A
column that the file does not name is hidden, a caller that it does not name is refused. Errors name the file and
the field, and repeat no password.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import Meta

from tablepuppet.errors import ConfigError, QueryError
from tablepuppet.party.databases.urls import anchored
from tablepuppet.party.delivery import Target
from tablepuppet.party.key_rule import named_key
from tablepuppet.party.ledger import Budget
from tablepuppet.party.policy import ColumnRule, Embeddings, Level, Policy, TableRule, Use, check_values
from tablepuppet.party.settings_file import as_settings, read_toml
from tablepuppet.privacy.secure_sum import FEWEST
from tablepuppet.sql.expression import columns_of

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME = re.compile(r"[A-Za-z0-9_-]+")

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]


class ColumnEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A column in full; ``"feature"`` and ``["key", "filter"]`` are short for its uses."""

    uses: Annotated[list[str], Meta(description="what it may be used for")]
    level: Annotated[str, Meta(description="how much of it may be released")] = "aggregate"
    bounds: Annotated[
        tuple[float, float] | None, Meta(description="least and largest number, for noise; others are clipped to them")
    ] = None
    categories: Annotated[
        list[str | int | float | bool] | None, Meta(description="all values that are allowed, for noise")
    ] = None


class PredictionsEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Where predictions about a table's rows are written, if callers deliver some."""

    keys: Annotated[list[str], Meta(description="columns to write beside predictions; they need not be published")]
    file: Annotated[str | None, Meta(description="a .parquet or .csv file, replaced by every delivery")] = None
    table: Annotated[
        str | None, Meta(description="or a table of the database, emptied and filled by every delivery")
    ] = None

    def target(self, url: str) -> Target:
        """The place, in the database at a URL or as a file."""
        return Target(tuple(self.keys), None if self.file is None else Path(self.file), self.table, url)

    def anchored(self, folder: Path) -> PredictionsEntry:
        """The same with a path that starts at a folder."""
        file = None if self.file is None else str(folder / Path(self.file).expanduser())
        return msgspec.structs.replace(self, file=file)


class EmbeddingsEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be released of a table's rows as embeddings."""

    max_width: Annotated[Count, Meta(description="numbers per row, at most")]
    max_epochs: Annotated[Count, Meta(description="embeddings of one row in a session, at most")]


class TableEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A published table."""

    columns: Annotated[
        dict[str, str | list[str] | ColumnEntry],
        Meta(description="what each column may be used for, and its level; others are hidden"),
    ]
    sql: Annotated[
        str | None, Meta(description="a SELECT over the database to publish; if absent, the table of this name")
    ] = None
    allow: Annotated[
        list[str] | None, Meta(description="callers that may use this table; if absent, all that the party allows")
    ] = None
    min_rows: Annotated[Count, Meta(description="the fewest rows that may take part in a relation; none may")] = 10
    min_group: Annotated[
        Count, Meta(description="rows that a category, or the values of a column, must have to be released")
    ] = 5
    secure_sum: Annotated[
        bool, Meta(description="sums over its rows leave only within the sum of three or more peers' shards")
    ] = False
    matrix: Annotated[
        bool,
        Meta(
            description="callers may multiply the table with vectors of their choice, by which they can have its cells"
        ),
    ] = False
    embeddings: Annotated[
        EmbeddingsEntry | None,
        Meta(
            description="embeddings of its rows may be released, for networks across parties: `max_width` numbers per "
            "row, that of one row at most `max_epochs` times in a session; absent: none"
        ),
    ] = None
    keys: Annotated[
        tuple[str, ...], Meta(description="expressions that may be joined by, beside columns whose use is key")
    ] = ()
    budget: Annotated[Budget, Meta(description="how much privacy may be spent on the table")] = Budget()
    deliver: Annotated[
        list[str] | None,
        Meta(description="parties that may get predictions made with its features; if absent, those of the party"),
    ] = None
    cross_statistics: Annotated[
        bool, Meta(description="its columns may be sent, one number per row, for statistics across tables")
    ] = False
    label_means: Annotated[
        bool,
        Meta(
            description="means of its labels may reach other parties, as the numbers that stand for categories there "
            "(`TargetEncode`, `WOE`)"
        ),
    ] = False
    predictions: Annotated[
        PredictionsEntry | None, Meta(description="where predictions about its rows are written; if absent, nowhere")
    ] = None


class Tls(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Files of mutual TLS."""

    cert: Annotated[str, Meta(description="certificate of this party; its first DNS name is the party's name")]
    key: Annotated[str, Meta(description="private key of that certificate")]
    ca: Annotated[str, Meta(description="certificates of the authorities of callers")]


class Limits(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How much callers may take."""

    sessions: Annotated[Positive, Meta(description="sessions open at once; a further one must try again")] = 32
    sessions_per_caller: Annotated[Positive, Meta(description="sessions that one caller has open at once")] = 16
    idle: Annotated[Seconds, Meta(description="seconds after which a session that is not used ends")] = 3600.0
    connections: Annotated[
        Positive, Meta(description="connections open at once; the oldest that never called are ended")
    ] = 512
    connections_per_caller: Annotated[Positive, Meta(description="connections that one caller has open at once")] = 32
    connect_seconds: Annotated[
        Seconds, Meta(description="seconds after which a connection that did not call is ended")
    ] = 20.0
    calls_per_caller: Annotated[
        Positive, Meta(description="requests of one caller that are answered at once; a further one must try again")
    ] = 32
    work_per_caller: Annotated[
        Positive, Meta(description="requests of one caller that are computed at once; the others wait")
    ] = 2
    message_bytes: Annotated[
        Positive, Meta(description="bytes of one request, and of all that one caller sends at once")
    ] = 512 << 20
    reply_bytes: Annotated[Positive, Meta(description="bytes of one reply")] = 512 << 20
    request_seconds: Annotated[
        Seconds, Meta(description="seconds that one request may take, reading and evaluating included")
    ] = 300.0
    releases_per_request: Annotated[
        Positive, Meta(description="releases with noise, each charged to the ledger, that one request may ask for")
    ] = 2000
    ledger_releases: Annotated[
        Positive, Meta(description="different noisy labels that the ledger knows by name, per caller and table")
    ] = 1000
    expression_bytes: Annotated[
        Positive, Meta(description="bytes of memory in which one table is read and its expressions are evaluated")
    ] = 1 << 30
    memory_bytes: Annotated[
        Positive, Meta(description="bytes of memory that one caller's tables, encoded rows and models take")
    ] = 1 << 30
    kept_bytes: Annotated[Positive, Meta(description="bytes of saved models in `state_dir`, per caller")] = 1 << 30
    journal_bytes: Annotated[Positive, Meta(description="bytes of stored requests in `state_dir`, per caller")] = (
        4 << 30
    )
    snapshot_ttl: Annotated[
        Seconds, Meta(description="seconds for which a caller's next run may reuse what was read; 0: read again")
    ] = 0.0
    resume_window: Annotated[Seconds, Meta(description="seconds for which the state of an interrupted run is kept")] = (
        86400.0
    )
    max_prediction_rounds: Annotated[
        Positive,
        Meta(description="replies with predictions, gradient sums or parameters, per session and table"),
    ] = 1000
    max_matrix_columns: Annotated[
        Positive,
        Meta(description="vectors of a caller's choice that a table is multiplied with, per session and table"),
    ] = 10_000
    max_filters: Annotated[Count, Meta(description="distinct filters, per caller and table")] = 20
    max_expressions: Annotated[
        Count, Meta(description="distinct selected expressions other than plain columns, per caller and table")
    ] = 100
    max_splits: Annotated[
        Count, Meta(description="distinct splits per caller and table, until its number of rows changes")
    ] = 20
    max_refinements: Annotated[
        Count,
        Meta(description="refined histograms of columns that are not public, over distinct rows, per caller and table"),
    ] = 1000
    max_failures: Annotated[
        Positive, Meta(description="distinct queries whose expressions fail on rows, per caller and table")
    ] = 10
    max_models: Annotated[
        Count, Meta(description="saved models of which the party keeps its part in `state_dir`, per caller")
    ] = 100
    fits: Annotated[Positive, Meta(description="models that one caller has in memory at once")] = 1000
    views: Annotated[
        Positive, Meta(description="relations, and encodings of their rows, in memory per session and table")
    ] = 1000


class PartyFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What a party file may say; paths in it start at its folder."""

    name: Annotated[str, Meta(description="the party's name, as in SQL and in its certificate")]
    listen: Annotated[str, Meta(description="host and port to listen at")]
    database: Annotated[str, Meta(description="URL of the database; `${NAME}` is taken from the environment")]
    blinding_key: Annotated[str, Meta(description="file of the key that all parties share")]
    allow: Annotated[list[str], Meta(description="callers: the first DNS names of their certificates")]
    tables: Annotated[dict[str, TableEntry], Meta(description="what is published, by name")]
    tls: Annotated[Tls | None, Meta(description="files of mutual TLS")] = None
    insecure: Annotated[bool, Meta(description="listen without TLS beyond this machine")] = False
    audit_log: Annotated[str, Meta(description="file that every request is written to")] = "audit.jsonl"
    state_dir: Annotated[
        str | None, Meta(description="folder for what survives a restart; if absent, nothing does")
    ] = None
    peers: Annotated[
        tuple[str, ...],
        Meta(description="parties whose shards may be summed with its own: the first DNS names of their certificates"),
    ] = ()
    deliver: Annotated[
        tuple[str, ...], Meta(description="parties that may get predictions made with features of its tables")
    ] = ()
    metrics: Annotated[
        int | str | None,
        Meta(description="port, or host and port, at which Prometheus reads metrics; a port alone is on this machine"),
    ] = None
    limits: Annotated[Limits, Meta(description="how much callers may take")] = Limits()

    @classmethod
    def load(cls, path: str | Path, environment: Mapping[str, str] = os.environ) -> PartyFile:
        """The settings of a file, checked as far as that is possible without opening anything else."""
        file = Path(path)
        raw = read_toml(file, "party file")
        try:
            found = _decoded(raw)
            _check(found)
            return _absolute(found, file.absolute().parent, environment)
        except (msgspec.ValidationError, ConfigError) as error:
            raise ConfigError(f"party file {str(file)!r}: {error}") from error

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen at."""
        return _host_and_port(self.listen)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port at which metrics are read."""
        if self.metrics is None:
            return None
        return ("127.0.0.1", self.metrics) if isinstance(self.metrics, int) else _host_and_port(self.metrics)

    def policy(self) -> Policy:
        """The policy that the file spells."""
        return Policy(
            {name.lower(): _table_rule(name, table, self.deliver) for name, table in self.tables.items()},
            others=None,
            allow=frozenset(self.allow),
            max_filters=self.limits.max_filters,
            max_expressions=self.limits.max_expressions,
            max_prediction_rounds=self.limits.max_prediction_rounds,
            max_matrix_columns=self.limits.max_matrix_columns,
            max_splits=self.limits.max_splits,
            max_refinements=self.limits.max_refinements,
            max_failures=self.limits.max_failures,
            max_models=self.limits.max_models,
            fits=self.limits.fits,
            views=self.limits.views,
            memory_bytes=self.limits.memory_bytes,
            kept_bytes=self.limits.kept_bytes,
            reply_bytes=self.limits.reply_bytes,
            expression_bytes=self.limits.expression_bytes,
            request_seconds=self.limits.request_seconds,
            work_per_caller=self.limits.work_per_caller,
            releases_per_request=self.limits.releases_per_request,
            ledger_releases=self.limits.ledger_releases,
            peers=frozenset(self.peers),
        )

    def targets(self) -> dict[str, Target]:
        """Where predictions are written, by table."""
        named = {name: table.predictions for name, table in self.tables.items()}
        return {name: entry.target(self.database) for name, entry in named.items() if entry is not None}


def _decoded(raw: dict[str, Any]) -> PartyFile:
    """What the file says as settings; tables one by one, so that an error can name its table."""
    tables: Any = raw.get("tables", {})
    if isinstance(tables, dict):
        raw["tables"] = {name: _named(f"tables.{name}", table) for name, table in tables.items()}
    return as_settings(raw, PartyFile)


def _named(where: str, table: Any) -> TableEntry:
    try:
        return as_settings(table, TableEntry)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error


def _check(settings: PartyFile) -> None:
    if not _NAME.fullmatch(settings.name):
        raise ConfigError(f"name: {settings.name!r} must be of letters, digits, _ and -, so that SQL can say it")
    if not _is_address(settings.listen):
        raise ConfigError(f"listen: {settings.listen!r} must be host:port, such as 0.0.0.0:8815 or [::1]:8815")
    _check_metrics(settings)
    if settings.tls is None and not settings.insecure and not is_loopback(settings.address[0]):
        raise ConfigError(
            "tls: without certificates a party listens on this machine only; name them under [tls], listen at "
            "127.0.0.1, or say insecure = true if the network is safe by other means"
        )
    if not settings.tables:
        raise ConfigError("tables: none is published; name at least one as [tables.NAME]")
    if len({name.lower() for name in settings.tables}) < len(settings.tables):
        raise ConfigError("tables: two have the same name except for case, which SQL ignores; rename one")
    for name, table in settings.tables.items():
        strange = sorted(set(table.allow or ()) - set(settings.allow))
        if strange:
            raise ConfigError(f"tables.{name}.allow: {strange[0]!r} is not in the party's own allow list")
        _table_rule(name, table, settings.deliver)
        if table.predictions is not None and (problem := table.predictions.target("").problem):
            raise ConfigError(f"tables.{name}.predictions.{problem}")
        _check_secure_sum(name, table, settings)
        _check_budget(name, table.budget, settings.state_dir)


def _is_address(text: str) -> bool:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:]+\]|[^\s:\[\]]+):(\d{1,5})", text)
    return found is not None and int(found[2]) < 1 << 16


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _check_metrics(settings: PartyFile) -> None:
    given = settings.metrics
    if given is None:
        return
    if not (_is_address(given) if isinstance(given, str) else 0 <= given < 1 << 16):
        raise ConfigError(f"metrics: {given!r} must be a port or host:port, such as 9464 or 127.0.0.1:9464")
    assert settings.metrics_address is not None, "it is given"
    if settings.metrics_address[1] == settings.address[1] != 0:
        raise ConfigError("metrics: they need a port of their own, not the one of listen")


def _check_secure_sum(name: str, table: TableEntry, settings: PartyFile) -> None:
    if table.secure_sum and (settings.tls is None or len(set(settings.peers) - {settings.name}) < FEWEST - 1):
        raise ConfigError(
            f"tables.{name}.secure_sum: name [tls] files, and {FEWEST - 1} or more other parties under peers"
        )


def _check_budget(name: str, budget: Budget, state_dir: str | None) -> None:
    binds = budget.require_dp or budget.epsilon is not None or budget.epsilon_per_caller is not None
    if binds and state_dir is None:
        raise ConfigError(f"tables.{name}.budget: name a state_dir too: what was spent must outlive a restart")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host name or address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _table_rule(name: str, table: TableEntry, deliver: tuple[str, ...]) -> TableRule:
    if not table.columns:
        raise ConfigError(f"tables.{name}.columns: name at least one column")
    if len({column.lower() for column in table.columns}) < len(table.columns):
        raise ConfigError(f"tables.{name}.columns: two have the same name except for case; rename one in sql")
    columns = {c.lower(): _column_rule(f"tables.{name}.columns.{c}", entry) for c, entry in table.columns.items()}
    return TableRule(
        columns,
        others=None,
        allow=None if table.allow is None else frozenset(table.allow),
        min_rows=table.min_rows,
        min_group=table.min_group,
        secure_sum=table.secure_sum,
        matrix=table.matrix,
        keys=frozenset(_key(f"tables.{name}.keys", text, columns) for text in table.keys),
        budget=table.budget,
        deliver=frozenset(deliver if table.deliver is None else table.deliver),
        cross_statistics=table.cross_statistics,
        label_means=table.label_means,
        embeddings=None
        if table.embeddings is None
        else Embeddings(table.embeddings.max_width, table.embeddings.max_epochs),
    )


def _key(where: str, text: str, columns: Mapping[str, ColumnRule]) -> str:
    """An expression to join by, in the spelling in which those of queries are compared with it."""
    try:
        read = columns_of(text)
    except QueryError as error:
        raise ConfigError(f"{where}: {text!r}: {error}") from error
    wrong = [name for name in read if name.lower() not in columns or not columns[name.lower()].uses & Use.KEY]
    if wrong or not read:
        raise ConfigError(f"{where}: {text!r} must read columns of the table that have the use key, and no other")
    return named_key(text)


def _column_rule(where: str, given: str | list[str] | ColumnEntry) -> ColumnRule:
    entry = given if isinstance(given, ColumnEntry) else ColumnEntry([given] if isinstance(given, str) else given)
    levels = {level.name.lower(): level for level in Level}
    if entry.level not in levels:
        raise ConfigError(f"{where}.level: {entry.level!r} must be one of {', '.join(levels)}")
    known = {(use.name or "").lower(): use for use in Use}
    uses = Use(0)
    for use in entry.uses:
        if use not in known:
            raise ConfigError(f"{where}.uses: {use!r} must be one of {', '.join(known)}")
        uses |= known[use]
    if not uses:
        raise ConfigError(f"{where}.uses: name at least one of {', '.join(known)}, or leave the column out")
    categories = None if entry.categories is None else tuple(entry.categories)
    check_values(where, entry.bounds, categories)
    return ColumnRule(uses, levels[entry.level], entry.bounds, categories)


def _absolute(settings: PartyFile, folder: Path, environment: Mapping[str, str]) -> PartyFile:
    """The settings with the database's variables filled in and every path from the file's folder."""

    def path(text: str) -> str:
        return str(folder / Path(text).expanduser())

    tls = settings.tls and Tls(path(settings.tls.cert), path(settings.tls.key), path(settings.tls.ca))
    return msgspec.structs.replace(
        settings,
        database=anchored(_filled(settings.database, environment), folder),
        blinding_key=path(settings.blinding_key),
        audit_log=path(settings.audit_log),
        state_dir=settings.state_dir and path(settings.state_dir),
        tls=tls,
        tables={name: _anchored(table, folder) for name, table in settings.tables.items()},
    )


def _anchored(table: TableEntry, folder: Path) -> TableEntry:
    place = table.predictions and table.predictions.anchored(folder)
    return msgspec.structs.replace(table, predictions=place)


def _filled(url: str, environment: Mapping[str, str]) -> str:
    """The URL with ``${NAME}`` replaced: a part of it is percent-encoded, a whole URL is taken as it is.

    >>> _filled("postgresql://me:${PASSWORD}@host/db", {"PASSWORD": "p@ss/word"})
    'postgresql://me:p%40ss%2Fword@host/db'
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise ConfigError(f"database: the environment variable {match[1]} is not set")
        found = environment[match[1]]
        return found if match[0] == url else quote(found, safe="")

    return _VARIABLE.sub(value, url)
