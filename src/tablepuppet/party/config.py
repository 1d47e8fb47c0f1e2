"""The party file: everything that the operator of one party decides, in TOML.

Input: a path. Output: settings that were checked, with paths made absolute, and the `Policy` they spell. A
column that the file does not name is hidden, a caller that it does not name is refused. Errors name the file and
the field, and repeat no password.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from tablepuppet.errors import ConfigError
from tablepuppet.party.databases.urls import anchored
from tablepuppet.party.delivery import PredictionsEntry
from tablepuppet.party.policy import CallerLimits, Policy, Positive, Seconds
from tablepuppet.party.settings_file import as_settings, known, listed, mistakes, read_toml
from tablepuppet.party.table_entry import ColumnEntry, TableEntry
from tablepuppet.privacy.secure_sum import FEWEST

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME = re.compile(r"[A-Za-z0-9_-]+")


class TlsPaths(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Files of mutual TLS."""

    cert: Annotated[str, Meta(description="certificate of this party; its first DNS name is the party's name")]
    key: Annotated[str, Meta(description="private key of that certificate")]
    ca: Annotated[str, Meta(description="certificates of the authorities of callers")]


class Limits(CallerLimits, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How much callers may take."""

    sessions: Annotated[Positive, Meta(description="sessions open at once; a further one must try again")] = 32
    sessions_per_caller: Annotated[Positive, Meta(description="sessions that one caller has open at once")] = 16
    idle: Annotated[Seconds, Meta(description="seconds after which a session that is not used ends")] = 3600.0
    connections: Annotated[
        Positive, Meta(description="connections open at once; the oldest that never called are ended")
    ] = 512
    connections_per_caller: Annotated[Positive, Meta(description="connections that one caller has open at once")] = 32
    database_connections: Annotated[
        Positive, Meta(description="connections to a database server open at once; a request waits for a free one")
    ] = 4
    connect_seconds: Annotated[
        Seconds, Meta(description="seconds after which a connection that did not call is ended")
    ] = 20.0
    calls_per_caller: Annotated[
        Positive, Meta(description="requests of one caller that are answered at once; a further one must try again")
    ] = 32
    message_bytes: Annotated[
        Positive, Meta(description="bytes of one request, and of all that one caller sends at once")
    ] = 512 << 20
    journal_bytes: Annotated[Positive, Meta(description="bytes of stored requests in `state_dir`, per caller")] = (
        4 << 30
    )
    snapshot_ttl: Annotated[
        Seconds, Meta(description="seconds for which a caller's next run may reuse what was read; 0: read again")
    ] = 0.0
    resume_window: Annotated[Seconds, Meta(description="seconds for which the state of an interrupted run is kept")] = (
        86400.0
    )


class PartyFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What a party file may say; paths in it start at its folder."""

    name: Annotated[str, Meta(description="the party's name, as in SQL and in its certificate")]
    listen: Annotated[str, Meta(description="host and port to listen at")]
    database: Annotated[str, Meta(description="URL of the database; `${NAME}` is taken from the environment")]
    blinding_key: Annotated[str, Meta(description="file of the key that all parties share")]
    allow: Annotated[list[str], Meta(description="callers: the first DNS names of their certificates")]
    tables: Annotated[dict[str, TableEntry], Meta(description="what is published, by name")]
    tls: Annotated[TlsPaths | None, Meta(description="files of mutual TLS")] = None
    insecure: Annotated[bool, Meta(description="listen without TLS beyond this machine")] = False
    audit_log: Annotated[str, Meta(description="file that every request is written to")] = "audit.jsonl"
    audit_text: Annotated[
        bool, Meta(description="lines of `open` in the audit log have the SQL that was asked for, literals included")
    ] = False
    syslog: Annotated[
        str | None,
        Meta(description="where lines of the audit log go too: the path of a socket, such as /dev/log, or host:port"),
    ] = None
    require_purpose: Annotated[bool, Meta(description="answer only callers that say what a relation is for")] = False
    require_approval: Annotated[
        bool, Meta(description="read tables only for jobs that the operator has approved (`tablepuppet party approve`)")
    ] = False
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
    def load(cls, path: str | Path, environment: Mapping[str, str] | None = os.environ) -> PartyFile:
        """The settings of a file, checked as far as that is possible without opening anything else.

        Without an ``environment``, for who does not open the database: its URL is as it stands.
        """
        file = Path(path)
        raw = read_toml(file, "party file")
        try:
            found = _decoded(raw)
            problems = list(_problems(found))
            if problems:
                raise ConfigError(listed(problems))
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
            {
                name.lower(): table.rule(name, self.deliver, approval=self.require_approval)
                for name, table in self.tables.items()
            },
            others=None,
            allow=frozenset(self.allow),
            limits=self.limits,
            peers=frozenset(self.peers),
            require_purpose=self.require_purpose,
        )

    @property
    def policy_hash(self) -> str:
        """A short name of all its rules together: the same for the same rules."""
        named = [sorted(self.allow), self.tables, self.peers, self.deliver, self.require_purpose, self.require_approval]
        rules = msgspec.json.encode(named, order="sorted")
        return hashlib.sha256(rules).hexdigest()[:12]

    def targets(self) -> dict[str, PredictionsEntry]:
        """Where predictions are written, by table."""
        return {name: table.predictions for name, table in self.tables.items() if table.predictions is not None}


def _decoded(raw: dict[str, Any]) -> PartyFile:
    """What the file says as settings; ConfigError with all that is wrong, each with its place, tables one by one."""
    tables: Any = raw.setdefault("tables", {})
    by_name = tables if isinstance(tables, dict) else {}
    found = mistakes(raw | {"tables": {}} if by_name else raw, PartyFile)
    for name, table in by_name.items():
        found += [f"tables.{name}: {text}" for text in mistakes(table, TableEntry)]
    if found:
        found += [text for name, table in by_name.items() for text in _table_problems(name, table)]
        raise ConfigError(listed(found))
    return as_settings(raw, PartyFile)


def _table_problems(name: str, raw: Any) -> list[str]:
    """What is wrong with the words of a table, such as its uses, beside fields that are unknown."""
    try:
        return msgspec.convert(known(raw, TableEntry), TableEntry).problems(name)
    except msgspec.ValidationError:  # told as a mistake
        return []


def _problems(settings: PartyFile) -> Iterator[str]:
    """What contradicts itself, or cannot be meant."""
    if not _NAME.fullmatch(settings.name):
        yield f"name: {settings.name!r} must be of letters, digits, _ and -, so that SQL can say it"
    if not _is_address(settings.listen):
        yield f"listen: {settings.listen!r} must be host:port, such as 0.0.0.0:8815 or [::1]:8815"
    else:
        yield from _address_problems(settings)
    if settings.syslog is not None and not settings.syslog.startswith("/") and not _is_address(settings.syslog):
        yield f"syslog: {settings.syslog!r} must be the path of a socket, such as /dev/log, or host:port"
    if not settings.tables:
        yield "tables: none is published; name at least one as [tables.NAME]"
    if len({name.lower() for name in settings.tables}) < len(settings.tables):
        yield "tables: two have the same name except for case, which SQL ignores; rename one"
    for name, table in settings.tables.items():
        for stranger in sorted(set(table.allow or ()) - set(settings.allow)):
            yield f"tables.{name}.allow: {stranger!r} is not in the party's own allow list"
        yield from table.problems(name)
        if table.predictions is not None and (problem := table.predictions.problem):
            yield f"tables.{name}.predictions.{problem}"
        if table.secure_sum and (settings.tls is None or len(set(settings.peers) - {settings.name}) < FEWEST - 1):
            yield f"tables.{name}.secure_sum: name [tls] files, and {FEWEST - 1} or more other parties under peers"
        if settings.state_dir is None and (table.require_approval or settings.require_approval):
            yield f"tables.{name}.require_approval: name a state_dir too: approvals are kept there"
        if (table.budget.require_dp or table.budget.is_bounded) and settings.state_dir is None:
            yield f"tables.{name}.budget: name a state_dir too: what was spent must outlive a restart"


def _address_problems(settings: PartyFile) -> Iterator[str]:
    if settings.tls is None and not settings.insecure and not is_loopback(settings.address[0]):
        yield (
            "tls: without certificates a party listens on this machine only; name them under [tls], listen at "
            "127.0.0.1, or say insecure = true if the network is safe by other means"
        )
    given = settings.metrics
    if given is None:
        return
    if not (_is_address(given) if isinstance(given, str) else 0 <= given < 1 << 16):
        yield f"metrics: {given!r} must be a port or host:port, such as 9464 or 127.0.0.1:9464"
    elif settings.metrics_address is not None and settings.metrics_address[1] == settings.address[1] != 0:
        yield "metrics: they need a port of their own, not the one of listen"


def _is_address(text: str) -> bool:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:]+\]|[^\s:\[\]]+):(\d{1,5})", text)
    return found is not None and int(found[2]) < 1 << 16


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host name or address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _absolute(settings: PartyFile, folder: Path, environment: Mapping[str, str] | None) -> PartyFile:
    """The settings with the database's variables filled in and every path from the file's folder."""

    def path(text: str) -> str:
        return str(folder / Path(text).expanduser())

    tls = settings.tls and TlsPaths(path(settings.tls.cert), path(settings.tls.key), path(settings.tls.ca))
    return msgspec.structs.replace(
        settings,
        database=settings.database
        if environment is None
        else anchored(_filled(settings.database, environment), folder),
        blinding_key=path(settings.blinding_key),
        audit_log=path(settings.audit_log),
        state_dir=settings.state_dir and path(settings.state_dir),
        tls=tls,
        tables={name: table.anchored(folder) for name, table in settings.tables.items()},
    )


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


# What a party file says otherwise than the party that is being served: `tablepuppet party check --diff`. Input: two
# party files as plain values. Output: what was added, removed and changed, setting by setting. The URL of the database,
# which may hold a password, is compared by its digest and not shown.


class Change(msgspec.Struct, frozen=True):
    """A setting that is another in the file than in the party that is being served."""

    kind: Literal["added", "removed", "changed"]
    setting: str
    served: Any = None
    file: Any = None

    def __str__(self) -> str:
        if self.kind == "changed":
            return f"changed: {self.setting}: {_shown(self.served)} is served, the file says {_shown(self.file)}"
        value = self.file if self.kind == "added" else self.served
        where = "the file has it" if self.kind == "added" else "it is served"
        return f"{self.kind}: {self.setting}: {where}, {_shown(value)}"


def plain_settings(settings: PartyFile) -> dict[str, Any]:
    """A party file as plain values that its operator may see."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings))  # as it travels: no tuples
    for table in found["tables"].values():
        table["columns"] = {name: _in_full(entry) for name, entry in table["columns"].items()}
    return found | {"database": f"digest {hashlib.sha256(settings.database.encode()).hexdigest()[:12]}"}


def _in_full(entry: str | list[str] | dict[str, Any]) -> dict[str, Any]:
    """A column's rule however it was written, so that only what it means is compared."""
    given = entry if isinstance(entry, dict) else {"uses": entry}
    uses = [given["uses"]] if isinstance(given["uses"], str) else given["uses"]
    rule: dict[str, Any] = msgspec.to_builtins(ColumnEntry(uses))
    return rule | given | {"uses": uses}


def differences(served: dict[str, Any], file: dict[str, Any]) -> list[Change]:
    """What the file says otherwise."""
    return list(_between("", served, file))


def _between(path: str, served: dict[str, Any], file: dict[str, Any]) -> Iterator[Change]:
    for name in sorted({*served, *file}):
        where = f"{path}.{name}" if path else name
        if name not in served:
            yield Change("added", where, file=file[name])
        elif name not in file:
            yield Change("removed", where, served=served[name])
        elif isinstance(served[name], dict) and isinstance(file[name], dict):
            yield from _between(where, served[name], file[name])
        elif served[name] != file[name]:
            yield from _of_values(where, served[name], file[name])


def _of_values(where: str, served: Any, file: Any) -> Iterator[Change]:
    """Of lists, what was added and removed; callers are such a list."""
    if not isinstance(served, list) or not isinstance(file, list) or where.endswith(("bounds", "categories")):
        yield Change("changed", where, served, file)
        return
    for value in (each for each in file if each not in served):
        yield Change("added", where, file=value)
    for value in (each for each in served if each not in file):
        yield Change("removed", where, served=value)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        if isinstance(columns := value.get("columns"), dict):
            return f"with columns {', '.join(columns)}"
        return f"{', '.join(value['uses'])} at level {value['level']}" if "uses" in value else f"{len(value)} settings"
    return "nothing" if value is None else repr(value)
