"""Settings of learners and solvers: each is declared once, on the class that has it.

A class declares ``l2: float = setting(default=1e-6, kind=NUMBER, help="...")``. From this come the constructor,
``get_params`` and ``set_params`` as in scikit-learn, checks and their errors, fields of job files and saved models, and
the tables in the docs. The constructor checks nothing: `check_settings` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self, dataclass_transform

import numpy as np

from tablepuppet.errors import LearnError
from tablepuppet.spelling import setting_meant

Auto = Literal["auto"]


class SettingError(LearnError, TypeError, ValueError):
    """A learner or a solver got an unknown setting; also a ValueError, as scikit-learn expects."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Kind:
    """The allowed values of a setting, in words and as a test; and how files store them."""

    allowed: str
    fits: Callable[[Any], bool]
    write: Callable[[Any], Any] = _same
    read: Callable[[Any], Any] = _same
    refusal: str = "{name} must be {allowed}, not {value!r}"


@dataclass(frozen=True)
class Setting:
    """One setting of a class."""

    default: Any
    kind: Kind
    help: str  # one line of Markdown
    in_files: bool = True  # whether jobs and saved models have it

    def check(self, name: str, value: Any) -> None:
        """Raise LearnError if a value is out of range."""
        if not self.kind.fits(value):
            raise LearnError(self.kind.refusal.format(name=name, allowed=self.kind.allowed, value=value))


def setting(*, default: Any, kind: Kind, help: str, in_files: bool = True) -> Any:
    """Declare a setting; its value is stored in the attribute of the same name."""
    return Setting(default, kind, help, in_files)


@dataclass_transform(kw_only_default=True, field_specifiers=(setting,))
class Configured:
    """An object with settings, which are passed by name.

    ``beside`` are settings of its parts that it also accepts, as short forms; they are stored only if they are given.
    """

    declared: ClassVar[Mapping[str, Setting]] = {}
    beside: ClassVar[Mapping[str, Setting]] = {}
    known: ClassVar[Mapping[str, Setting]] = {}  # both

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        found: dict[str, Any] = {}
        for base in cls.__mro__:  # what a class has itself comes first; a plain value there takes a setting away
            found |= {n: each for n, each in vars(base).items() if n not in found}
        cls.declared = {name: each for name, each in found.items() if isinstance(each, Setting)}
        cls.known = {**cls.declared, **cls.beside, **cls.declared}
        if "__init__" not in vars(cls):
            cls.__init__ = _constructor(cls)  # type: ignore[method-assign]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings; ``deep``: those of parts too, as ``part__setting`` and in their short form."""
        found = {name: getattr(self, name) for name in self.declared} | self._given_beside
        if not deep:
            return found
        short = {name: each.default for name, each in self.beside.items()}
        parts = {name: value.get_params() for name, value in found.items() if isinstance(value, Configured)}
        nested = {f"{part}__{name}": value for part, inner in parts.items() for name, value in inner.items()}
        return (found if parts else short | found) | nested

    def set_params(self, **settings: Any) -> Self:
        """Change settings, of a part as ``part__setting``: of the one that is given with it, if one is."""
        for name, value in sorted(settings.items(), key=lambda item: "__" in item[0]):
            own, _, inner = name.partition("__")
            part = getattr(self, own, None)
            if inner and own in self.declared and isinstance(part, Configured):
                part.set_params(**{inner: value})
            elif inner or own not in self.known:
                meant = setting_meant(name, self.known)
                raise SettingError(f"Invalid parameter {name!r} for {type(self).__name__}{meant}")
            else:
                setattr(self, name, value)
        return self

    @property
    def _given_beside(self) -> dict[str, Any]:
        """The settings of parts that were given in their short form."""
        return {name: vars(self)[name] for name in self.beside if name in vars(self)}

    def check_settings(self) -> None:
        """Raise LearnError if a setting is out of range."""
        for name, value in self.get_params(deep=False).items():
            self.known[name].check(name, value)
            if isinstance(value, Configured):
                value.check_settings()

    def plain_settings(self) -> dict[str, Any]:
        """The settings as a file stores them."""
        given = self.get_params(deep=False).items()
        return {name: self.known[name].kind.write(value) for name, value in given if self.known[name].in_files}

    @classmethod
    def of_plain(cls, settings: Mapping[str, Any]) -> Self:
        """An object with the settings of a file."""
        kinds = [name for name, each in cls.known.items() if each.in_files]
        for name in settings:
            if name not in kinds:
                raise SettingError(f"{cls.__name__} has no setting {name!r}{setting_meant(name, kinds)}")
        return cls(**{name: cls.of_file(name, value) for name, value in settings.items()})

    @classmethod
    def of_file(cls, name: str, value: Any) -> Any:
        """A value that a file has for a setting, as a user would give it; as it is if there is no such setting."""
        return cls.known[name].kind.read(value) if name in cls.known else value


def _constructor(made: type[Configured]) -> Callable[..., None]:
    """The ``__init__`` of a class: it only stores. Its signature lists the declared settings."""

    def initialise(self: Configured, *values: Any, **settings: Any) -> None:
        called, known = type(self).__name__, list(self.known)
        if values:
            raise SettingError(f"{called} takes settings by name, such as {called}({known[0]}=...), not {values[0]!r}")
        for name in settings:
            if name not in known:
                raise SettingError(f"{called} has no setting {name!r}{setting_meant(name, known)}")
        for name, value in ({name: each.default for name, each in self.declared.items()} | settings).items():
            setattr(self, name, value)

    listed = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    listed += [Parameter(name, Parameter.KEYWORD_ONLY, default=each.default) for name, each in made.declared.items()]
    if made.beside:
        listed.append(Parameter("solver_settings", Parameter.VAR_KEYWORD))
    initialise.__signature__ = Signature(listed)  # type: ignore[attr-defined]
    return initialise


def settings_table(*classes: type[Configured]) -> str:
    """The settings of some classes as a Markdown table, without duplicate lines."""
    lines = ["| setting | it is | meaning |", "| --- | --- | --- |"]
    for made in classes:
        for name, each in made.declared.items():
            lines.append(f"| `{name}={each.default!r}` | {each.kind.allowed} | {each.help} |")
    return "\n".join(dict.fromkeys(lines))


# What settings may be


def _is_whole(value: Any, least: int, most: float = np.inf) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise LearnError unless an argument is a whole number in a range."""
    if not _is_whole(value, least, np.inf if most is None else most):
        up_to = "" if most is None else f" to {most:,}"
        raise LearnError(f"{name} is a whole number from {least}{up_to}, not {value!r}")


def _is_number(value: Any, below: float = np.inf) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < below


def _is_rate(value: Any) -> bool:
    return _is_number(value) and bool(value > 0)


def _is_callables(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, Iterator) and all(callable(each) for each in value)


def or_auto(kind: Kind) -> Kind:
    """What a kind allows, or "auto"."""
    return Kind(f"'auto' or {kind.allowed}", lambda v: v == "auto" if isinstance(v, str) else kind.fits(v))


COUNT = Kind("a whole number, at least 1", partial(_is_whole, least=1))
WHOLE = Kind("a whole number, 0 or more", partial(_is_whole, least=0))
NUMBER = Kind("a number, 0 or more", _is_number)
RATE = Kind("a number above 0", _is_rate)
SHARE = Kind("a number from 0 to below 1", partial(_is_number, below=1.0))
SWITCH = Kind("True or False", lambda value: isinstance(value, bool))
CALLBACKS = Kind("a list of functions that take an event", _is_callables)
