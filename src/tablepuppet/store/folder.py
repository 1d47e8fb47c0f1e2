"""The folder of a saved model: facts, arrays and secrets, replaced in one moment even if the process ends meanwhile.

``model.json`` has the facts. It names the folder inside with ``arrays.npz``, and ``secrets.json``, which only its owner
may read; digests of all three are in it. So replacing ``model.json`` replaces the model. ``saving.json`` exists while a
model is saved. If it is left over, it names what parties may still store of that model. Goes out: what was written,
letter for letter, or a `ConfigError` that names the file and says what to do.

Models of `tp.linalg` of earlier versions are read too: ``linalg.json``, with the other two files beside it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import ConfigError, TablePuppetError
from tablepuppet.store.files import (
    DamagedFileError,
    arrays_of,
    facts_text,
    npz,
    read_facts,
    read_known,
    write_atomically,
    write_facts,
)

FORMAT, EARLIER_FORMAT = 8, 3
FACTS, ARRAYS, SECRETS = "model.json", "arrays.npz", "secrets.json"
EARLIER, _SAVING = "linalg.json", "saving.json"
AGAIN = "fit and save the model again"
_Inside = Annotated[str, msgspec.Meta(pattern=r"^content-[0-9a-f]{16}\Z")]


class Content(NamedTuple):
    """What is in the folder of a model."""

    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    secrets: dict[str, str]


class ModelFolder:
    """A model at a path, which may not exist yet."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def file(self) -> Path:
        """Where the facts are, if there is a model."""
        is_earlier = (self.path / EARLIER).exists() and not (self.path / FACTS).exists()
        return self.path / (EARLIER if is_earlier else FACTS)

    @property
    def is_model(self) -> bool:
        """Whether a model is there, or was being saved there."""
        return self.file.exists() or (self.path / _SAVING).exists()

    @property
    def facts(self) -> Mapping[str, Any]:
        """What ``model.json`` says; nothing if it cannot be read."""
        return _read(self.path / FACTS)

    @property
    def saved(self) -> str:
        """The name under which parties know the model of this folder; "" if they do not."""
        return str(self.facts.get("saved") or _read(self.path / _SAVING).get("saved", ""))

    def check_free(self) -> None:
        """ConfigError if something else is there."""
        if self.path.exists() and not self.is_model and (self.path.is_file() or any(self.path.iterdir())):
            raise ConfigError(f"{str(self.path)!r} exists and is not a saved model; choose another name")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create and lock the folder; ConfigError if something else is there. It is removed if it stays empty."""
        with self._writable():
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
        with self._writable():
            write_facts(self.path / _SAVING, {"saved": saved}, 0o644)
        return saved

    def write(
        self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], category_secrets: Mapping[str, str]
    ) -> None:
        """Replace what is there, all or nothing."""
        inside = self.path / f"content-{secrets.token_hex(8)}"
        with self._writable():
            inside.mkdir()
            write_atomically(inside / ARRAYS, npz(arrays), 0o644)
            write_atomically(inside / SECRETS, json.dumps(category_secrets).encode())
            text = sealed({"format": FORMAT, **facts, "content": inside.name}, inside)
            write_atomically(self.path / FACTS, text.encode(), 0o644)

    def end(self) -> None:
        """Remove what is no longer needed, or what a save that failed has left."""
        content = self.facts.get("content")
        for inside in self.path.glob("content-*"):
            if inside.name != content:
                shutil.rmtree(inside, ignore_errors=True)
        replaced = (EARLIER, ARRAYS, SECRETS) if content else ()
        for name in (f"{FACTS}.new", f"{_SAVING}.new", _SAVING, *replaced):
            (self.path / name).unlink(missing_ok=True)

    def read(self) -> Content:
        """What `write` wrote; ConfigError if it is not there, of another version, or not as it was written."""
        if not self.path.exists():
            raise ConfigError(f"{str(self.path)!r} does not exist: give the folder that model.save(folder) wrote")
        if not self.file.exists():
            raise ConfigError(f"{str(self.path)!r} is no saved model: give the folder that model.save(folder) wrote")
        is_earlier = self.file.name == EARLIER
        with damage_explained(self.file):
            facts = read_facts(self.file)
            if facts["format"] != (EARLIER_FORMAT if is_earlier else FORMAT):
                raise ConfigError(f"{str(self.file)!r} was written by another version of tablepuppet: {AGAIN}")
            if is_earlier:
                nobody: dict[str, Any] = {"saved": "", "part": "", "kept": {}, "noise": None}
                facts |= nobody | {"encoding": facts["model"]["fields"]["preparation"]["encoding"]}
            inside = self.path if is_earlier else self.path / msgspec.convert(facts["content"], _Inside)
        with damage_explained(inside / ARRAYS):
            arrays = arrays_of(read_known(inside / ARRAYS, facts["files"][ARRAYS]))
        with damage_explained(inside / SECRETS):
            return Content(facts, arrays, dict(json.loads(read_known(inside / SECRETS, facts["files"][SECRETS]))))

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"cannot save the model as {str(self.path)!r}: {error.strerror}") from error


def sealed(facts: Mapping[str, Any], inside: Path) -> str:
    """Facts as text, with digests of the files in a folder and of the facts themselves."""
    files = {name: sha256((inside / name).read_bytes()).hexdigest() for name in (ARRAYS, SECRETS)}
    return facts_text({**facts, "files": files}, _plain)


@contextmanager
def damage_explained(path: Path) -> Iterator[None]:
    """ConfigError for any error of reading a file: damaged ones make NumPy, zip and JSON raise many kinds of them."""
    try:
        yield
    except DamagedFileError as error:
        raise ConfigError(f"{error}: {AGAIN}") from error
    except TablePuppetError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"{str(path)!r} of a saved model cannot be read ({reason}): {AGAIN}") from error
    except Exception as error:
        raise ConfigError(f"{str(path)!r} is damaged, or of another version of tablepuppet: {AGAIN}") from error


def _read(path: Path) -> Mapping[str, Any]:
    with suppress(OSError, DamagedFileError):
        return read_facts(path)
    return {}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
