"""Secure sums at a party: with whom it sums, once for each number, and never unmasked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.party.secure_table import SecureTable, Wanted
from tablepuppet.privacy.secure_sum import add_words
from tablepuppet.privacy.signed_keys import Identity, TrialAuthority, has_signed

NAMES = ("east", "north", "west")
TRIAL = TrialAuthority()


def signs_as(name: str, trial: TrialAuthority = TRIAL) -> Callable[[], Identity]:
    return lambda: trial.identity(name)


def table(name: str, alias: str = "cards", **settings: Any) -> SecureTable:
    return SecureTable(name, "cards", alias, "session", "analyst", **({"identity": signs_as(name)} | settings))


def tables(*names: str, **settings: Any) -> dict[str, SecureTable]:
    return {name: table(name, **settings) for name in names}


def agree(peers: dict[str, SecureTable]) -> dict[str, SecureTable]:
    """Let peers exchange keys, as an honest coordinator does."""
    hellos = [peer.hello() for peer in peers.values()]
    signatures = {name: peer.propose(hellos) for name, peer in peers.items()}
    for peer in peers.values():
        peer.confirm(signatures)
    return peers


def wanted(number: int = 1, bits: int = 20) -> Wanted:
    return Wanted(number, {"sums": bits})


def told(peer: SecureTable, values: Any, asked: Wanted) -> dict[str, Any]:
    peer.begin(asked)
    return peer.masked("op", asked, {"sums": values})


def refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(tp.PrivacyError, match=words) as caught:
        call()
    assert caught.value.rule == "secure_sum"
    assert "party" in str(caught.value)
    assert "'cards'" in str(caught.value)


def test_shards_tell_their_sum_only() -> None:
    """Added up, the words are the sum; each peer's own are not its numbers."""
    replies = [told(peer, np.arange(4.0), wanted()) for peer in agree(tables(*NAMES)).values()]
    assert np.array_equal(add_words([reply["sums"] for reply in replies], 20), 3 * np.arange(4.0))
    for reply in replies:
        assert not np.any(np.abs(add_words([reply["sums"]], 20)) < 1e3)


def test_two_shards_are_refused() -> None:
    """Each would know the other's numbers."""
    peers = tables("east", "north")
    refused(lambda: agree(peers), "2 shards")


def test_a_peer_that_the_policy_does_not_name_is_refused() -> None:
    """Though its certificate is good; the caller is no peer either, named or not."""
    refused(lambda: agree(tables(*NAMES, peers=frozenset({"east", "north"}))), "'west' is not among the peers")
    agree(tables(*NAMES, peers=frozenset(NAMES)))
    refused(lambda: agree(tables("analyst", "east", "north")), "'analyst' is not among the peers")


def test_a_foreign_certificate_is_refused() -> None:
    """A peer whose certificate another authority has signed."""
    peers = tables("east", "north") | {"west": table("west", identity=signs_as("west", TrialAuthority()))}
    refused(lambda: agree(peers), "does not come from an authority")


def test_a_party_without_certificate_is_refused() -> None:
    """It cannot prove to others who it is."""
    refused(table("east", identity=None).hello, "it has none")


def test_somebody_in_the_middle_is_refused() -> None:
    """The coordinator makes keys of its own for all peers, so that it could take the masks away."""
    peers, own = tables(*NAMES), tables(*NAMES, identity=signs_as("analyst"))
    real, false = ([peer.hello() for peer in each.values()] for each in (peers, own))
    refused(lambda: peers["east"].propose([real[0], *false[1:]]), "'analyst' is not among the peers")
    swapped = [type(r)(r.certificates, f.public, r.signature) for r, f in zip(real, false, strict=True)]
    refused(lambda: peers["east"].propose([real[0], *swapped[1:]]), "is not signed by it")


def test_a_second_roster_is_refused() -> None:
    """With another peer, or one fewer, the difference of two sums would be a shard's; the same one again is taken."""
    peers = agree(tables(*NAMES, "south"))
    hellos = {name: peer.hello() for name, peer in peers.items()}
    again = peers["east"].propose(list(hellos.values()))
    assert has_signed(hellos["east"].certificates, again, peers["east"]._roster.digest)  # type: ignore[union-attr]
    refused(lambda: peers["east"].propose([hellos[name] for name in NAMES]), "a second roster")


def test_a_table_read_twice_has_one_roster() -> None:
    """Under a second alias, other peers would be a second roster of the same rows."""
    rosters: dict[str, frozenset[str]] = {}
    first, second = (table("east", alias, others=rosters) for alias in ("a", "b"))
    first.table = "Cards"  # SQL does not regard case
    agree({"east": first, **{name: table(name, "a") for name in ("north", "west")}})
    refused(lambda: agree({"east": second, **{name: table(name, "b") for name in ("north", "south")}}), "read twice")


def test_shards_of_another_table_are_refused() -> None:
    """Under one alias a coordinator lets peers read a table that hides nothing; spelling does not matter."""
    peers = tables(*NAMES)
    peers["west"].table = "empty"
    refused(lambda: peers["east"].propose([peer.hello() for peer in peers.values()]), "is not signed by it")
    spelled = tables(*NAMES)
    spelled["west"].table = "Cards"
    agree(spelled)


def test_a_peer_may_not_stand_in_the_roster_twice() -> None:
    """Three hellos of two peers are two peers, also if a peer was made to sign two keys."""
    peers = tables("east", "north")
    hellos = [peers["east"].hello(), peers["north"].hello(), table("north").hello()]
    refused(lambda: peers["east"].propose(hellos), "twice")


def test_a_roster_without_the_own_key_is_refused() -> None:
    """As after a restart: the party has another key now, and says that the session ends."""
    hellos = [peer.hello() for peer in tables(*NAMES).values()]
    restarted = table("east")
    restarted.hello()
    for call in (lambda: restarted.propose(hellos), lambda: restarted.confirm({}), lambda: restarted.begin(wanted())):
        with pytest.raises(tp.PrivacyError, match="start a new run"):
            call()


def test_all_must_sign_the_same_roster() -> None:
    """A signature that is missing, of another roster or of another peer: nothing is masked."""
    peers = tables(*NAMES)
    hellos = [peer.hello() for peer in peers.values()]
    signatures = {name: peer.propose(hellos) for name, peer in peers.items()}
    others = tables(*NAMES)
    other = [peer.hello() for peer in others.values()]
    for wrong in (
        {**signatures, "west": b""},
        {**signatures, "west": signatures["north"]},
        {**signatures, "west": others["west"].propose(other)},
        {"east": signatures["east"]},
    ):
        refused(lambda wrong=wrong: peers["east"].confirm(wrong), "has not signed the roster")  # type: ignore[misc]
    with pytest.raises(tp.PrivacyError, match="start a new run"):
        peers["east"].begin(wanted())


def test_a_number_masks_one_reply() -> None:
    """One mask for two replies would tell their difference: numbers must rise, also past a reply that failed."""
    peer = agree(tables(*NAMES))["east"]
    told(peer, np.ones(2), wanted(1))
    for number in (1, 0):
        refused(lambda number=number: told(peer, np.zeros(2), Wanted(number, {"sums": 20})), "one mask for two")  # type: ignore[misc]
    peer.begin(wanted(2))  # and then the op failed
    refused(lambda: peer.begin(wanted(2)), "one mask for two")
    told(peer, np.ones(2), wanted(5))


def test_a_sum_that_does_not_fit_ends_secure_sums() -> None:
    """Whoever tries one scale after the other would learn how large a shard's sum is: one refusal is the last word."""
    peer = agree(tables(*NAMES))["east"]
    refused(lambda: told(peer, np.array([1.0]), wanted(1, bits=70)), "too large for its scale")
    refused(lambda: told(peer, np.array([1.0]), wanted(2, bits=10)), "have ended")
    assert peer.is_bound


def test_nothing_but_sums_is_masked() -> None:
    """A reply with a value beside its sums does not leave."""
    peer = agree(tables(*NAMES))["east"]
    peer.begin(wanted())
    refused(lambda: peer.masked("op", wanted(), {"sums": np.ones(2), "more": 1.0}), "more than sums")


@pytest.mark.parametrize(
    "value",
    [None, 1, {}, {"number": 1}, {"number": 0, "bits": {"sums": 1}}, {"number": 1, "bits": {"sums": 10**6}},
     {"number": 1, "bits": {}}, {"number": 1, "bits": {"sums": 1, "more": 1}}, {"number": 1, "bits": {"sums": 1.5}}],
)  # fmt: skip
def test_what_asks_for_masks_is_checked(value: Any) -> None:
    """Whatever a coordinator sends: an error that names the op."""
    with pytest.raises(tp.PartyError, match=r"op 'model.gradient': argument 'secure'"):
        Wanted.read("model.gradient", ("sums",), value)


def test_keys_are_in_no_text() -> None:
    """A table that is printed tells neither its key nor its masks."""
    peer = agree(tables(*NAMES))["east"]
    assert "Masks" not in repr(peer)
    assert "PRIVATE" not in repr(peer)
    assert "X25519PrivateKey" not in repr(table("east"))
