"""Settings that people write in TOML files: an unknown field is named with its place, and the closest that is known.

Input: what a file says, and the type it must have. Output: a value of that type. An error repeats names of fields,
never a value.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from tablepuppet.errors import ConfigError
from tablepuppet.spelling import did_you_mean

Settings = TypeVar("Settings")


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
    for place, known in _unknown(raw, kind, ""):
        _, _, name = place.rpartition(".")
        raise msgspec.ValidationError(f"unknown field {place!r}{did_you_mean(name, known)}")
    return msgspec.convert(raw, kind)


def _unknown(raw: Any, kind: Any, place: str) -> Iterator[tuple[str, list[str]]]:
    """Fields that no type of settings has, each with those it has there."""
    if not isinstance(raw, dict):
        return
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        known = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        for name, value in raw.items():
            if name not in known:
                yield f"{place}{name}", list(known)
            else:
                yield from _unknown(value, known[name], f"{place}{name}.")
    elif get_origin(kind) is dict:
        for name, value in raw.items():
            yield from _unknown(value, get_args(kind)[1], f"{place}{name}.")
    else:  # Annotated, a union: whatever of it may be a section
        for part in get_args(kind):
            yield from _unknown(raw, part, place)
