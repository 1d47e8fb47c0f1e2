"""How much a caller may take of a party: the limits that the party itself enforces, as its file sets them.

`config.py` adds those of its service: sessions, connections, messages and journals.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]


class CallerLimits(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Limits of requests, and of what a party holds and remembers for a caller; None: there is none."""

    request_seconds: Annotated[
        Seconds | None, Meta(description="seconds that one request may take, reading and evaluating included")
    ] = 300.0
    reply_bytes: Annotated[Positive | None, Meta(description="bytes of one reply")] = 512 << 20
    work_per_caller: Annotated[
        Positive | None, Meta(description="requests of one caller that are computed at once; the others wait")
    ] = 2
    releases_per_request: Annotated[
        Positive | None,
        Meta(description="releases with noise, each charged to the ledger, that one request may ask for"),
    ] = 2000
    ledger_releases: Annotated[
        Positive | None, Meta(description="different noisy labels that the ledger knows by name, per caller and table")
    ] = 1000
    expression_bytes: Annotated[
        Positive | None,
        Meta(description="bytes of memory in which one table is read and its expressions are evaluated"),
    ] = 1 << 30
    memory_bytes: Annotated[
        Positive | None, Meta(description="bytes of memory that one caller's tables, encoded rows and models take")
    ] = 1 << 30
    kept_bytes: Annotated[Positive | None, Meta(description="bytes of saved models in `state_dir`, per caller")] = (
        1 << 30
    )
    max_prediction_rounds: Annotated[
        Positive | None,
        Meta(description="replies with predictions, gradient sums or parameters, per session and table"),
    ] = 1000
    max_matrix_columns: Annotated[
        Positive | None,
        Meta(description="vectors of a caller's choice that a table is multiplied with, per session and table"),
    ] = 10_000
    max_filters: Annotated[Count | None, Meta(description="distinct filters, per caller and table")] = 20
    max_expressions: Annotated[
        Count | None, Meta(description="distinct selected expressions other than plain columns, per caller and table")
    ] = 100
    max_splits: Annotated[
        Count | None, Meta(description="distinct splits per caller and table, until its number of rows changes")
    ] = 50
    max_refinements: Annotated[
        Count | None,
        Meta(description="refined histograms of columns that are not public, over distinct rows, per caller and table"),
    ] = 1000
    max_failures: Annotated[
        Positive | None, Meta(description="distinct queries whose expressions fail on rows, per caller and table")
    ] = 10
    max_models: Annotated[
        Count | None, Meta(description="saved models of which the party keeps its part in `state_dir`, per caller")
    ] = 100
    fits: Annotated[Positive | None, Meta(description="models that one caller has in memory at once")] = 1000
    views: Annotated[
        Positive | None, Meta(description="relations, and encodings of their rows, in memory per session and table")
    ] = 1000


UNLIMITED = CallerLimits(**dict.fromkeys(CallerLimits.__struct_fields__))
"""Those of a party in the analyst's own process."""
