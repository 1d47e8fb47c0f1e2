"""The learners by name: jobs refer to these names, and so do saved models."""

from __future__ import annotations

from typing import Any, TypeVar

LEARNERS: dict[str, type[Any]] = {}
Class = TypeVar("Class", bound=type[Any])


def learner(made: Class) -> Class:
    """Register a class under its name, which no other class has; a module that is loaded again replaces its own."""
    known = LEARNERS.get(made.__name__, made)
    assert known.__module__ == made.__module__, f"{known.__module__} has a learner of the name {made.__name__}"
    LEARNERS[made.__name__] = made
    return made
