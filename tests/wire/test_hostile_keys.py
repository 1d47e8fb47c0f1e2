"""Join keys against a hostile analyst: no expression turns one key into another, no digest key comes twice."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.errors import ConfigError
from tablepuppet.party.blind import new_blinding_key, read_blinding_key
from tablepuppet.party.openings import MOST_NAMES, MOST_NONCES, RECENT, Openings
from tablepuppet.party.request import Request
from tests.party.policed import audit_lines, federation, open_party
from tests.relations import federation as in_process
from tests.relations import write_party
from tests.wire.hostile import Attacker, digests_of, keyed, write_bank
from tests.wire.services import calling, served


@pytest.fixture
def attacker(tmp_path: Path) -> Attacker:
    return Attacker(write_bank(tmp_path))


# Expressions


CHAINS = """
id + 1; -id; id % 10; abs(id); 7; COALESCE(id, 0); NULLIF(id, 3); CASE WHEN id > 5 THEN id END; length(code)
CAST(id AS TINYINT); TRY_CAST(id AS SMALLINT); CAST(id AS DECIMAL(20,1)); CAST(id AS DECIMAL(99,1))
CAST(CAST(id AS DOUBLE) AS BIGINT); CAST(code AS BIGINT)
"""


@pytest.mark.parametrize("text", [text.strip() for text in CHAINS.strip().replace("\n", ";").split(";")])
def test_no_successor_chain(attacker: Attacker, tmp_path: Path, text: str) -> None:
    """Digests of a key and of an expression over it, under one label, are refused: they chained all ids of a table."""
    columns = {"id": "BIGINT", "code": "VARCHAR"}
    with pytest.raises(
        tp.PrivacyError, match=r"party 'bank', table 'cards': the join key .* is an expression; join by"
    ):
        attacker.open("s", attacker.scan(columns=columns, **keyed(("L", "id"), ("L", text))))
    line = audit_lines(tmp_path)[-2]  # before the line that frees the session
    assert (line["verb"], line["outcome"], line["rule"]) == ("open", "denied", "keys")


def test_casts_that_keep_keys_apart(attacker: Attacker) -> None:
    """A plain column, a cast to a type that holds its values, and one of whole numbers to text are keys."""
    reply = attacker.open("s", attacker.scan(**keyed(("L", "id"), ("L", "CAST(id AS HUGEINT)"), ("L", "(id)"))))
    assert digests_of(reply, 0) == digests_of(reply, 1) == digests_of(reply, 2)
    reply = attacker.open("t", attacker.scan(**keyed(("L", "CAST(id AS VARCHAR)"), family="text")))
    assert len(set(digests_of(reply, 0))) == 60


def test_another_family_is_refused(attacker: Attacker) -> None:
    """A text blinded as a timestamp would fail where it is none; the types alone refuse it."""
    for text, kind, family in (
        ("code", "VARCHAR", "timestamp"),
        ("id", "BIGINT", "text"),
        ("id", "BIGINT", "nonsense"),
    ):
        scan = attacker.scan(columns={text: kind}, outputs={}, **keyed(("L", text), family=family))
        with pytest.raises(tp.PartyError, match="cannot be blinded as"):
            attacker.open(f"{text}-{family}", scan)


NAMED = 'keys = ["lower(code)", "split_part(code, \'C\', 2)"]'
SQL = "SELECT a.amount FROM cards a JOIN cards b ON lower(a.code) = {}"


def test_a_policy_names_expressions(tmp_path: Path) -> None:
    """An expression that the operator names is a key, in whatever case its names are written; a similar one is not."""
    fed = federation(open_party(write_bank(tmp_path, table=NAMED)))
    assert len(fed.sql(SQL.format("LOWER(b.CODE)"))) == 60
    for other in ("lower(b.code || 'x')", "upper(b.code)"):
        with pytest.raises(tp.PrivacyError, match=r"\(policy rule keys\)"):
            fed.sql(SQL.format(other))


@pytest.mark.parametrize("text", ["lower(amount)", "lower(nowhere)", "'x'", "lower(", "getenv('HOME')", "count(code)"])
def test_named_expressions_are_checked(tmp_path: Path, text: str) -> None:
    """A named key must be an expression over columns that have the use key."""
    with pytest.raises(ConfigError, match=r"tables\.cards\.keys"):
        open_party(write_bank(tmp_path, table=f'keys = ["{text}"]'))


def test_in_ones_own_process_expressions_are_keys(tmp_path: Path) -> None:
    """Databases that the analyst opens join by any expression, as SQL says."""
    fed = in_process(tmp_path, {"p0": {"t": pa.table({"k": [1, 2, 3]})}, "p1": {"u": pa.table({"k": [2, 3, 9]})}})
    assert len(fed.sql("SELECT t.k FROM t JOIN u ON t.k + 1 = u.k")) == 2


# Nonces


def test_a_digest_key_cannot_be_repeated(attacker: Attacker) -> None:
    """The same scan, label and session name never blind alike: each nonce of the party works once."""
    scan, nonce = attacker.scan(**keyed(("L", "id"))), attacker.nonce()
    first = set(digests_of(attacker.open("s", scan, [nonce]), 0))
    for session, nonces in (
        ("t", [nonce]),
        ("u", []),
        ("v", ["0" * 64]),
        ("w", [nonce, "ab"]),
        ("x", [nonce, attacker.nonce()]),
    ):
        with pytest.raises(
            tp.PrivacyError, match=r"blinded under one nonce of this party.*run the query again.*rule nonce"
        ):
            attacker.open(session, scan, nonces)
    again = set(digests_of(attacker.open("s2", scan, ["ab", attacker.nonce()]), 0))
    assert len(again) == 60
    assert not first & again


def test_a_nonce_is_its_callers(attacker: Attacker) -> None:
    """Callers that work together cannot use each other's nonces, nor have the same digests by giving all of them."""
    other, scan = Attacker(attacker.file, "auditor", attacker.desk), attacker.scan(**keyed(("L", "id")))
    mine, theirs = attacker.nonce(), other.nonce()
    for who, nonces in ((other, [mine]), (attacker, [mine, theirs]), (other, [theirs, mine])):
        with pytest.raises(tp.PrivacyError, match="rule nonce"):
            who.open("s", scan, nonces)
    told = [set(digests_of(who.open("s", scan, [nonce]), 0)) for who, nonce in ((attacker, mine), (other, theirs))]
    assert not told[0] & told[1]


def test_a_restart_accepts_no_old_nonce(attacker: Attacker) -> None:
    """A party that is started anew takes none of the nonces it gave before, used or not."""
    scan, used, unused = attacker.scan(**keyed(("L", "id"))), attacker.nonce(), attacker.nonce()
    attacker.open("s", scan, [used])
    attacker.restart()
    for nonce in (used, unused):
        with pytest.raises(tp.PrivacyError, match="rule nonce"):
            attacker.open("t", scan, [nonce])


def test_nonces_are_few_and_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What callers make a party remember is bounded, and a nonce is good for a day."""
    openings = Openings("bank")
    nonces = [openings.issue("a") for _ in range(MOST_NONCES + 1)]
    with pytest.raises(tp.PrivacyError):
        openings.check("a", "s", nonces[:1], blinds=True)
    openings.check("a", "s", nonces[1:2], blinds=True)
    monkeypatch.setattr("time.monotonic", lambda: 1e12 + RECENT)
    with pytest.raises(tp.PrivacyError):
        openings.check("a", "s", nonces, blinds=True)
    for number in range(MOST_NAMES + 5):
        openings.use("a", f"s{number}", [], blinds=False, again=False)
    assert len(openings._names["a"]) == MOST_NAMES
    assert len(openings._nonces["a"]) == MOST_NONCES


def test_an_opening_without_an_answer_may_come_again() -> None:
    """One that the machine had no room for has used up nothing; once it was answered, nothing is given back."""
    openings = Openings("bank")
    nonce = [openings.issue("a")]
    openings.use("a", "s", nonce, blinds=True, again=False)
    with pytest.raises(tp.PrivacyError):
        openings.check("a", "s", nonce, blinds=True)
    openings.give_back("a", "s")
    openings.use("a", "s", nonce, blinds=True, again=False)
    openings.settle("a", "s")
    openings.give_back("a", "s")
    for name in ("s", "t"):
        with pytest.raises(tp.PrivacyError):
            openings.check("a", name, nonce, blinds=True)


# Sessions


def test_a_session_name_opens_once(attacker: Attacker) -> None:
    """An `open` again is answered from store while the session lives, and refused once it has gone on or ended."""
    scan, nonce = attacker.scan(**keyed(("L", "id"))), attacker.nonce()
    first = digests_of(attacker.open("s", scan, [nonce]), 0)
    assert digests_of(attacker.open("s", scan, [attacker.nonce()]), 0) == first
    attacker.use("s", "v", np.arange(60), np.ones(60, np.int64))
    with pytest.raises(tp.PartyError, match="request 0 of this session came after request 1"):
        attacker.open("s", scan)
    attacker.send(Request("close", "s"))
    for changed in (scan, dataclasses.replace(scan, keys=())):
        with pytest.raises(tp.PrivacyError, match="a session opens once, and this name was used"):
            attacker.open("s", changed)
    Attacker(attacker.file, "auditor", attacker.desk).open("s", scan)  # names are their callers'


def test_a_killed_party_continues_the_session(attacker: Attacker) -> None:
    """After a restart an `open` of the same name gets the reply that it had, under its nonces, not those of today."""
    scan, nonce = attacker.scan(**keyed(("L", "id"))), attacker.nonce()
    first = digests_of(attacker.open("s", scan, [nonce]), 0)
    attacker.restart()
    assert digests_of(attacker.open("s", attacker.scan(**keyed(("L", "other"))), [attacker.nonce()]), 0) == first
    attacker.use("s", "v", np.arange(60), np.ones(60, np.int64))
    attacker.restart()
    with pytest.raises(tp.PartyError, match="request 0 of this session came after request 1"):
        attacker.open("s", scan)
    attacker.sent["s"] = 1
    attacker.use("s", "w", np.arange(60), np.ones(60, np.int64))
    attacker.send(Request("close", "s"))
    with pytest.raises(tp.PrivacyError, match="a session opens once"):
        attacker.open("s", scan)


@pytest.mark.parametrize("name", ["a\n", "a b", "a.b", "\x1b[2J", "ключ", "x" * 65, "../x", "a\0"])
def test_names_are_plain_and_short(attacker: Attacker, name: str) -> None:
    """A session's name is of letters, digits, _ and -, so that logs and files can hold it."""
    with pytest.raises(tp.PartyError, match="the request is not one of"):
        attacker.open(name, attacker.scan())


# Honest queries still join


@pytest.mark.parametrize("here", [False, True], ids=["services", "one in this process"])
def test_parties_blind_alike(tmp_path: Path, here: bool) -> None:
    """Services join by the nonces of all, also where a party has no table in the query, or lives with the analyst."""
    tables: dict[str, Any] = {
        "p0": {"t": pa.table({"k": [1, 2, 3, 4]})},
        "p1": {"u": pa.table({"k": [2, 3, 9]})},
        "p2": {"unused": pa.table({"k": [1]})},
    }
    urls = {name: write_party(tmp_path, name, each) for name, each in tables.items()}
    local = {"p1": urls.pop("p1")} if here else {}
    file = tmp_path / "key"
    new_blinding_key(file)
    with served(urls, key=read_blinding_key(file)) as servers:
        entries = {name: f"grpc://127.0.0.1:{server.port}" for name, server in servers.items()}
        fed = tp.Federation(entries | local, key_file=file if here else None)
        for _ in range(2):
            assert len(fed.sql("SELECT t.k FROM t JOIN u USING (k)")) == 2


def test_a_plan_opens_as_often_as_one_likes(tmp_path: Path) -> None:
    """Each opening of one plan has nonces of its own; the first needs no trip more than describe and open."""
    urls = {"p0": write_party(tmp_path, "p0", {"t": pa.table({"k": [1, 2, 3]})})}
    with served(urls) as servers:
        fed = calling(servers)
        planned = fed.plan("SELECT a.k FROM t a JOIN t b USING (k)")
        relations = [fed.open(planned) for _ in range(3)]
        assert [len(relation) for relation in relations] == [3, 3, 3]
        before = sum(entry["messages"] for entry in fed.traffic)
        fed.sql("SELECT a.k FROM t a JOIN t b USING (k)")
        assert sum(entry["messages"] for entry in fed.traffic) - before == 4  # two requests, two replies
