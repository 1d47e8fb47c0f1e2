"""The files of a saved model: facts with digests of all of them, and one error for whatever has become of them.

Comes in: facts as JSON, and the folder with arrays and secrets. Goes out: what was written, letter for letter, or a
`ConfigError` that names the file and says what to do. Digests find damage, not an attacker, who would write them anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import ConfigError, TablePuppetError
from tablepuppet.store import files
from tablepuppet.store.files import DamagedFileError, facts_text, read_known

ARRAYS, SECRETS = "arrays.npz", "secrets.json"
AGAIN = "fit and save the model again"


def sealed(facts: Mapping[str, Any], inside: Path, plain: Callable[[Any], Any]) -> str:
    """Facts as text, with digests of the files in a folder and of the facts themselves."""
    files = {name: sha256((inside / name).read_bytes()).hexdigest() for name in (ARRAYS, SECRETS)}
    return facts_text({**facts, "files": files}, plain)


def read_facts(path: Path, format_: int) -> dict[str, Any]:
    """What `sealed` wrote; ConfigError if it is not there, of another version, or not as it was written."""
    if not path.parent.exists():
        raise ConfigError(f"{str(path.parent)!r} does not exist: give the folder that model.save(folder) wrote")
    if not path.exists():
        raise ConfigError(f"{str(path.parent)!r} is no saved model: give the folder that model.save(folder) wrote")
    with damage_explained(path):
        facts = files.read_facts(path)
        if facts["format"] != format_:
            raise ConfigError(f"{str(path)!r} was written by another version of tablepuppet: {AGAIN}")
    return facts


def read_content(inside: Path, facts: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays, and secrets by name; ConfigError unless they are those that facts were written with."""
    with damage_explained(inside / ARRAYS):
        content = read_known(inside / ARRAYS, facts["files"][ARRAYS])
        with np.load(BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    with damage_explained(inside / SECRETS):
        return arrays, dict(json.loads(read_known(inside / SECRETS, facts["files"][SECRETS])))


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


@contextmanager
def save_errors(path: Path) -> Iterator[None]:
    """Raise ConfigError instead of OSError, for a model that cannot be saved at a path."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot save the model as {str(path)!r}: {error.strerror}") from error
