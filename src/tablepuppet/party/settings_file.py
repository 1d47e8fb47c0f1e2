"""Settings that people write in TOML files: an unknown field is named with its place, and the closest that is known.

Input: what a file says, and the type it must have. Output: a value of that type. An error repeats names of fields,
never a value.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from tablepuppet.errors import ConfigError
from tablepuppet.spelling import did_you_mean

Settings = TypeVar("Settings")
_WORDS = {
    "str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false", "object": "a section",
    "array": "a list",
}  # fmt: skip


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """What a file says; ConfigError that names it, as ``what`` it is, if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {what} {str(path)!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} {str(path)!r}: {error}") from error


def read_settings(path: Path, what: str, kind: type[Settings]) -> Settings:
    """The settings of a file; ConfigError that names the file and the field if they are wrong."""
    try:
        return as_settings(read_toml(path, what), kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what} {str(path)!r}: {error}") from error


def as_settings(raw: Any, kind: type[Settings]) -> Settings:
    """What a file says as settings; msgspec.ValidationError if it is none."""
    found = mistakes(raw, kind)
    if found:
        raise msgspec.ValidationError(listed(found))
    return msgspec.convert(raw, kind)


def mistakes(raw: Any, kind: Any, place: str = "") -> list[str]:
    """Every unknown field and every wrong value of what a file says, each with its place."""
    found = []
    for where, fields in _unknown(raw, kind, place):
        found.append(f"unknown field {where!r}{did_you_mean(where.rpartition('.')[2], fields)}")
    wrong = list(_wrong(known(raw, kind), kind, place))
    return found + [f"{where.rstrip('.')}: {text}" if where else text for where, text in wrong]


def listed(problems: Sequence[str]) -> str:
    """Problems as one text: one as it is, several as a list."""
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} mistakes:" + "".join(f"\n  - {text}" for text in problems)


def _wrong(raw: Any, kind: Any, place: str) -> Iterator[tuple[str, str]]:
    """The innermost fields that are wrong, by their places, and what is wrong with each, in words."""
    try:
        msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        fields = _fields(raw, kind)
        inner = [each for name in fields if name in raw for each in _wrong(raw[name], fields[name], f"{place}{name}.")]
        yield from inner or [(place, _in_words(str(error), kind))]


def known(raw: Any, kind: Any) -> Any:
    """What a file says without the fields that no type of settings has."""
    fields = _fields(raw, kind)
    return {name: known(raw[name], fields[name]) for name in raw if name in fields} if fields else raw


def _unknown(raw: Any, kind: Any, place: str) -> Iterator[tuple[str, list[str]]]:
    """Fields that no type of settings has, each with those it has there."""
    fields = _fields(raw, kind)
    for name in raw if fields else ():
        if name not in fields:
            yield f"{place}{name}", list(fields)
        else:
            yield from _unknown(raw[name], fields[name], f"{place}{name}.")


def _fields(raw: Any, kind: Any) -> dict[str, Any]:
    """The fields that a section may have, with their types; none if this is no section, or the type has none."""
    if not isinstance(raw, dict):
        return {}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    if get_origin(kind) is dict:
        return dict.fromkeys(raw, get_args(kind)[1])
    sections = (_fields(raw, part) for part in get_args(kind))  # of Annotated, of a union
    return next(filter(None, sections), {})


def _in_words(text: str, kind: Any) -> str:
    """What msgspec says is wrong with a value that should be of a type, without the value.

    >>> _in_words("Expected `str | object`, got `int` - at `$.parties[...]`", str)
    'it must be a text or a section, not a whole number'
    >>> _in_words("Object missing required field `max_epochs` - at `$.embeddings`", str)
    'max_epochs is missing'
    """
    said = text.partition(" - at ")[0]
    if said.startswith("Invalid enum value") and (choices := _choices(kind)):
        return f"it must be one of {', '.join(choices)}"
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", said):
        return f"{missing[1]} is missing"
    said = re.sub(r"`([^`]*)`", lambda kinds: _types(kinds[1].split(" | ")), said)
    return said.replace("Expected ", "it must be ").replace(", got ", ", not ")


def _types(names: list[str]) -> str:
    """Types in words; a file has no null."""
    return " or ".join(_WORDS.get(name, name) for name in names if name != "null")


def _choices(kind: Any) -> list[str]:
    """The texts that a type allows, if it allows some only."""
    if get_origin(kind) is Literal:
        return [each for each in get_args(kind) if isinstance(each, str)]
    return [each for part in get_args(kind) for each in _choices(part)]
