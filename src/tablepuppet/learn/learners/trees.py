"""Gradient-boosted trees over a relation: names and defaults of scikit-learn's HistGradientBoosting."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.learners.estimator import ELSEWHERE
from tablepuppet.learn.learners.learner import Learner, label_of
from tablepuppet.learn.learners.not_fitted import check_fitted
from tablepuppet.learn.learners.picture import check_kind, write
from tablepuppet.learn.learners.tasks import Classifier, Regressor
from tablepuppet.learn.learners.tree_plot import draw_importances, draw_tree
from tablepuppet.learn.learners.watch import Watch, Watched
from tablepuppet.learn.loss.growing import ClassWeighted, Gamma, Poisson, Quantile, TreeLoss
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.losses import Loss, Squared
from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.registry import learner
from tablepuppet.learn.settings import COUNT, NUMBER, RATE, SWITCH, Auto, Kind, setting
from tablepuppet.learn.solve.schedule import RESERVE, VALIDATION, Cost, Costs, RoundAllowance, Schedule
from tablepuppet.learn.tables.model import Spec
from tablepuppet.learn.trees.boost import Sample, boost, constant_hessian, first_scores
from tablepuppet.learn.trees.cells import MOST_BINS
from tablepuppet.learn.trees.export import Columns, xgboost_json
from tablepuppet.learn.trees.grow import Growth
from tablepuppet.learn.trees.model import Done, SavedTrees, TreeModel, TreeOutputs, packed, unpacked
from tablepuppet.learn.trees.permuted import changes
from tablepuppet.learn.trees.shapley import contributions
from tablepuppet.learn.trees.splits import SplitRule
from tablepuppet.learn.trees.tree import Bits, add_scores
from tablepuppet.mapping.joined_rows import SCORES, Block, JoinedRows
from tablepuppet.operators.client import Client, Pending
from tablepuppet.operators.dealing import dealt
from tablepuppet.prep.encode.encode import Encoding, apply_encoding
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.runs.table_view import Records
from tablepuppet.spelling import attributes_explained, did_you_mean, names_checked, shows
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn
from tablepuppet.store.parts import Stored
from tablepuppet.wire.engine import Engine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Masks = dict[str, NDArray[np.bool_]]
"""By table, which columns; see `Growth`."""
Draw = Callable[[int, int], Masks]
Counts = NDArray[np.integer]
Inside = Callable[[frozenset[tuple[str, int]]], Masks]
Signs = dict[str, NDArray[np.int8]]
MANY = 10_000  # joined rows, above which early_stopping="auto" holds some out, as scikit-learn
PARTS = 64  # into which rows of the label's table are dealt: a round takes some of these parts
LEVELS = 3  # more than a balanced tree has, about, where trees grow best first
OPTIONAL = Kind("a whole number, at least 1, or None", lambda value: value is None or COUNT.fits(value))
LEAVES = Kind("a whole number, at least 2, or None", lambda value: value is None or (COUNT.fits(value) and value > 1))
BINS = Kind(f"a whole number from 2 to {MOST_BINS}", lambda value: COUNT.fits(value) and 2 <= value <= MOST_BINS)
PART = Kind("a number above 0, at most 1", lambda value: RATE.fits(value) and value <= 1)
FEATURES = Kind(
    "a number above 0, at most 1, or 'sqrt'",
    lambda value: value == "sqrt" if isinstance(value, str) else PART.fits(value),
)
BELOW = Kind("a number above 0 and below 1", lambda value: RATE.fits(value) and value < 1)
QUANTILE = Kind(
    "a number from 0 to 1, or None", lambda value: value is None or (NUMBER.fits(value) and float(value) <= 1)
)
STOPPING = Kind(
    "'auto', True or False", lambda value: value == "auto" if isinstance(value, str) else SWITCH.fits(value)
)
SIGNS = Kind(
    "a dict of columns with -1, 0 or 1, or None",
    lambda value: (
        value is None
        or (isinstance(value, Mapping) and all(isinstance(k, str) and v in (-1, 0, 1) for k, v in value.items()))
    ),
)
SETS = Kind(
    "a list of lists of columns, or None",
    lambda value: (
        value is None
        or (_is_list(value) and all(_is_list(each) and all(isinstance(name, str) for name in each) for each in value))
    ),
)
WEIGHTS = Kind(
    "'balanced', a dict of weights of classes, or None",
    lambda value: (
        value is None
        or value == "balanced"
        or (isinstance(value, Mapping) and all(RATE.fits(each) for each in value.values()))
    ),
    write=lambda value: value if isinstance(value, str) else None,  # events and saved models name no class
)
LOSSES = ("squared_error", "absolute_error", "quantile", "poisson", "gamma")
LOSS = Kind(f"one of {', '.join(map(repr, LOSSES))}", lambda value: isinstance(value, str) and value in LOSSES)
LOG_LOSS = Kind("'log_loss'", lambda value: isinstance(value, str) and value == "log_loss")


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence | Set) and not isinstance(value, str)


@attributes_explained(
    ELSEWHERE
    | {
        **dict.fromkeys(("coef_", "summary"), "trees have feature_importances_, and contributions(relation) by table"),
        **dict.fromkeys(("shap_values", "pred_contribs"), "model.contributions(relation) has Shapley values"),
        **dict.fromkeys(("get_booster", "booster_", "save_model"), "model.export('model.json') is for XGBoost"),
        "contribution_names_": "model.contributions(relation) sets it",
    }
)
@shows("contributions", "export", "importances", "permutation_importances", "staged_evaluate")
class GradientBoosting(Learner):
    """Boosted trees; each splits by columns of any table."""

    seeks_optimum: ClassVar[bool] = False
    is_mean: ClassVar[bool] = False  # whether trees are averaged; else they are added up
    rounds_setting: ClassVar[str] = "max_iter"
    _private_instead: ClassVar[str] = "tp.LinearRegression, tp.LogisticRegression or tp.MLP*"
    l2: float = 0.0  # these two are of other learners
    patience: int = 0

    learning_rate: float = setting(default=0.1, kind=RATE, help="what the scores of a tree's leaves are multiplied by")
    max_iter: int = setting(default=100, kind=COUNT, help="rounds: in each a tree, or one for each of several classes")
    max_leaf_nodes: int | None = setting(default=31, kind=LEAVES, help="leaves of a tree; None: no limit")
    max_depth: int | None = setting(default=None, kind=OPTIONAL, help="splits from the root to a leaf; None: no limit")
    min_samples_leaf: int = setting(default=20, kind=COUNT, help="joined rows of a leaf, at least")
    l2_regularization: float = setting(default=0.0, kind=NUMBER, help="added to the Hessian of a leaf")
    max_bins: int = setting(
        default=MOST_BINS, kind=BINS, help="bins of a column of numbers; missing values have one more"
    )
    min_gain: float = setting(default=0.0, kind=NUMBER, help="a split gains more than this")
    early_stopping: bool | Auto = setting(
        default="auto",
        kind=STOPPING,
        help="stop by rows held out of the label's table: `'auto'` does so above 10,000 joined rows",
    )
    validation_fraction: float = setting(default=0.1, kind=BELOW, help="of the label's table, held out to stop by")
    n_iter_no_change: int = setting(
        default=10, kind=COUNT, help="stop when the loss of rows held out, or of `validation`, has not fallen so long"
    )
    subsample: float = setting(
        default=1.0, kind=PART, help="share of the label table's rows that each round learns from, in steps of 1/64"
    )

    max_features: float | str = setting(
        default=1.0,
        kind=FEATURES,
        help="share of all columns that each node may be split by, drawn anew for each node; `'sqrt'`: as many as the "
        "square root of their number",
    )
    monotonic_cst: Mapping[str, int] | None = setting(
        default=None,
        kind=SIGNS,
        help="by `alias.column`: 1 if predictions may not fall with it, -1 if they may not rise; not for categories",
    )
    interaction_cst: Sequence[Sequence[str]] | None = setting(
        default=None,
        kind=SETS,
        help="lists of `alias.column`: columns on a way from the root to a leaf are from one of them; columns in none "
        "are a list of their own",
    )

    warm_start: bool = setting(
        default=False,
        kind=SWITCH,
        help="a further fit over the same relation goes on after the rounds that the model has",
    )

    # Before a fit

    @property
    def rounds(self) -> int:
        """Rounds that are asked for."""
        return int(getattr(self, self.rounds_setting))

    def _patient_for(self, own: bool) -> int:
        return self.rounds + 1 if self.early_stopping is False else self.n_iter_no_change

    @property
    def held_out(self) -> float:
        """The share of the label table's rows that are held out to stop by."""
        return float(self.validation_fraction)

    def _holds_out(self, relation: Relation) -> bool:
        return len(relation) > MANY if isinstance(self.early_stopping, str) else self.early_stopping

    def spec(self, outputs: int) -> Spec:
        """Trees have no model of one table by itself."""
        raise AssertionError("trees split by columns of all tables")

    def parameters_of(self, alias: str, width: int, outputs: int) -> int:
        """There is no noise to compare with."""
        return 1

    def promise_for(self, plan: Plan, rows: Mapping[str, int], privacy: Privacy | None) -> FeaturePromise | None:
        """None, or a refusal: every level of every tree would need its own noise, for each row at each bin."""
        if privacy is None or not privacy.is_feature_private:
            return None
        raise PrivacyError(
            f"{type(self).__name__} cannot be fitted with noise on features: each level of each tree answers with bits "
            f"of single rows, which have no form with noise; leave feature_epsilon out, or use {self._private_instead}"
        )

    def _costs(self, batches: int) -> Costs:
        """Replies of a tree that is balanced, about: how deep trees get is known when they are grown."""
        leaves = self.max_leaf_nodes or 2 ** (LEVELS + 1)
        levels = min(self.max_depth or leaves, math.ceil(math.log2(leaves)) + LEVELS)
        return Costs(Cost(0, levels), Cost(0, 2 * levels))

    def plan_rounds(self, rows: int, allowed: Callable[[int], RoundAllowance]) -> None:
        """The rounds that are asked for; it ends before one that parties do not allow."""
        allowance = allowed(1)
        allowance.check(
            1, {"max_leaf_nodes": self.max_leaf_nodes}, "lower max_leaf_nodes or max_depth", self.rounds_setting
        )
        most = allowance.most_rounds()
        self._schedule = Schedule(
            self.rounds, rows, tightest=allowance.tightest(), is_full=most is not None and most < self.rounds
        )

    def more_rounds_by(self, rounds: int) -> str:
        """Advice to a user whose fit has ended early."""
        return f"set {self.rounds_setting} above {rounds:,}"

    def fewer_replies_by(self) -> list[str]:
        """Settings that need fewer replies in a round, where parties allow no more."""
        return ["lower max_leaf_nodes or max_depth"]

    # The fit

    def _train(self, relation: Relation, loss: JoinedLoss, watch: Watch) -> tuple[Watched, Array]:
        client = relation.client
        model = self._continued(client, watch)
        if model is None:
            most = int(self.max_bins)
            model = TreeModel(client, loss.rows, self.encoding_, relation.wire, most, is_mean=self.is_mean)
        self._aliases, self._words = list(model.aliases), dict(model.words)
        growth = Growth(
            SplitRule(float(self.l2_regularization), int(self.min_samples_leaf), float(self.min_gain)),
            self.max_leaf_nodes,
            self.max_depth,
            float(self.learning_rate),
            constant_hessian(loss.rows, loss.pointwise),
            *self._narrowed(model),
        )
        asked = [(client, model.tables, Costs(Cost(0, 1), Cost(0, 2)))]
        asked += [] if watch.validation is None else [(watch.validation.client, model.tables, VALIDATION)]
        intercept, self.converged_ = boost(
            model, loss, growth, self.rounds, self.seed, watch.of(model), self._sample(relation),
            partial(_may_ask, asked, _reserve(RoundAllowance(asked).left())),
        )  # fmt: skip
        model.done = Done(intercept, tuple(self.history_))
        return model, intercept

    def _continued(self, client: Client, watch: Watch) -> TreeModel | None:
        """The model of the fit before, to go on with; None if there is none, or if it does not count."""
        before = self.__dict__.get("_model") if self.warm_start else None
        if before is None:
            return None
        if not isinstance(before, TreeModel) or before.lou.client is not client:
            raise LearnError(
                "warm_start goes on over the relation of the fit before, in the same session, which has the splits: "
                "give the same relation, and validation= or early_stopping=False, as rows held out are others in each "
                "fit; or set warm_start=False"
            )
        rounds = len(before.forest)
        if self.rounds <= rounds:
            raise LearnError(f"warm_start: the model has {rounds:,} rounds; set {self.rounds_setting} above that")
        model = copy(before)
        model.forest, self.encoding_ = list(before.forest), before.encoding
        if watch.validation is not None:
            apply_encoding(watch.validation.client, self.encoding_)
        watch.prepared(1)
        self.history_ = Records(before.done.history[:rounds])
        return model

    def _narrowed(self, model: TreeModel) -> tuple[Draw | None, Inside | None, Signs | None]:
        """Which columns a node may be split by, and monotone constraints, by table."""
        names = self._columns_of(model.aliases)
        places = {name: (alias, place) for alias, listed in names.items() for place, name in enumerate(listed)}
        widths = {alias: len(listed) for alias, listed in names.items()}
        draw = inside = None
        share = math.sqrt(len(places)) if isinstance(self.max_features, str) else self.max_features * len(places)
        if share < len(places):
            share = max(1, round(share))
            draw = partial(_drawn, list(places.values()), share, widths)
        if self.interaction_cst is not None:
            sets = [{self._place(places, name) for name in each} for each in self.interaction_cst]
            rest = set(places.values()).difference(*sets)
            inside = partial(_joined, [*sets, *([rest] if rest else [])], widths)
        signs: Signs | None = None
        if self.monotonic_cst is not None:
            signs = {alias: np.zeros(width, np.int8) for alias, width in widths.items()}
            for name, sign in self.monotonic_cst.items():
                alias, place = self._place(places, name)
                if place >= len(self.encoding_.numbers[alias]):
                    raise LearnError(f"monotonic_cst: {name!r} has categories, which have no order")
                signs[alias][place] = sign
        return draw, inside, signs

    def _place(self, places: Mapping[str, tuple[str, int]], name: str) -> tuple[str, int]:
        """The table and place of a column, by ``alias.column`` or ``column``."""
        found = [place for each, place in places.items() if name in (each, each.split(".", 1)[1])]
        if len(found) != 1:
            raise LearnError(f"{name!r} is no column that the model learns from{did_you_mean(name, list(places))}")
        return found[0]

    def _columns_of(self, aliases: Sequence[str]) -> dict[str, list[str]]:
        """By table, the columns that its splits count: those of numbers, then those of categories."""
        encoding = self.encoding_
        return {alias: [column.qualified for column in _columns_of(encoding, alias)] for alias in aliases}

    def _sample(self, relation: Relation) -> Sample | None:
        """The rows of the label's table that each round learns from; None: all."""
        share, label = round(PARTS * self.subsample), relation.query.label
        if share == PARTS or label is None:
            return None
        return self._drawn_rows(relation, label.alias, partial(_some_parts, max(share, 1)))

    def _drawn_rows(self, relation: Relation, alias: str, times: Callable[[np.random.Generator], Counts]) -> Sample:
        """Rows of a table in 64 parts, of which each round takes some so often."""
        rows = relation.client.tables[alias].rows
        rng = np.random.default_rng([self.seed, 1])
        parts = dealt(relation.client, alias, rng.permutation(np.arange(rows) % PARTS))
        return Sample(alias, lambda number: times(np.random.default_rng([self.seed, 2, number]))[parts])

    def _without_features(self, loss: JoinedLoss) -> dict[str, float]:
        """Loss and metric of the scores that boosting begins with."""
        loss.set_constant(first_scores(loss))
        value = loss.evaluate()
        return {"loss": value, "metric": self.metric(loss, value)}

    # After a fit

    @property
    def _trees(self) -> TreeOutputs:
        check_fitted(self)
        assert isinstance(self._model, TreeOutputs), "`_train` and `saved` make it"
        return self._model

    @property
    def feature_importances_(self) -> dict[str, float]:
        """By ``alias.column``: its share of what all splits gain; 0 for columns that no tree splits by."""
        return self.importances()

    @property
    def trees_(self) -> list[list[dict[str, Any]]]:
        """The nodes of each tree, the root first: table, column, gain, joined rows, score; thresholds stay with their
        owners. Of several classes, the trees of a round follow each other.
        """
        trees = self._trees
        names = self._columns_of(trees.aliases)
        found = [tree.rows(trees.aliases) for listed in trees.final for tree in listed]
        for node in (node for tree in found for node in tree):
            node["column"] = names[node["table"]][node["column"]] if node["table"] is not None else None
        return found

    def importances(self, kind: Literal["gain", "cover"] = "gain") -> dict[str, float]:
        """By ``alias.column``: its share of what all splits gain, or of the joined rows that they split."""
        if kind not in ("gain", "cover"):
            raise LearnError(f"importances: kind is 'gain' or 'cover', not {kind!r}; see permutation_importances too")
        trees = self._trees
        names = self._columns_of(trees.aliases)
        found = {name: 0.0 for listed in names.values() for name in listed}
        for tree in (tree for listed in trees.forest for tree in listed):
            weights = tree.gains if kind == "gain" else tree.counts
            for node in tree.inner:
                found[names[trees.aliases[tree.tables[node]]][tree.columns[node]]] += float(weights[node])
        total = sum(found.values())
        return {name: each / total for name, each in found.items()} if total else found

    @names_checked
    def permutation_importances(self, relation: Relation, *, repeats: int = 5) -> dict[str, float]:
        """By ``alias.column``: how much `score` falls if the column's values change places among the joined rows.

        It is the mean of so many ``repeats``. Parties are asked once: the bits of splits by the column change places.
        """
        if not COUNT.fits(repeats):
            raise LearnError(f"permutation_importances: repeats is {COUNT.allowed}, not {repeats!r}")
        labels, bits = self._labels_and_bits(relation, "permutation_importances")
        trees, rows = self._trees, relation.client.rows.of_scores(self._trees.outputs)
        *_, before = self._stages(rows, bits)
        best, found, rng = self._scored(labels, before), dict[str, float](), np.random.default_rng([self.seed, 4])
        for table, names in enumerate(self._columns_of(trees.aliases).values()):
            for column, name in enumerate(names):
                fallen = 0.0
                for _ in range(repeats):
                    order = rng.permutation(len(rows))
                    change = changes(rows, trees.final, trees.aliases, bits, (table, column), order)
                    fallen += best - self._scored(labels, before + change.reshape(before.shape))
                found[name] = fallen / repeats
        return found

    @names_checked
    def staged_evaluate(self, relation: Relation) -> Records:
        """The metrics of `evaluate` after each round; parties are asked once."""
        labels, bits = self._labels_and_bits(relation, "staged_evaluate")
        rows = relation.client.rows.of_scores(self._trees.outputs)
        stages = self._stages(rows, bits)
        return Records(
            {"round": number, **self._measured(labels, self._predicted(scores))}
            for number, scores in enumerate(stages, start=1)
        )

    def _labels_and_bits(self, relation: Relation, verb: str) -> tuple[NDArray[Any], Bits]:
        """Labels of the joined rows, and the bits of all splits."""
        self.check_relation(relation, verb)
        label = label_of(relation)
        asked = self._ask_labels(relation.client, label)
        apply_encoding(relation.client, self.encoding_)
        bits = self._trees.all_bits(relation.client)
        labels = self._labels(relation.client, label, asked, "here")
        self._note_labels(relation)
        return labels, bits

    def _stages(self, rows: JoinedRows, bits: Bits) -> Iterator[Array]:
        """Scores of joined rows after each round, the last of which are those of the model."""
        trees = self._trees
        intercept = self.intercept_[0] if trees.outputs == 1 else self.intercept_
        rows.set_scores(np.zeros(len(rows)) if trees.outputs == 1 else np.zeros((len(rows), trees.outputs), order="F"))
        for number, listed in enumerate(trees.forest, start=1):
            add_scores(rows, [listed], trees.aliases, bits, dict.fromkeys(trees.aliases, 0))
            scores = rows.at_once(_scores_of)
            yield intercept + (scores / number if trees.is_mean else scores)

    def _scored(self, labels: NDArray[Any], scores: Array) -> float:
        found = self._measured(labels, self._predicted(scores))
        return float(found["accuracy" if self.learns_classes else "r2"])

    @names_checked
    def plot(
        self, path: str | Path | None = None, *, kind: Literal["history", "importances", "tree"] = "history",
        tree: int = 0,
    ) -> Figure | None:  # fmt: skip
        """Draw loss and metric by round, or shares of columns in what splits gain, or one tree: into a .png, .svg or
        .pdf file, or as a figure of matplotlib, which a notebook shows.
        """
        if kind == "history":
            return super().plot(path)
        if kind not in ("importances", "tree"):
            raise LearnError(f"plot: kind is 'history', 'importances' or 'tree', not {kind!r}")
        if kind == "importances":
            figure = draw_importances(self.feature_importances_, f"{type(self).__name__}: what splits gain")
        else:
            listed = self.trees_
            if not 0 <= tree < len(listed):
                raise LearnError(f"plot: tree is a number from 0 to {len(listed) - 1}, not {tree!r}")
            figure = draw_tree(listed[tree], f"{type(self).__name__}: tree {tree}")
        if path is None:
            return figure
        check_kind(Path(path))
        write(figure, Path(path))
        return None

    @names_checked
    def contributions(self, relation: Relation, *, by: Literal["table", "column"] = "table") -> Array:
        """What each table adds to the score of every joined row: exact Shapley values of the trees' columns, summed.

        (joined rows, tables + 1), of several classes (joined rows, tables + 1, classes); the last is the base value,
        and the sum of all is the score. ``contribution_names_`` has the names. Where columns are unknown, shares of the
        joined rows of the fit decide (path-dependent). ``by="column"`` does not sum columns up.
        """
        self.check_relation(relation, "contributions")
        if by not in ("table", "column"):
            raise LearnError(f"contributions: by is 'table' or 'column', not {by!r}")
        trees, client = self._trees, relation.client
        names, groups = self._columns_of(trees.aliases), dict[tuple[int, int], int]()
        for table, alias in enumerate(trees.aliases):
            for column in range(len(names[alias])):
                groups[table, column] = table if by == "table" else len(groups)
        listed = list(trees.aliases) if by == "table" else [name for each in names.values() for name in each]
        self.contribution_names_ = [*listed, "base"]
        apply_encoding(client, self.encoding_)
        bits = trees.all_bits(client)
        found = contributions(client.rows, trees.final, trees.aliases, bits, groups, trees.outputs)
        found[:, -1] += self.intercept_
        return found[..., 0] if trees.outputs == 1 else found

    @names_checked
    def export(self, path: str | Path, *, format: Literal["xgboost"] = "xgboost") -> None:
        """Write the trees as a JSON file that XGBoost loads, with columns in the order of ``feature_names``.

        Categories are their codes, as in ``categories_``. PrivacyError where a policy does not release thresholds
        (PARAMETERS).
        """
        if format != "xgboost":
            raise LearnError(f"export: format is 'xgboost', not {format!r}")
        if Path(path).suffix != ".json":
            raise LearnError(f"export: name the file .json, by which XGBoost knows what is in it, not {str(path)!r}")
        trees = self._trees
        names, first = self._columns_of(trees.aliases), dict[str, int]()
        for alias in trees.aliases:
            first[alias] = sum(len(names[each]) for each in first)
        sizes = [
            size
            for alias in trees.aliases
            for size in [
                *[0] * len(self.encoding_.numbers[alias]),
                *(each.size for each in self.encoding_.categories[alias]),
            ]
        ]
        columns = Columns([name for each in names.values() for name in each], sizes, first)
        text = xgboost_json(trees.final, trees.aliases, trees.parameters(), columns, self._objective(), self.intercept_)
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise LearnError(f"export: {path} cannot be written ({error.strerror})") from error

    @abstractmethod
    def _objective(self) -> str:
        """What XGBoost calls the loss."""

    # Saving

    def facts(self) -> dict[str, Any]:
        """Facts of the fit, and which tables trees name by numbers."""
        trees = self._trees
        return super().facts() | {"aliases": list(trees.aliases), "words": dict(trees.words)}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The trees."""
        return super().arrays() | packed(self._trees.forest)

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `facts` and `arrays` say."""
        super().restore(facts, arrays)
        self._aliases, self._words = list(facts["aliases"]), dict(facts["words"])
        self._forest = unpacked(arrays, len(self.intercept_))

    def saved(self, stored: Stored, engine: Engine, wire: str) -> Any:
        """A model with the stored splits, for predictions only."""
        outputs = len(self.intercept_)
        return SavedTrees(
            self._forest, self._aliases, self._words, outputs, self.encoding_, stored, engine, wire,
            is_mean=self.is_mean,
        )  # fmt: skip


@learner
class GradientBoostingRegressor(Regressor, GradientBoosting):
    """Regression by boosted trees."""

    loss: str = setting(
        default="squared_error", kind=LOSS, help="what is minimised; of `poisson` and `gamma` predictions are positive"
    )
    quantile: float | None = setting(default=None, kind=QUANTILE, help="of `loss='quantile'`: which one")

    def check_settings(self) -> None:
        """Raise LearnError if a setting is out of range, or quantile and loss do not fit."""
        super().check_settings()
        if (self.loss == "quantile") != (self.quantile is not None):
            raise LearnError("loss='quantile' needs quantile, a number from 0 to 1, and other losses take none")

    def _pointwise(self) -> Loss:
        if self.loss == "absolute_error":
            return Quantile(0.5, 2.0)
        if self.loss == "quantile":
            return Quantile(float(self.quantile or 0.0))
        return {"poisson": Poisson(), "gamma": Gamma()}.get(self.loss, Squared())

    def _loss(self, client: Client, labels: NDArray[Any]) -> JoinedLoss:
        return JoinedLoss(self._pointwise(), client.rows.of_scores(1, labels))

    def _prepare(self, client: Client, label: OutputColumn, asked: Pending) -> JoinedLoss:
        loss = super()._prepare(client, label, asked)
        if isinstance(loss.pointwise, TreeLoss):
            least, total = loss.rows.at_once(_least_and_sum)
            if wrong := loss.pointwise.check(least, total):
                raise LearnError(f"{wrong}; label {label.qualified} has others {client.owners(label.alias)}")
        return loss

    def metric(self, loss: JoinedLoss, value: float) -> float:
        """The root mean squared error, whatever is minimised."""
        if isinstance(loss.pointwise, Squared):
            return super().metric(loss, value)
        has_logs = isinstance(loss.pointwise, TreeLoss) and loss.pointwise.has_logs
        return math.sqrt(loss.rows.total(_squared_errors, has_logs) / loss.rows.joined)

    def _objective(self) -> str:
        return {"poisson": "count:poisson", "gamma": "reg:gamma"}.get(self.loss, "reg:squarederror")

    def _predicted(self, scores: Array) -> Array:
        return np.exp(scores) if self.loss in ("poisson", "gamma") else scores


def _scores_of(block: Block) -> Array:
    return np.array(block[SCORES])


def _squared_errors(block: Block, has_logs: bool) -> float:
    predicted = np.exp(block[SCORES]) if has_logs else block[SCORES]
    away = (predicted - block.labels) ** 2
    return float(away.sum() if block.weights is None else block.weights @ away)


def _least_and_sum(block: Block) -> tuple[float, float]:
    return float(block.labels.min()), float(block.labels.sum(dtype=np.float64))


class WeightedClasses(Classifier):
    """A classifier whose classes may have weights."""

    class_weight: Mapping[Any, float] | str | None = setting(
        default=None,
        kind=WEIGHTS,
        help="how much rows of a class count; `'balanced'`: rows of all classes together as much",
    )

    def _prepare(self, client: Client, label: OutputColumn, asked: Pending) -> JoinedLoss:
        self._by_class: tuple[float, ...] | None = None
        loss = super()._prepare(client, label, asked)
        given, classes = self.class_weight, len(self.classes_)
        if given is None:
            return loss
        if isinstance(given, str):
            counts = loss.rows.total(_count_classes, classes)
            self._by_class = tuple(loss.rows.joined / (classes * np.maximum(counts, 1)))
        else:
            known = self.classes_.tolist()
            strange = [each for each in given if each not in known]
            if strange:
                raise LearnError(f"class_weight: {strange[0]!r} is no class of label {label.qualified}")
            self._by_class = tuple(float(given.get(each, 1.0)) for each in known)
        return replace(loss, pointwise=ClassWeighted(loss.pointwise, self._by_class))

    def _loss(self, client: Client, labels: NDArray[Any]) -> JoinedLoss:
        loss = super()._loss(client, labels)
        if getattr(self, "_by_class", None) is None:
            return loss
        return replace(loss, pointwise=ClassWeighted(loss.pointwise, self._by_class or ()))


@learner
class GradientBoostingClassifier(WeightedClasses, GradientBoosting):
    """Classification of two or more classes by boosted trees."""

    loss: str = setting(default="log_loss", kind=LOG_LOSS, help="what is minimised")

    def _objective(self) -> str:
        return "binary:logistic" if len(self.classes_) == 2 else "multi:softprob"


def _count_classes(block: Block, classes: int) -> NDArray[np.intp]:
    return np.bincount(block.labels, minlength=classes)


def _reserve(left: int | None) -> int:
    """Replies that are left for calls after the fit, if there are as many."""
    return RESERVE if left is not None and left > 2 * RESERVE else 0


def _may_ask(asked: Sequence[tuple[Client, Iterable[str], Costs]], reserve: int) -> bool:
    """Whether parties allow one more level and its reserve."""
    return all(table.most_rounds(reserve) for table in RoundAllowance(asked).tables)


def _columns_of(encoding: Encoding, alias: str) -> list[OutputColumn]:
    numbers, categories = encoding.numbers[alias], encoding.categories[alias]
    return [*(each.column for each in numbers), *(each.column for each in categories)]


def _some_parts(share: int, rng: np.random.Generator) -> Counts:
    """So many of the parts once, the others not at all."""
    return (rng.permutation(PARTS) < share).astype(np.int64)


def _drawn(places: Sequence[tuple[str, int]], share: int, widths: Mapping[str, int], seed: int, node: int) -> Masks:
    """Some columns, drawn for a node."""
    chosen = np.random.default_rng([seed, node, 3]).permutation(len(places))[:share]
    return _masks([places[each] for each in chosen], widths)


def _joined(sets: Sequence[set[tuple[str, int]]], widths: Mapping[str, int], path: frozenset[tuple[str, int]]) -> Masks:
    """The columns of all sets that have all columns above a node."""
    return _masks(set().union(*(each for each in sets if path <= each)), widths)


def _masks(places: Iterable[tuple[str, int]], widths: Mapping[str, int]) -> Masks:
    found = {alias: np.zeros(width, bool) for alias, width in widths.items()}
    for alias, place in places:
        found[alias][place] = True
    return found
