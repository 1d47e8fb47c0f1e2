"""Networks across parties (SplitNN): a bottom network for each table, and a top network over their embeddings.

`tp.MLP*` add one score per table. These networks can also learn interactions between columns of different tables; their
tables must allow that embeddings of rows are released.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.learners.learner import Learner
from tablepuppet.learn.learners.network import LAYERS
from tablepuppet.learn.learners.planner import tables_of
from tablepuppet.learn.learners.tasks import Classifier, Regressor
from tablepuppet.learn.learners.watch import Watch, Watched
from tablepuppet.learn.loss.joined_loss import JoinedLoss, in_units, out_of_units
from tablepuppet.learn.registry import learner
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.settings import COUNT, RATE, Auto, Kind, or_auto, setting
from tablepuppet.learn.solve.plateau import ended_flat
from tablepuppet.learn.solve.schedule import Cost, Costs, RoundAllowance, Schedule, batches_of
from tablepuppet.learn.solve.sgd import falling
from tablepuppet.learn.split.bottom import BOTTOM, mlp, on_pixels
from tablepuppet.learn.split.bottoms import Cnn
from tablepuppet.learn.split.exchange import Exchange
from tablepuppet.learn.split.model import Embeddings, SavedSplitModel, SplitModel
from tablepuppet.learn.split.top import SideBySide, Top
from tablepuppet.learn.split.train import learn_by_batches
from tablepuppet.learn.tables.model import Bottom
from tablepuppet.learn.tables.narrow import Narrow
from tablepuppet.learn.threads import need_torch
from tablepuppet.party.arguments import one_of
from tablepuppet.relation import Relation
from tablepuppet.sql.plan import Plan
from tablepuppet.store.parts import Stored
from tablepuppet.wire.engine import Engine

STEPS = 6_000  # of "auto", about
EPOCHS = (5, 100)  # of "auto", at least and at most
BATCHES = 40  # of an epoch, with batches from 64 to 4,096 rows
WIRES = ("auto", "float16", "bfloat16")
EVERY_EPOCH = (
    "the embeddings of every row are released in every epoch, each by itself: no sum hides one, and noise that does in "
    "so many releases leaves nothing to learn from"
)
WIRE = Kind("'auto', 'float16' or 'bfloat16'", lambda value: isinstance(value, str) and value in WIRES)
NO_FEATURE = (
    "no feature is left to learn from, and networks across parties need one: select columns that are not constant, or "
    "see the warnings about columns"
)


class SplitLearner(Learner):
    """Learns by mini-batches of joined rows, of which parties release embeddings."""

    _own_patience: ClassVar[int] = 8
    _usual_lr: ClassVar[float] = 3e-3
    _to_lower: ClassVar[str] = "epochs"  # settings that let rows' embeddings be released less often
    _private_instead: ClassVar[str] = "tp.MLPClassifier, tp.MLPRegressor or FedOnce, which have a form with noise,"

    bottom: Bottom | Mapping[str, Bottom] = setting(
        default=mlp(), kind=BOTTOM, help="the network of each table, or a dict of them by alias (`tp.bottom`)"
    )
    epochs: int | Auto = setting(
        default="auto",
        kind=or_auto(COUNT),
        help="passes over the joined rows at most; `'auto'` holds out a tenth of the label's rows and stops when they "
        "gain no more",
    )
    batch_size: int | Auto = setting(default="auto", kind=or_auto(COUNT), help="joined rows of a batch")
    lr: float | Auto = setting(
        default="auto", kind=or_auto(RATE), help="learning rate of Adam; it falls to zero along half a cosine"
    )

    wire: Literal["auto", "float16", "bfloat16"] = setting(
        default="auto",
        kind=WIRE,
        help="precision of embeddings, and of gradients by them, on the wire: numbers of 16 bits take half the bytes "
        "of single precision; `'auto'`: that of the federation",
    )

    # Before a fit

    def check_settings(self) -> None:
        """Raise LearnError if a setting is out of range, or torch is not installed."""
        super().check_settings()
        need_torch()

    def check_plan(self, plan: Plan, *, validated: bool = False) -> None:
        """Raise unless a plan can be learned from, as far as the catalog shows; no party is asked."""
        self._check_privacy(plan)
        super().check_plan(plan, validated=validated)
        specs = self.specs(tables_of(plan.query))
        for alias, spec in specs.items():
            for shard in plan.tables[alias].shards:
                if shard.embeddings is None:
                    raise PrivacyError(
                        f"party {shard.party!r}, table {shard.name!r}: does not release EMBEDDINGS; use tp.MLP*, or "
                        "ask its operator to set embeddings = { max_width = ..., max_epochs = ... }",
                        rule="embeddings",
                    )
                widest = shard.embeddings[0]
                if widest is not None and spec.outputs > widest:
                    raise PrivacyError(
                        f"party {shard.party!r}, table {shard.name!r}: embeddings of its rows have at most {widest} "
                        f"numbers, not {spec.outputs}: set embedding to so many",
                        rule="embeddings.max_width",
                    )

    def _check_privacy(self, plan: Plan) -> None:
        """PrivacyError if the privacy that is asked for has no form here."""
        privacy = self.privacy
        if privacy is not None and (privacy.is_feature_private or privacy.secure_sum):
            raise PrivacyError(
                f"{type(self).__name__} has no form with noise on features or with secure sums: {EVERY_EPOCH}; use "
                "tp.MLPClassifier or tp.MLPRegressor (with noise also FedOnce), or leave these settings out"
            )

    def specs(self, aliases: Sequence[str]) -> dict[str, Bottom]:
        """The bottom network of each table; LearnError if one has none."""
        if not isinstance(self.bottom, Mapping):
            return dict.fromkeys(aliases, self.bottom)
        missing = [alias for alias in aliases if alias not in self.bottom]
        strange = [alias for alias in self.bottom if alias not in aliases]
        if strange:
            raise LearnError(
                f"bottom names {strange[0]!r}, which is no table with features: its keys are the aliases of the query, "
                f"here {', '.join(map(repr, aliases))}"
            )
        if missing:
            raise LearnError(f"bottom names no network for table {missing[0]!r}; tables with features: {aliases}")
        return {alias: self.bottom[alias] for alias in aliases}

    def _check_features(self, relation: Relation) -> None:
        """LearnError if there is no column to learn from: a network needs one, even to predict a constant."""
        if not self.encoding_.kept(relation.query.features):
            raise LearnError(NO_FEATURE)

    def spec(self, outputs: int) -> Any:
        """There is no one model of all tables: `specs` has them."""
        raise AssertionError("each table has a network of its own")

    def parameters_of(self, alias: str, width: int, outputs: int) -> int:
        """Those of a linear model: networks may have more parameters than rows, and learn if they stop early."""
        return width * outputs

    def _chosen_solver(self) -> str:
        return "adam"

    def more_rounds_by(self, rounds: int) -> str:
        """Advice to a user whose fit has stopped short of the optimum after so many epochs."""
        return f"set epochs above {rounds:,}, or to 'auto'"

    def fewer_replies_by(self) -> list[str]:
        """Settings that need fewer replies in a round, where parties allow no more."""
        return ["make batch_size larger"]

    def _costs(self, batches: int) -> Costs:
        """Embeddings are counted by row; of tables with several shards, each batch is a sum."""
        return Costs(Cost(0, 0), Cost(0, batches))

    def plan_rounds(self, rows: int, allowed: Any) -> None:
        """Choose epochs and batches for ``rows`` joined rows; PrivacyError if parties do not allow them."""
        size = self.batch_size
        if isinstance(size, str):
            size = int(min(max(64, 2 ** round(math.log2(max(rows / BATCHES, 1)))), 4096))
        batches = batches_of(rows, size)
        if isinstance(self.epochs, str):
            epochs = min(max(EPOCHS[0], STEPS // batches), EPOCHS[1])
            most = allowed(batches).most_rounds()
            epochs = epochs if most is None else max(1, min(epochs, most))
        else:
            epochs = self.epochs
        given = {"epochs": self.epochs, "batch_size": self.batch_size}
        allowed(batches).check(epochs, given, ", or ".join(self.fewer_replies_by()), "epochs")
        self._schedule = Schedule(epochs, size)

    def _allowance(self, relation: Relation, validation: Relation | None, batches: int) -> RoundAllowance:
        found = super()._allowance(relation, None, batches)
        found.tables = [table for table in found.tables if table.cost.each]
        return found

    def _row_releases(self, relation: Relation, alias: str, often: int, validated: bool, most: int) -> Cost:
        """How often the embedding of a row is released: once, and in an epoch, of which it is in ``often`` batches.

        Its party allows ``most`` times.
        """
        return Cost(0, often + validated)

    def _in_words(self, epochs: int) -> str:
        """The epochs of a fit, for an error."""
        return f"{epochs} epochs"

    def _fit_embeddings(self, relation: Relation, validated: bool) -> None:
        """Lower the epochs of "auto" to what parties allow; PrivacyError if they do not allow what is asked for."""
        size, epochs = self._schedule.batch_size, self._schedule.rounds
        batches = batches_of(len(relation), size)
        for alias in tables_of(relation.query):
            often = min(int(relation.client.tables[alias].counts.max(initial=1)), batches)  # in an epoch, of one row
            for shard in relation.plan.tables[alias].shards:
                most = None if shard.embeddings is None else shard.embeddings[1]
                if most is None:
                    continue
                cost = self._row_releases(relation, alias, often, validated, most)
                fitting = max((most - cost.once) // cost.each, 0) if cost.each else 0
                if isinstance(self.epochs, str) and cost.each:
                    epochs = min(epochs, fitting)
                if not epochs or cost.times(epochs) > most:
                    lower = f"set epochs to {fitting} or less" if fitting else f"lower {self._to_lower}"
                    raise PrivacyError(
                        f"party {shard.party!r}, table {shard.name!r}: the embeddings of a row are released {most} "
                        f"times in a session; {self._in_words(epochs or 1)} need up to {cost.times(epochs or 1)}, as a "
                        f"row of it is in up to {often} batches of an epoch: {lower}, make batch_size larger than "
                        f"{size:,}, or ask the party's operator",
                        rule="embeddings.max_epochs",
                    )
        self._schedule = Schedule(epochs, size)

    def _holds_out(self, relation: Relation) -> bool:
        """Whether epochs are "auto": such networks overfit."""
        return isinstance(self.epochs, str)

    @property
    def narrow(self) -> Narrow | None:
        """The precision of embeddings, if it is not that of the federation."""
        return None if self.wire == "auto" else self.wire

    # The fit

    def _train(self, relation: Relation, loss: JoinedLoss, watch: Watch) -> tuple[Watched, Array]:
        self._fit_embeddings(relation, watch.validation is not None)
        loss, self._unit = in_units(loss)
        specs = self._fitted_specs(relation)
        model = self._new_model(relation, specs)
        if not model.tables:
            raise LearnError(NO_FEATURE)
        model.narrow = self.narrow
        widths = {alias: specs[alias].outputs for alias in self._side_by_side(model)}
        model.top = self._top(widths, loss.best_constant(), relation.double)
        model.begin(self.seed)
        self._learn_networks(model, relation, loss, watch)
        return model, np.zeros(loss.outputs)

    def _learn_networks(self, model: SplitModel, relation: Relation, loss: JoinedLoss, watch: Watch) -> None:
        """Let all networks learn together."""
        self._descend(
            Exchange(model, anew=True), loss, falling(self._highest_lr, self._schedule.rounds), watch.of(model)
        )
        self.converged_ = ended_flat(self.history_, self.most_rounds)

    def _descend(
        self, exchange: Exchange, loss: JoinedLoss, rates: Sequence[float], report: Callable[[Round], bool],
        fixed: Embeddings | None = None,
    ) -> None:  # fmt: skip
        """Take an epoch of batches for each learning rate, reported in the label's own units."""
        learn_by_batches(
            exchange, loss, rates, self._schedule.batch_size, self.seed,
            lambda done: report(out_of_units(done, self._unit)), fixed,
        )  # fmt: skip

    @property
    def _highest_lr(self) -> float:
        """The learning rate of the first epoch."""
        return self._usual_lr if isinstance(self.lr, str) else self.lr

    def _side_by_side(self, model: SplitModel) -> Sequence[str]:
        """Tables in the order in which the top network takes their embeddings."""
        return model.tables

    def _fitted_specs(self, relation: Relation) -> dict[str, Bottom]:
        """The bottom network of each table, in the precision of the wire and for the columns that have encoders."""
        double = relation.double
        found = {}
        for alias, spec in self.specs(tables_of(relation.query)).items():
            if isinstance(spec, Cnn) and self.encoding_.names(alias):
                spec = on_pixels(spec, alias, relation.query.features, self.encoding_)
            found[alias] = msgspec.structs.replace(spec, double=double)
        return found

    def _new_model(self, relation: Relation, specs: Mapping[str, Bottom]) -> SplitModel:
        return SplitModel(relation.client, self.encoding_, relation.wire, specs, self.l2, self._unit)

    @abstractmethod
    def _top(self, widths: Mapping[str, int], constant: Array, double: bool) -> Top:
        """The network over embeddings of these widths, whose scores begin at a constant."""

    # Saving

    def facts(self) -> dict[str, Any]:
        """Facts of the fit, and what its networks are."""
        specs = {alias: msgspec.to_builtins(spec) for alias, spec in self._networks.specs.items()}
        return super().facts() | {"bottoms": specs, "beside": list(self._networks.top.widths), "unit": self._unit}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The parameters of the top network."""
        return super().arrays() | {"top": self._networks.top.theta}

    @property
    def _networks(self) -> SplitModel | SavedSplitModel:
        """The model, with its networks."""
        return cast(SplitModel | SavedSplitModel, self._model)

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `facts` and `arrays` say; LearnError if an earlier version wrote them."""
        if "beside" not in facts:
            raise LearnError(
                "the folder was written before networks across parties stored the order of their tables, without which "
                "predictions may be wrong; fit and save the model again"
            )
        super().restore(facts, arrays)
        self._unit = float(facts["unit"])
        self._bottoms = {alias: msgspec.convert(spec, one_of(Bottom)) for alias, spec in facts["bottoms"].items()}
        self._beside, self._top_theta = list(facts["beside"]), arrays["top"]

    def saved(self, stored: Stored, engine: Engine, wire: str) -> Any:
        """A model with the stored parameters, for predictions only."""
        specs = self._bottoms
        double = any(spec.double for spec in specs.values())
        widths = {alias: specs[alias].outputs for alias in self._beside}
        top = self._top(widths, np.zeros(len(self.intercept_)), double)
        top.theta = self._top_theta
        model = SavedSplitModel(specs, top, self.encoding_, stored, engine, wire, self._unit)
        model.narrow = self.narrow
        return model


class SplitNN(SplitLearner):
    """Embeddings of tables side by side, then fully connected layers."""

    top: Sequence[int] = setting(
        default=(32,), kind=LAYERS, help="widths of the hidden layers of the network over the embeddings"
    )

    def _top(self, widths: Mapping[str, int], constant: Array, double: bool) -> Top:
        return SideBySide(widths, tuple(self.top), constant, self.seed, double=double)


@learner
class SplitNNRegressor(Regressor, SplitNN):
    """Regression by a network over embeddings of tables; l2 and lr are in units of the label's standard deviation."""


@learner
class SplitNNClassifier(Classifier, SplitNN):
    """Classification of two or more classes by a network over embeddings of tables."""
