"""Arguments for any op, made from the types that it declares: mostly such as fit a session, some as hostile as can be.

An argument's name says what it means in this project (``view``, ``encoding``, ``rows``, ``theta``); of other names only
the type is known, and sizes are drawn from those that occur in the session. So an op that is registered tomorrow gets
arguments too. Some requests are earlier ones of the session once more, with an array of another shape: what an op
remembers of a request must not be mixed with what does not fit it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

import msgspec
import numpy as np
from msgspec import Meta

from tablepuppet.learn.tables.dense import Network
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.tables.model import Bottom, TableSpec
from tablepuppet.party.arguments import LARGEST, Within, fits, is_family, one_of
from tablepuppet.party.ops import Op
from tablepuppet.prep.encode.program import Shapes as StepShapes
from tablepuppet.prep.encode.specs import (
    Cut,
    Exponent,
    Fill,
    FillCode,
    FittedStep,
    Hashed,
    Logarithm,
    Missing,
    Other,
    Product,
    Scale,
)

FLOATS = (
    0.0, -0.0, 5e-324, -5e-324, 1e-300, 1e-168, 1e-154, 1e-100, 1e-12, 1.0, -1.0, 1e6, 1e30, 1e100, -1e100, 1e154,
    1e170, 1e300, math.nan, math.inf, -math.inf,
)  # fmt: skip
WHOLE = (0, -1, 1, 2, 255, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**30)
TEXTS = ("", "v", "a/b", "../../etc", "x" * 70_000, "\0", "kept", "'; --")
WILD = 0.2  # how often an argument is hostile
RARELY = 0.2  # how often rows are prepared by steps of any kind
CALM = 6  # requests with nothing hostile, of an op that works on no model
AGAIN = 0.25  # how often a request is an earlier one, changed


@dataclass
class Shapes:
    """What a session holds, by name: what fits what."""

    rows: int
    outputs: Sequence[str]  # selected columns
    numbers: Sequence[str]  # those of them that are numbers
    texts: Sequence[str]  # those that are categories
    labels: Sequence[str]
    families: Mapping[str, str] = field(default_factory=dict)  # of columns by which rows may be grouped
    widths: dict[str, int] = field(default_factory=dict)  # of encodings
    models: dict[str, tuple[str, TableSpec]] = field(default_factory=dict)  # encoding, what it is
    digests: dict[str, Any] = field(default_factory=dict)  # of categories


class Maker:
    """Draws arguments."""

    liked: ClassVar[dict[str, set[str]]] = {}  # by op: kinds of models that it answered for, in any session

    def __init__(self, rng: np.random.Generator, shapes: Shapes, wild: float = WILD):
        self.rng, self.shapes, self.most_wild, self.wild = rng, shapes, wild, wild
        self.answered: dict[str, list[dict[str, Any]]] = {}  # arguments by op

    def note(self, op: Op, given: dict[str, Any], answered: bool) -> None:
        """Learn what an op works on: then more requests get beyond its first check."""
        if answered:
            self.answered.setdefault(op.name, []).append(given)
        if answered and isinstance(given.get("model"), str):
            self.liked.setdefault(op.name, set()).add(given["model"][:-1])

    def arguments(self, op: Op, wild: float | None = None, **fixed: Any) -> dict[str, Any]:
        """For one request; ``fixed`` ones are as given. Half of the requests have nothing hostile in them."""
        if wild is None and self.rng.random() < AGAIN:
            return self.again(op)
        self.wild = wild if wild is not None else self.most_wild if self.rng.random() < 0.5 else 0.0
        self.encoding = fixed.get("encoding") or self._one(list(self.shapes.widths) or ["none"])
        fitting = [name for name, (encoding, _) in self.shapes.models.items() if encoding == self.encoding]
        hint = op.parameters.hints.get("spec")
        if hint is not None:  # models of the kind that the op takes
            fitting = [name for name in fitting if fits(self.shapes.models[name][1], hint)] or fitting
        kinds = self.liked.get(op.name, set())
        liked = [name for name in fitting if name[:-1] in kinds] if self.rng.random() < 0.7 else []
        self.model = fixed.get("model") or self._one(liked or fitting or ["none"])
        outputs = int(self.rng.integers(1, 3))
        known: tuple[str, TableSpec] = (
            self.encoding,
            Linear(outputs) if self.rng.random() < 0.5 else Network((3,), outputs),
        )
        self.spec = fixed.get("spec") or self.shapes.models.get(self.model, known)[1]
        self.columns = list(self.rng.choice(self.shapes.numbers, int(self.rng.integers(0, 4))))
        self.categories = [(name, "text") for name in self.rng.choice(self.shapes.texts, int(self.rng.integers(0, 3)))]
        families, hints = list(self.shapes.families), op.parameters.hints
        if families and hints.keys() >= {"columns", "families"}:  # two groupings
            self.columns = [self._one(families), self._one(families)]
        elif families and hints.keys() >= {"columns", "family"}:  # numbers by groups
            self.columns = [self._one(self.shapes.numbers), self._one(families)]
        found: dict[str, Any] = {}
        for name, hint in hints.items():
            if name == op.parameters.others:
                found |= {f"digests{i}": self._digests() for i in range(len(self.categories))}
            elif name in fixed:
                found[name] = fixed[name]
            elif name in op.parameters.names[0] or self.rng.random() < 0.8:
                found[name] = self._wild(hint) if self.rng.random() < self.wild else self._fitting(name, hint)
        return found

    def again(self, op: Op) -> dict[str, Any]:
        """An earlier request, mostly the last one, with an array of another shape, and without some of what may be left
        out; if there was none, a new one.
        """
        known = self.answered.get(op.name)
        if not known:
            return self.arguments(op, wild=0.0)
        needed, _ = op.parameters.names
        given = known[-1] if self.rng.random() < 0.7 else self._one(known)
        kept = {name: value for name, value in given.items() if name in needed or self.rng.random() < 0.5}
        arrays = [name for name, value in kept.items() if isinstance(value, np.ndarray)]
        if arrays:
            name = self._one(arrays)
            kept[name] = np.resize(kept[name], self._other_shape(kept[name].shape))
        return kept

    def _other_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One that NumPy may spread over arrays of the shape, or that has as many numbers, or other ones."""
        size = self._one([1, 1, 2, self.shapes.rows, *shape])
        others = [*[(*shape, size)] * 4, (size, *shape), shape[::-1], (math.prod(shape),), (*shape[:-1], size), (size,)]
        found: tuple[int, ...] = self._one([other for other in others if len(other) < 3])
        return found

    def _fitting(self, name: str, hint: Any) -> Any:
        plain: dict[str, Callable[[], Any]] = {
            "view": lambda: "v" if self.rng.random() >= self.wild / 2 else self._one(["w", "none"]),
            "encoding": lambda: self.encoding, "model": lambda: self.model,
            "spec": lambda: msgspec.to_builtins(self.spec),
            "column": lambda: self._one([*self.shapes.labels, *self.shapes.texts, *self.shapes.outputs]),
            "columns": lambda: self.columns, "categories": lambda: self.categories,
            "blinding": lambda: self.encoding, "family": self._family,
            "families": lambda: [self.shapes.families.get(name, "text") for name in self.columns],
            "pool": self._digests, "first_pool": self._digests, "second_pool": self._digests,
            "places": lambda: np.arange(len(self.columns), dtype=np.int32),
            "prefixes": lambda: np.zeros(len(self.columns), np.uint64),
            "classes": lambda: self._one([["a", "b"], ["a", "b", "c"], ["x", "y"], [0.0, 1.0], None]),
            "wanted": lambda: self.columns,
            "bounds": lambda: self._one([[0.0, 1.0], [-5.0, 5.0], [0.0, 1e-9], [1.0, 1.0], [2.0, 1.0], None]),
        }  # fmt: skip
        if name == "steps" and get_origin(hint) is Sequence:
            return self._steps(hint) if self.rng.random() < RARELY else []
        if name == "highs" and self.rng.random() >= self.wild:  # above "lows", whatever these are
            return np.full(len(self.columns), 1e99)
        return plain[name]() if name in plain else self._of(hint, self._shape(name))

    def _steps(self, hint: Any) -> list[dict[str, Any]]:
        """Steps of a pipeline over columns that are there, mostly."""
        found = self._of(hint, ())
        for step in found:
            if self.columns and "column" in step and self.rng.random() >= self.wild:
                step["column"] = str(self._one(self.columns))
        return list(found)

    def prepared(self, given: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Arguments of ``encode.build`` with steps that fit its columns, and how many columns come of them."""
        columns, draw = list(dict.fromkeys(map(str, given["columns"]))), self.rng.random
        read = {str(name): given[f"digests{place}"] for place, (name, _) in enumerate(given["categories"])}
        steps: list[FittedStep] = []
        for name in columns:
            steps += [Missing(name, f"{name}_missing")] if draw() < 0.5 else []
            steps += [Fill(name, float(self._one([0.0, -7.0, 1e155])))] if draw() < 0.5 else []
            steps += [Logarithm(name, 1.0)] if draw() < 0.3 else []
            steps += [Exponent(name, float(self._one([0.5, 1e-3, 1e3])))] if draw() < 0.3 else []
            steps += [Scale(name, 1.0, float(self._one([1.0, 1e-155, 1e155])))] if draw() < 0.3 else []
            steps += [Product([name, columns[0]], f"{name}*")] if draw() < 0.3 else []
            steps += [Cut(name, [-1e9, 0.0, 1.0, 1e9])] if draw() < 0.2 and name != columns[0] else []
        for name in read:
            steps += [self._one([FillCode(name, 0), Other(name), Hashed(name, 5)])] if draw() < 0.7 else []
        sizes = {name: len(digests) for name, digests in read.items()}
        steps = [step for step in steps if not (isinstance(step, FillCode) and not sizes[step.column])]
        shapes = StepShapes.of(columns, sizes, steps)
        numbers = len(shapes.numbers)
        changed: dict[str, Any] = {"columns": columns, "categories": [(name, "text") for name in read]}
        changed |= {f"digests{place}": digests for place, digests in enumerate(read.values())}
        changed |= {"steps": msgspec.to_builtins(steps), "means": np.zeros(numbers), "scales": np.ones(numbers)}
        kept = {name: value for name, value in given.items() if not name.startswith("digests")}
        return {**kept, **changed}, numbers + sum(shapes.coded.values())

    def _shape(self, name: str) -> tuple[int, ...]:
        """The shape that an array of this name has in this project; else one of the sizes that there are."""
        rows, width = self.shapes.rows, self.shapes.widths.get(self.encoding, 1)
        count, theta = self.spec.outputs, self.spec.theta_shape(width) or (1,)
        outputs = () if count == 1 else (count,)
        linear = (width, *outputs)
        known: dict[str, tuple[int, ...]] = {
            "rows": (rows, *outputs), "theta": theta, "agreed": linear, "directions": linear,
            "means": (len(self.columns),), "scales": (len(self.columns),), "lows": (len(self.columns),),
            "highs": (len(self.columns),), "curvature": (count, count), "proximal": (count, count),
            "rates": (int(self.rng.integers(0, 4)),), "mix": (int(self.rng.integers(0, 3)),), "counts": (rows,),
            "sums": self._one([(rows,), (2, width)]), "squares": (rows,),
        }  # fmt: skip
        sizes = [0, 1, 2, rows, width, math.prod(theta)]
        drawn = tuple(self._one(sizes) for _ in range(int(self.rng.integers(1, 3))))
        return known.get(name, drawn) if self.rng.random() >= self.wild else drawn

    def _of(self, hint: Any, shape: tuple[int, ...]) -> Any:
        """A value within the limits of a type."""
        origin, inner = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._limited(inner[0], inner[1], shape)
        if origin in (Union, UnionType):
            return self._of(self._one(list(inner)), shape)
        if origin is Literal:
            return self._one(list(inner))
        if origin is np.ndarray:
            return self._array(get_args(inner[1])[0], Within(), shape)
        if origin is tuple:
            return [self._of(each, shape) for each in inner]
        if origin is Sequence:
            return [self._of(inner[0], shape) for _ in range(int(self.rng.integers(0, 4)))]
        if is_family(hint):
            return self._of(one_of(hint), shape)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            return self._struct(hint)
        plain: dict[Any, Any] = {
            str: "v", bytes: b"some bytes", bool: bool(self.rng.random() < 0.5), NoneType: None,
            int: int(self.rng.integers(-3, 10)), float: self._number(-LARGEST, LARGEST),
        }  # fmt: skip
        return plain[hint]

    def of_each_kind(self, op: Op) -> list[dict[str, Any]]:
        """Nothing hostile: with noise of each kind, and over a model of each kind where the op works on one.

        Of networks with embeddings over all encodings: few ops work on them, and an encoding may have been refused.
        """
        if "model" not in op.parameters.hints:
            return [self.arguments(op, wild=0.0, **noise) for noise in self.noises(op) for _ in range(CALM)]
        models = self.shapes.models.items()
        kinds = {n if isinstance(spec, Bottom) else n[:-1]: (n, encoding) for n, (encoding, spec) in models}.values()
        found = []
        for (model, encoding), noise in product(kinds, self.noises(op)):
            found.append(self.arguments(op, wild=0.0, **{"model": model, "encoding": encoding} | noise))
        return found

    def noises(self, op: Op) -> list[dict[str, Any]]:
        """The arguments that make an op private, with noise of each kind that they take."""
        if not isinstance(op.private, tuple):
            return [{}]
        found: list[dict[str, Any]] = [{}]
        for name in op.private:
            kinds = [each for each in get_args(op.parameters.hints[name]) if each is not NoneType]
            told: list[Any] = [self.noise(kind) for kind in kinds] or [True]
            found = [{**known, name: each} for known in found for each in told]
        return found

    def noise(self, hint: type[msgspec.Struct]) -> dict[str, Any]:
        """Noise of some kind, within limits."""
        self.wild = self.most_wild
        return self._struct(hint)

    def _struct(self, hint: type[msgspec.Struct]) -> dict[str, Any]:
        """As it travels; some fields may be hostile."""
        config = hint.__struct_config__
        found: dict[str, Any] = {} if config.tag is None else {str(config.tag_field): config.tag}
        for each in msgspec.structs.fields(hint):
            found[each.name] = self._wild(each.type) if self.rng.random() < self.wild else self._of(each.type, ())
        return found

    def _limited(self, hint: Any, limits: Any, shape: tuple[int, ...]) -> Any:
        if isinstance(limits, Within):
            return self._array(get_args(get_args(hint)[1])[0], limits, shape)
        assert isinstance(limits, Meta)
        if limits.pattern is not None:
            return "v"
        if get_origin(hint) is Sequence:
            return [self._of(get_args(hint)[0], shape) for _ in range(int(self.rng.integers(0, 3)))]
        least, most = limits.ge, limits.le
        assert least is not None
        assert most is not None
        if hint is int:
            return int(
                self._one([least, least + 1, least + 2, min(most, 7), most if self.rng.random() < 0.1 else least])
            )
        return self._number(float(least), float(most))

    def _number(self, least: float, most: float) -> float:
        """One of any size between limits, at their edge too."""
        small = max(least, 1e-30 if least <= 0 else least)
        size = 10.0 ** round(self.rng.uniform(math.log10(small), math.log10(min(most, 1e30))))  # few: costs are cached
        size = min(max(size, least), most)
        return float(self._one([least, most, min(max(1.0, least), most), size, size, min(max(0.5, least), most)]))

    def _array(self, declared: Any, limits: Within, shape: tuple[int, ...]) -> Any:
        number = get_origin(declared) or declared
        shape = shape if len(shape) in limits.dimensions else (math.prod(shape),)
        if not issubclass(number, np.floating):
            kind = np.uint8 if number is np.uint8 else np.int32
            return self.rng.integers(0, max(1, self.shapes.rows), shape).astype(kind)
        size = 10.0 ** self._one([0, 0, 0, -3, 3, *([-168, -100, 60, 99] if self.rng.random() < 0.3 else [])])
        values = self.rng.normal(size=shape) * size
        if self.rng.random() < 0.2:
            values = values * 10.0 ** self.rng.uniform(-300, 0, shape)
        values = np.abs(values) if limits.least > 0 else values
        return np.clip(values, limits.least, limits.most)

    def _family(self) -> str:
        known = self.shapes.families.get(self.columns[-1]) if self.columns else None
        return known or ("text" if self.rng.random() < 0.8 else "number")

    def _digests(self) -> Any:
        known = list(self.shapes.digests.values())
        some = known[: int(self.rng.integers(0, len(known) + 1))]
        return np.array([*some, *(self.rng.integers(0, 256, 16) for _ in range(2))], np.uint8).reshape(-1, 16)

    def _wild(self, hint: Any) -> Any:
        """Whatever: of the type but far out, or of another."""
        array = self.rng.choice(FLOATS, tuple(self.rng.integers(0, 4, int(self.rng.integers(0, 4)))))
        arrays = [array, np.zeros((0, 5000)), np.zeros((3, 0)), np.ones(3, np.int32), np.ones(2, np.float32)]
        others: list[Any] = [None, True, [], [[]], ["x", "y"], [1] * 70_000, b"", *TEXTS[:3]]
        drawn = self.rng.random()
        if drawn < 0.25:
            return float(self._one(list(FLOATS)))
        if drawn < 0.4:
            return self._one(list(WHOLE))
        if drawn < 0.55:
            return self._one(list(TEXTS))
        return self._one(arrays) if drawn < 0.8 else self._one(others)

    def _one(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]
