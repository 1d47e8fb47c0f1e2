"""What a misspelt name might have meant: of columns, fields of files, settings, and arguments of public calls.

Input: a name that somebody wrote, and those that there are. Output: the tail of an error, never a value.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from tablepuppet.errors import ArgumentError, UnknownKeyError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)
MOST_MEANT, LEAST_PART = 3, 4
ELSEWHERE = {  # a name, and those that it may have here, the first of which there is
    **dict.fromkeys(("n_estimators", "num_boost_round", "n_rounds", "num_iterations"), "max_iter n_estimators"),
    **dict.fromkeys(("max_iter", "epochs", "n_epochs", "num_epochs", "rounds"), "rounds max_iter n_estimators"),
    "n_iter": "candidates",
    "param_distributions": "settings",
    **dict.fromkeys(("C", "alpha", "weight_decay"), "l2"),
    **dict.fromkeys(("reg_lambda", "lambda_l2", "l2"), "l2 l2_regularization"),
    **dict.fromkeys(("learning_rate", "learning_rate_init", "eta0"), "lr"),
    **dict.fromkeys(("lr", "eta", "shrinkage"), "learning_rate"),
    **dict.fromkeys(("num_leaves", "max_leaves"), "max_leaf_nodes"),
    **dict.fromkeys(("min_child_samples", "min_data_in_leaf"), "min_samples_leaf"),
    **dict.fromkeys(("colsample_bynode", "feature_fraction_bynode"), "max_features"),
    **dict.fromkeys(("monotone_constraints", "monotonic_constraints"), "monotonic_cst"),
    "interaction_constraints": "interaction_cst",
    **dict.fromkeys(("random_state", "random_seed"), "seed"),
    **dict.fromkeys(("target", "y"), "label"),
    "test_size": "test",
    "hidden_layer_sizes": "hidden",
    **dict.fromkeys(("n_iter_no_change", "patience", "early_stopping_rounds"), "patience n_iter_no_change"),
    "query": "text",
    "scoring": "metric",
    "cv": "folds",
    "param_grid": "grid",
    "estimator": "learner",
    "n_clusters": "k",
    "n_components": "components",
    # between `split` and folds
    "by": "groups",
    "stratify": "stratified",
    "after": "time",
    "groups": "by",
    "stratified": "stratify",
    "time": "after",
}

FORMULAS = {
    "C": "l2 = 1 / (C N) over N joined rows, half of that for LinearSVC",
    "alpha": "l2 = alpha / N over N joined rows for Ridge and MLP, l2 = alpha for SGD",
    "reg_lambda": "l2 = reg_lambda / N over N joined rows",
    "weight_decay": "l2 = weight_decay",
}
"""Settings of other libraries that are the same as one here only after a calculation."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The tail of an error about an unknown name: the closest one and those that it is a part of, or all of them.

    >>> did_you_mean("pric", ["price", "day"]), did_you_mean("x", ["price", "day"])
    ("; did you mean 'price'?", '; there are: price, day')
    >>> did_you_mean("epsilon", ["label_epsilon", "delta", "feature_epsilon"])
    "; did you mean 'label_epsilon' or 'feature_epsilon'?"
    """
    names, spelt = list(known), name.lower()
    parts = [each for each in names if spelt in each.lower()] if len(name) >= LEAST_PART else []
    close = difflib.get_close_matches(spelt, [each.lower() for each in names], n=1)
    found = [next(each for each in names if each.lower() == close[0])] if close else []
    if len(meant := list(dict.fromkeys([*found, *parts]))) <= MOST_MEANT:
        found = meant
    if found:
        return f"; did you mean {' or '.join(map(repr, found))}?"
    return f"; there are: {', '.join(names)}" if names else ""


OF_RELATIONS = {
    "categorical_features": "numbers that are categories are named with the relation: fed.sql(..., categorical=[...])"
}


def setting_meant(name: str, known: Iterable[str]) -> str:
    """The advice for a setting or an argument, which may have the name that it has in scikit-learn or torch.

    >>> setting_meant("n_estimators", ["max_iter", "seed"])
    "; here it is 'max_iter'"
    >>> setting_meant("max_iter", ["rounds", "seed"])
    "; here it is 'rounds'"
    >>> setting_meant("reg_lambda", ["l2_regularization", "seed"])
    "; here it is 'l2_regularization'"
    >>> setting_meant("by", ["groups", "stratified", "time"])
    "; here it is 'groups'"
    >>> setting_meant("C", ["l2", "seed"])
    "; here it is 'l2': l2 = 1 / (C N) over N joined rows, half of that for LinearSVC"
    """
    names = list(known)
    if name in OF_RELATIONS:
        return f"; {OF_RELATIONS[name]}"
    here = next((each for each in ELSEWHERE.get(name, "").split() if each in names), None)
    if here is None:
        return did_you_mean(name, names)
    return f"; here it is {here!r}" + (f": {FORMULAS[name]}" if here == "l2" and name in FORMULAS else "")


def unknown_key(what: str, key: object, known: Iterable[str]) -> UnknownKeyError:
    """The error of a result that has no number of that name.

    >>> print(unknown_key("quantile", "pric", ["price", "day"]))
    quantile has no 'pric'; did you mean 'price'?
    """
    return UnknownKeyError(f"{what} has no {key!r}{did_you_mean(str(key), known)}")


def attributes_explained(meant: Mapping[str, str]) -> Callable[[Class], Class]:
    """A class that says, of attributes that users of other libraries try, what to write instead."""

    def explained(made: Class) -> Class:
        def missing(self: object, name: str) -> object:
            if name in meant and not hasattr(type(self), name):  # no name=: Python would make a second suggestion
                raise AttributeError(f"{type(self).__name__} has no {name}: {meant[name]}")
            return object.__getattribute__(self, name)  # a property that raised an AttributeError does so again

        made.__getattr__ = missing  # type: ignore[attr-defined]
        return made

    return explained


def shows(*public: str) -> Callable[[Class], Class]:
    """A class whose `dir`, and so completion in editors and notebooks, has public names only.

    These are ``public``, those of its base classes, settings, and whatever a fit has learned (``coef_``). All other
    names are for the package itself.
    """

    def shown(made: Class) -> Class:
        listed = {*public, *getattr(made, "_public", ())}

        def names(self: object) -> list[str]:
            every = object.__dir__(self)
            settings = getattr(self, "declared", ())
            return sorted(
                name for name in every if name in listed or name in settings or (name[0] != "_" and name[-1] == "_")
            )

        made._public, made.__dir__ = frozenset(listed), names  # type: ignore[attr-defined, method-assign, assignment]
        return made

    return shown


def hides(*own: str) -> Callable[[Class], Class]:
    """A class whose `dir` leaves out what the package has for itself: ``own``, and names that begin with "_"."""

    def hidden(made: Class) -> Class:
        left_out = frozenset({*own, *getattr(made, "_left_out", ())})
        listed: Callable[[object], Iterable[str]] = made.__dir__  # type: ignore[assignment]

        def names(self: object) -> list[str]:
            return sorted(name for name in listed(self) if name[0] != "_" and name not in left_out)

        made._left_out, made.__dir__ = left_out, names  # type: ignore[attr-defined, method-assign, assignment]
        return made

    return hidden


def names_checked(function: Callable[Arguments, Result], called: str = "") -> Callable[Arguments, Result]:
    """A function or method that raises ArgumentError for an argument that it does not have, with what was meant.

    ``called`` is what errors call it, if not by its own name.
    """
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*values: Arguments.args, **named: Arguments.kwargs) -> Result:
        check_names(called or function.__name__, named, known)
        return function(*values, **named)

    return checked


def class_checked(made: Class) -> Class:
    """A class whose constructor is checked in the same way."""
    made.__init__ = names_checked(made.__init__, made.__name__)  # type: ignore[misc]
    return made


def check_names(called: str, named: Iterable[str], known: Sequence[str]) -> None:
    """ArgumentError for an argument that does not exist, with what was meant."""
    for name in named:
        if name not in known:
            raise ArgumentError(f"{called} has no argument {name!r}{setting_meant(name, known)}")
