"""The folder of a saved model as files, replaced atomically even if the process ends meanwhile.

``model.json`` names the folder inside with arrays and secrets; replacing ``model.json`` replaces the model.
``saving.json`` exists while a model is saved. If it is left over, it names what parties may still store of that model.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import ConfigError
from tablepuppet.runs.saved_files import ARRAYS, SECRETS, save_errors, sealed
from tablepuppet.store.files import DamagedFileError, read_facts, write_atomically, write_facts

FACTS = "model.json"


class ModelFolder:
    """A model at a path, which may not exist yet."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def is_model(self) -> bool:
        """Whether a model is there, or was being saved there."""
        return (self.path / FACTS).exists() or (self.path / "saving.json").exists()

    @property
    def facts(self) -> Mapping[str, Any]:
        """What ``model.json`` says; nothing if it cannot be read."""
        return _read(self.path / FACTS)

    @property
    def saved(self) -> str:
        """The name under which parties know the model of this folder; "" if they do not."""
        return str(self.facts.get("saved") or _read(self.path / "saving.json").get("saved", ""))

    def check_free(self) -> None:
        """ConfigError if something else is there."""
        if self.path.exists() and not self.is_model and (self.path.is_file() or any(self.path.iterdir())):
            raise ConfigError(f"{str(self.path)!r} exists and is not a saved model; choose another name")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create and lock the folder; ConfigError if something else is there. It is removed if it stays empty."""
        with save_errors(self.path):
            self.check_free()
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(f"another process is saving a model as {str(self.path)!r}") from error
            yield
        finally:
            os.close(handle)
            with suppress(OSError):
                self.path.rmdir()

    def begin(self, name: str) -> str:
        """Write down under which name parties will know the model: as before, or as ``name``."""
        saved = self.saved or name
        with save_errors(self.path):
            write_facts(self.path / "saving.json", {"saved": saved}, 0o644)
        return saved

    def write(
        self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], category_secrets: Mapping[str, str]
    ) -> None:
        """Replace what is there, all or nothing."""
        inside = self.path / f"content-{secrets.token_hex(8)}"
        with save_errors(self.path):
            inside.mkdir()
            with (inside / ARRAYS).open("wb") as stream:
                np.savez(stream, **arrays)  # type: ignore[arg-type]
                stream.flush()
                os.fsync(stream.fileno())
            write_atomically(inside / SECRETS, json.dumps(category_secrets).encode())
            text = sealed({**facts, "content": inside.name}, inside, _plain)
            write_atomically(self.path / FACTS, text.encode(), 0o644)

    def end(self) -> None:
        """Remove what is no longer needed, or what a save that failed has left."""
        content = self.facts.get("content")
        for inside in self.path.glob("content-*"):
            if inside.name != content:
                shutil.rmtree(inside, ignore_errors=True)
        for name in ("model.json.new", "saving.json.new", "saving.json"):
            (self.path / name).unlink(missing_ok=True)


def _read(path: Path) -> Mapping[str, Any]:
    with suppress(OSError, DamagedFileError):
        return read_facts(path)
    return {}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
