"""A party that reads its file again (SIGHUP): other callers, rules, tables and certificates, without a restart.

Input: the service, and the party file as it was and as it is now. Either all of the change takes effect, or an error
says what is wrong and everything stays as it was. Running requests end under the rules that they began with. Sessions
over tables whose rules changed are put away: they come back from their journal, under the new rules, or are refused.
All other sessions go on. A new certificate needs a new listener: the old one first finishes its requests.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref

import msgspec

from tablepuppet.errors import ConfigError, TablePuppetError
from tablepuppet.party.config import PartyFile
from tablepuppet.party.database import UnavailableError
from tablepuppet.party.metrics import Metrics
from tablepuppet.party.published import Published, open_deliveries, open_published
from tablepuppet.party.tls_files import read_tls_files
from tablepuppet.wire.flight_server import FlightServer, ServerTls

log = logging.getLogger("tablepuppet.party")
RETRY = 5.0  # seconds after which a database that does not answer is asked again
AT_ONCE = (
    "allow",
    "tables",
    "peers",
    "deliver",
    "tls",
    "require_purpose",
    "require_approval",
)  # fields that need no restart


def reload(
    server: FlightServer, before: PartyFile, file: PartyFile, metrics: Metrics | None = None
) -> tuple[ServerTls | None, PartyFile]:
    """The certificates and settings that hold from now on; ConfigError or PartyError if nothing was changed.

    If the certificates are others than the server's, the caller starts a new listener with them (`FlightServer.again`).
    """
    later = [name for name in file.__struct_fields__ if getattr(file, name) != getattr(before, name)]
    later = [name for name in later if name not in AT_ONCE]
    settings = msgspec.structs.replace(before, **{name: getattr(file, name) for name in AT_ONCE})
    if (settings.tls is None) != (before.tls is None):
        raise ConfigError("tls: it is turned on or off by a restart only")
    tls = None if settings.tls is None else ServerTls.of(read_tls_files(settings.tls, "party"))
    database = open_published(settings)
    check_tables(database)
    policy = settings.policy()
    server.desk.party.adopt(policy, database, open_deliveries(settings), None if tls is None else tls.identity)
    if metrics is not None:
        metrics.adopt(policy)
    ended = server.desk.put_away(changed(before, settings))
    log.info("the party file was read again: policy %s; %s sessions were put away", settings.policy_hash, ended)
    if later:
        log.warning("the party file has changes that need a restart, and have no effect yet: %s", ", ".join(later))
    return tls, settings


def check_tables(database: Published) -> None:
    """PartyError if a published table or column is not there.

    A database that does not answer, as after a reboot, is no reason not to serve, nor to go on under old rules: the log
    says so, and again when it answers. Until then requests that need it are refused.
    """
    try:
        database.tables()
    except UnavailableError as error:
        log.error("the database does not answer, and requests that need it are refused until it does: %s", error)
        threading.Thread(target=_check_when_back, args=(weakref.ref(database),), name="database", daemon=True).start()


def _check_when_back(known: weakref.ref[Published]) -> None:
    """Check the tables of a database that did not answer, for as long as it is served."""
    while True:
        time.sleep(RETRY)
        database = known()
        try:
            if database is not None:
                database.tables()
                log.info("the database answers, and all published tables are there")
            return
        except UnavailableError:
            del database
        except TablePuppetError as error:
            log.error("the database answers, but it is not as the party file says: %s", error)
            return


def changed(before: PartyFile, now: PartyFile) -> frozenset[str]:
    """The tables, in lower case, whose rules are others than before."""
    old, new = ({name.lower(): entry for name, entry in file.tables.items()} for file in (before, now))
    of_all = ("peers", "deliver", "require_approval", "require_purpose")
    everything = any(getattr(before, name) != getattr(now, name) for name in of_all)
    return frozenset(name for name in {*old, *new} if everything or old.get(name) != new.get(name))
