"""Budgets as parties publish them: what is left, and what is within them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest

import tablepuppet as tp
from tablepuppet.party.request import Request
from tablepuppet.privacy.accountant import ORDERS, Spending
from tablepuppet.privacy.funds import Funds
from tablepuppet.sql.catalog import Shard
from tablepuppet.wire.protocol import VERSION, read_reply

FUNDS = Funds("all", 1.0, 1e-6, Spending.of_gaussian(10.0), ("mark",))


def test_costs_add_up_as_curves() -> None:
    """Two releases cost less than twice one; many are their sum to rounding; what exceeds the budget is not allowed."""
    cost = Spending.of_gaussian(10.0, 3) + Spending.of_pure(1e-9)
    assert FUNDS.after(cost) < FUNDS.spent.epsilon(1e-6) + cost.epsilon(1e-6)
    assert FUNDS.allows(cost)
    assert not FUNDS.allows(Spending.of_pure(1.0))
    assert FUNDS.left == pytest.approx(1.0 - FUNDS.spent.epsilon(1e-6))
    summed = sum([cost] * 7, Spending())
    for many, each in zip(cost.times(7).gaussian, summed.gaussian, strict=True):
        assert many == pytest.approx(each, rel=1e-12)
    assert cost.times(7).pure == pytest.approx(summed.pure)


def reply(shard: Any) -> Any:
    """What a party says that publishes a table."""
    return [VERSION, "ok", [{"tables": [shard], "key": "k", "nonce": None}]]


def test_funds_travel() -> None:
    """A shard with a budget, bounds and classes is the same at the other end."""
    shard = Shard(
        "bank", "cards", {"x": "DOUBLE"}, 3, funds=(FUNDS,), bounds={"x": (0.0, 1.0)}, categories={"y": ("a",)}
    )
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(shard))
    assert read_reply(reply(told), Request("describe"), "bank")[0]["tables"] == [shard]


@pytest.mark.parametrize(
    "funds",
    [{"epsilon": math.nan}, {"epsilon": -1.0}, {"delta": 0.0}, {"delta": 1.5}, {"spent": {"pure": math.nan}},
     {"spent": {"gaussian": [1.0]}}, {"spent": {"gaussian": [-1.0] * len(ORDERS)}}],
)  # fmt: skip
def test_a_budget_that_cannot_be_is_an_error_of_the_party(funds: dict[str, Any]) -> None:
    """Numbers that would make every cost free, or fail deep in the accountant, are refused, and the party is named."""
    shard = msgspec.to_builtins(replace(Shard("bank", "cards", {}, 3), funds=(FUNDS,)))
    shard["funds"][0].update(funds)
    with pytest.raises(tp.PartyError, match="party 'bank'"):
        read_reply(reply(shard), Request("describe"), "bank")
