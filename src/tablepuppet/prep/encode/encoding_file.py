"""An encoding in files: facts as JSON, and digests of categories as arrays. It contains no value of a row.

Parties in the analyst's process have a new blinding key in every process. So the secret under which they blind the
categories of a model is saved with it, in a file of its own; services derive it from their lasting key, and send it to
nobody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.prep.encode.encode import NO_DIGESTS, CategoryEncoder, Encoding, NumberEncoder, TableSteps
from tablepuppet.prep.encode.specs import StepSpec
from tablepuppet.sql.query import OutputColumn
from tablepuppet.wire.engine import Engine

SECRET = "categories by source"  # its name in the file of secrets

NUMBER_FACTS = ("mean", "scale", "centre", "square", "spread")


def encoding_arrays(encoding: Encoding) -> dict[str, NDArray[Any]]:
    """The digests of an encoding, by name."""
    tables = {alias: encoding.table(alias) for alias in encoding.numbers}
    return {
        f"digests/{alias}/{column.name}": digests
        for alias, table in tables.items()
        for column, digests in table.categories
    }


def category_secrets(encoding: Encoding, engine: Engine) -> dict[str, str]:
    """What is secret of an encoding: how parties in this process, which have one key, blind its categories."""
    for party in engine.parties if encoding.has_categories else ():
        known = engine.capabilities(party).category_secrets
        if known is not None and known.knows_categories(encoding.id, encoding.key):
            return {SECRET: known.category_secret(encoding.id).hex()}
    return {}


def adopt_category_secrets(encoding: Encoding, secrets: Mapping[str, str], engine: Engine) -> None:
    """Let all parties in this process blind an encoding's categories as when it was saved, whoever they were then."""
    for party in engine.parties if SECRET in secrets else ():
        known = engine.capabilities(party).category_secrets
        if known is not None:
            known.adopt_category_secret(encoding.id, bytes.fromhex(secrets[SECRET]))


def encoding_facts(encoding: Encoding) -> dict[str, Any]:
    """An encoding without its digests, which are arrays."""
    return {
        "id": encoding.id,
        "key": encoding.key,
        "private": encoding.private,
        "described": encoding.described,
        "iv": dict(encoding.iv_),
        "numbers": {
            alias: [_column(e.column) | {name: getattr(e, name) for name in NUMBER_FACTS} for e in encoders]
            for alias, encoders in encoding.numbers.items()
        },
        "categories": {
            alias: [_column(e.column) | {"listed": len(e.digests) > 0, "more": e.more} for e in encoders]
            for alias, encoders in encoding.categories.items()
        },
        "steps": {
            alias: {
                "numbers": [_column(column) for column in table.numbers],
                "categories": [_column(column) for column, _ in table.categories],
                "steps": msgspec.to_builtins(table.steps),
            }
            for alias, table in encoding.steps.items()
        },
    }


def _column(column: OutputColumn) -> dict[str, Any]:
    return {"name": column.name, "alias": column.alias, "expression": column.expression, "type": column.type}


def read_encoding(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> Encoding:
    """The encoding that was written."""

    def column(entry: dict[str, Any]) -> OutputColumn:
        return OutputColumn(entry["name"], entry["alias"], entry["expression"], entry["type"])

    def digests(alias: str, entry: dict[str, Any]) -> NDArray[np.uint8]:
        return np.asarray(arrays[f"digests/{alias}/{entry['name']}"])

    def number(entry: dict[str, Any]) -> NumberEncoder:
        known = {"spread": math.sqrt(max(entry["square"] - entry["centre"] ** 2, 0.0))} | entry  # older files lack it
        return NumberEncoder(column(entry), *(known[name] for name in NUMBER_FACTS))

    def category(alias: str, entry: dict[str, Any]) -> CategoryEncoder:
        known = digests(alias, entry) if entry["listed"] else NO_DIGESTS
        return CategoryEncoder(column(entry), known, more=tuple(entry["more"]))

    def table(alias: str, entry: dict[str, Any]) -> TableSteps:
        return TableSteps(
            tuple(map(column, entry["numbers"])),
            tuple((column(each), digests(alias, each)) for each in entry["categories"]),
            msgspec.convert(entry["steps"], tuple[StepSpec, ...]),
        )

    return Encoding(
        facts["id"],
        facts["key"],
        {alias: tuple(map(number, listed)) for alias, listed in facts["numbers"].items()},
        {alias: tuple(category(alias, each) for each in listed) for alias, listed in facts["categories"].items()},
        facts["private"],
        {alias: table(alias, entry) for alias, entry in facts["steps"].items()},
        tuple(facts["described"]),
        dict(facts.get("iv", {})),
    )
