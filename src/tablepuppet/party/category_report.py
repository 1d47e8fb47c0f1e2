"""The names of categories in the stored parts of models; shown to the party's operator only.

Input: a party file. The party keeps digests of the categories that its parts of saved models were learned from. Here
its own values are read again and blinded the same way; the command shows the names of those that match.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from tablepuppet.errors import ConfigError, TablePuppetError
from tablepuppet.party.blind import blind, factorise, read_blinding_key
from tablepuppet.party.config import PartyFile
from tablepuppet.party.database import Database
from tablepuppet.party.kept import KeptCategories, KeptPart, all_kept
from tablepuppet.party.local_table import category_key, category_secret
from tablepuppet.party.published import open_published
from tablepuppet.party.snapshot import take_snapshot
from tablepuppet.sql.query import OutputColumn


class CategoryReport(msgspec.Struct, frozen=True):
    """One code of one column of a kept model; ``name`` is None if no row has that category any more."""

    caller: str
    model: str
    part: str
    table: str
    column: str  # as in ``coef_``, before =code
    code: int
    name: str | None


def category_names(path: Path, wanted: str | None = None) -> list[CategoryReport]:
    """The names of all categories of kept models, or of the model or part that is ``wanted``."""
    settings = PartyFile.load(path)
    if settings.state_dir is None:
        raise ConfigError(f"party file {str(path)!r}: it names no state_dir, so the party keeps no models")
    key, database = read_blinding_key(Path(settings.blinding_key)), open_published(settings)
    kept = all_kept(Path(settings.state_dir), settings.allow)
    chosen = [(caller, part) for caller, part in kept if wanted is None or wanted in (part.model, part.part)]
    if wanted is not None and not chosen:
        known = ", ".join(dict.fromkeys(part.model for _, part in kept)) or "none"
        raise ConfigError(f"party {settings.name!r} keeps no model or part {wanted!r}; it keeps: {known}")
    return [report for caller, part in chosen for report in _of_part(caller, part, key, database)]


def _of_part(caller: str, part: KeptPart, key: bytes, database: Database) -> Iterator[CategoryReport]:
    scan = part.scan
    if not part.categories:
        return
    outputs = {each.output: scan.outputs[each.output] for each in part.categories}
    try:
        with database.reader() as reader:
            wanted = replace(scan, outputs=outputs, keys=(), branches=())
            values = take_snapshot(wanted, reader, None, total=True).outputs  # as it was read for the model
    except TablePuppetError as error:
        raise ConfigError(
            f"model {part.model!r}, table {scan.table!r}: its columns cannot be read now: {error}"
        ) from error
    for each in part.categories:
        secret = category_key(category_secret(key, part.encoding), part.encoding, scan.outputs[each.output])
        column = OutputColumn(each.output, scan.alias, "", "").qualified
        for code, name in enumerate(_names(values[each.output], each, secret)):
            yield CategoryReport(caller, part.model, part.part, scan.table, column, code, name)


def _names(values: pa.ChunkedArray, kept: KeptCategories, key: bytes) -> list[str | None]:
    """The text of each code."""
    distinct = factorise(values).distinct
    blinded = blind([pa.chunked_array([distinct])], [kept.family], key)
    text: dict[bytes, str | None] = {digest.tobytes(): None for digest in kept.digests}
    for place, code in enumerate(blinded.codes.tolist()):
        digest = blinded.digests[code].tobytes()
        if digest in text:
            text[digest] = str(distinct[place].as_py())
    return [text[np.ascontiguousarray(digest).tobytes()] for digest in kept.digests]
