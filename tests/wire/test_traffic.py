"""What a notebook shows of traffic: a row per release, a column per party."""

from __future__ import annotations

import tablepuppet as tp
from tablepuppet.wire.traffic import TrafficRecords


def entry(party: str, direction: str, release: str, size: int) -> dict[str, object]:
    """One entry of `fed.traffic`."""
    return {"party": party, "direction": direction, "release": release, "bytes": size, "messages": 1}


def test_traffic_is_pivoted_by_party_and_release() -> None:
    """The largest release is first, in plain words; sums stand below and to the right."""
    records = TrafficRecords([
        entry("a", "up", "LABELS", 10), entry("b", "up", "KEY_DIGESTS|HISTOGRAMS", 500),
        entry("a", "up", "KEY_DIGESTS|HISTOGRAMS", 300), entry("a", "down", "SCHEMA", 7),
    ])  # fmt: skip
    sent, received = records.table_views()
    assert list(sent.columns) == list(received.columns) == ["what", "a", "b", "all parties"]
    assert [list(row) for row in sent.rows] == [
        ["key digests, histograms", "300 B", "500 B", "800 B"],
        ["labels", "10 B", "-", "10 B"],
        ["all", "310 B", "500 B", "810 B"],
    ]
    assert sent.title == "Sent by parties: 810 B in 3 messages"
    assert [list(row) for row in received.rows] == [["schema", "7 B", "-", "7 B"], ["all", "7 B", "-", "7 B"]]
    assert records[0]["release"] == "LABELS"
    assert records._repr_html_().count("<table") == 2


def test_cards_ask_nobody_and_show_no_password() -> None:
    """A federation whose parties cannot be reached is shown at once, without what stands in a URL."""
    urls = {"bank": "grpc://localhost:1", "shop": "postgresql://me:geheim@localhost:1/db"}
    for name, url in urls.items():
        fed = tp.Federation({name: url})
        shown = fed._repr_html_()
        assert "geheim" not in shown
        assert name in shown
        assert fed.traffic == []
    assert "Federation of 1 party" in shown
    assert "postgresql, opened in this process" in shown
