"""The learners by name: jobs refer to these names, and so do saved models."""

from __future__ import annotations

from typing import Any, TypeVar

LEARNERS: dict[str, type[Any]] = {}
Class = TypeVar("Class", bound=type[Any])


def learner(made: Class) -> Class:
    """Register a class under its name."""
    LEARNERS[made.__name__] = made
    return made
