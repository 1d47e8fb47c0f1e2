"""The fingerprint of a column over the whole table; noise that must repeat is derived from it.

Input: a snapshot and one of its outputs. Output, for ops of the same party only: a hash of that output over all
rows of the table, including those that the filters of the snapshot leave out. So two relations with different filters
over the same data get the same fingerprint; changed data gets another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tablepuppet.errors import PartyError
from tablepuppet.party.snapshot import Snapshot, content_hash
from tablepuppet.sql.plan import Scan

Read = Callable[[Scan], Snapshot]  # takes a snapshot of the party's database as it is now


def column_fingerprint(snapshot: Snapshot, output: str, read: Read) -> str:
    """The fingerprint of an output over the whole table; if that cannot be computed, over the snapshot.

    This happens if the expression fails on rows that the filters leave out, or if the data has changed meanwhile.
    """
    scan = snapshot.scan
    if "" in scan.filters:  # nothing was left out
        return _fingerprint(snapshot, output)
    try:
        outputs = {output: scan.outputs[output]}
        whole = read(replace(scan, outputs=outputs, filters=("",), keys=(), branches=(), pushed=()))
    except PartyError:
        return _fingerprint(snapshot, output)
    return _fingerprint(whole if _holds(whole, snapshot, output) else snapshot, output)


def _fingerprint(snapshot: Snapshot, output: str) -> str:
    about = (snapshot.scan.table.lower(), snapshot.scan.outputs[output], snapshot.rows)
    return content_hash([snapshot.outputs[output]], about, snapshot.positions)


def _holds(whole: Snapshot, part: Snapshot, output: str) -> bool:
    """Whether the snapshot ``whole`` contains the rows of the snapshot ``part`` at the same positions."""
    wanted = np.arange(part.rows) if part.positions is None else part.positions
    known = np.arange(whole.rows) if whole.positions is None else whole.positions
    places = np.searchsorted(known, wanted)
    if len(places) and (places[-1] >= len(known) or not np.array_equal(known[places], wanted)):
        return False
    found = whole.outputs[output].take(pa.array(places))
    return content_hash([found]) == content_hash([part.outputs[output]])
