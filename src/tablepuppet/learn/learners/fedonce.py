"""FedOnce: one-shot learning across parties (Wu, Li, He 2022).

The label's table is the host. Every other table is a guest: it trains a network on its own rows, without labels, and
sends one message, the representations of its rows. The coordinator trains the host's network and a top network over all
representations, in rounds with the host alone. With ``rounds`` above 1, all tables then continue as in SplitNN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import msgspec
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.learners.planner import tables_of
from tablepuppet.learn.learners.split import EVERY_EPOCH, SplitNN
from tablepuppet.learn.learners.tasks import Classifier, Regressor
from tablepuppet.learn.learners.watch import Watch, Watched
from tablepuppet.learn.loss.joined_loss import JoinedLoss, out_of_units
from tablepuppet.learn.noise.plan import StepNoise
from tablepuppet.learn.private.feature_promise import FeaturePromise, StepPromise, new_promise
from tablepuppet.learn.registry import learner
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.settings import COUNT, NUMBER, RATE, Auto, Kind, or_auto, setting
from tablepuppet.learn.solve.plateau import ended_flat
from tablepuppet.learn.solve.schedule import Cost, Costs, RoundAllowance, Schedule
from tablepuppet.learn.solve.sgd import falling
from tablepuppet.learn.solve.solvers import SGD
from tablepuppet.learn.split.bottom import BOTTOM, mlp
from tablepuppet.learn.split.exchange import Exchange
from tablepuppet.learn.split.model import Embeddings, SplitModel
from tablepuppet.learn.split.nat import NatSettings
from tablepuppet.learn.split.noisy_once import NoisyOnce
from tablepuppet.learn.split.once import AVERAGINGS, Guests, OnceModel
from tablepuppet.learn.split.top import SideBySide, Top
from tablepuppet.learn.tables.dense import Mlp
from tablepuppet.learn.tables.model import Bottom
from tablepuppet.party.arguments import Some, described, fits
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.sql.plan import Plan
from tablepuppet.store.parts import Stored
from tablepuppet.wire.engine import Engine

GUEST_STEPS = 6_000  # of "auto", about
GUEST_EPOCHS = (10, 100)  # of "auto", at least and at most
GUEST_BATCH = 64
LEAVE = "leave one of them out"
TOP_BATCH = 256  # of the top network, where features have noise
METHODS = ("nat", "pca")
METHOD = Kind("'nat' or 'pca'", lambda value: isinstance(value, str) and value in METHODS)
WIDTH = Kind(described(Some), lambda value: fits(value, Some))
LAG = Kind("a number of seconds above 0, or None", lambda value: value is None or RATE.fits(value))


class FedOnce(SplitNN):
    """Guests send one message each; the host learns in rounds.

    After a fit, ``host_`` is the alias of the label's table, ``absent_`` are those of guests that lagged.
    """

    _private_instead: ClassVar[str] = ""
    _to_lower: ClassVar[str] = "epochs or rounds"

    bottom: Bottom | Mapping[str, Bottom] = setting(
        default=mlp(hidden=(32, 32)),
        kind=BOTTOM,
        help="the network of each table, or a dict of them by alias (`tp.bottom`); its outputs are `embedding` numbers",
    )
    embedding: int = setting(default=16, kind=WIDTH, help="numbers per row that a table's network has as outputs")
    method: Literal["nat", "pca"] = setting(
        default="nat",
        kind=METHOD,
        help="how guests learn without labels: noise as targets, or principal components (their `bottom` is not used)",
    )
    guest_epochs: int | Auto = setting(
        default="auto", kind=or_auto(COUNT), help="passes of a guest over its own rows; `'auto'`: 10 to 100"
    )
    guest_lr: float = setting(default=1e-3, kind=RATE, help="learning rate of guests, by Adam")
    assign_every: int = setting(
        default=1, kind=COUNT, help="in every so many epochs guests assign targets to rows anew, within each batch"
    )
    rounds: int = setting(
        default=1, kind=COUNT, help="1: one message per guest; more: so many epochs less one follow, as in SplitNN"
    )
    noise: float = setting(
        default=0.0,
        kind=NUMBER,
        help="scale of Gaussian noise on the representations of guests, which have length 1; it promises nothing",
    )
    lag: float | None = setting(
        default=None, kind=LAG, help="seconds after which zeros stand in for the message of a service; None: wait"
    )

    # Before a fit

    def check_settings(self) -> None:
        """Raise LearnError if a setting is out of range, or torch is not installed."""
        super().check_settings()
        if self.noise and self.rounds > 1:
            raise LearnError(
                f"noise={self.noise:g} is for the one message of a guest; with rounds={self.rounds} guests send "
                "embeddings of every batch without noise: set rounds=1, or noise=0"
            )

    def check_plan(self, plan: Plan, *, validated: bool = False) -> None:
        """Raise unless a plan can be learned from; principal components of several shards need products of columns."""
        super().check_plan(plan, validated=validated)
        label = None if plan.query.label is None else plan.query.label.alias
        for alias in tables_of(plan.query) if self.method == "pca" else ():
            shards = plan.tables[alias].shards if alias != label else ()
            for shard in shards if len(shards) > 1 else ():
                if shard.min_group > 1 and not shard.matrix:
                    raise PrivacyError(
                        f"party {shard.party!r}, table {shard.name!r}: hides small groups, so that it releases no "
                        "products of two columns, which principal components of a table with several shards are found "
                        "from; set method='nat', or ask its operator for matrix = true or min_group = 0",
                        rule="min_group",
                    )

    def _check_privacy(self, plan: Plan) -> None:
        """Noise on features is there where a table sends one message, and every other release can have noise."""
        privacy = self.privacy
        if privacy is None or not privacy.is_feature_private:
            super()._check_privacy(plan)
            return
        others = any(not isinstance(each, Mlp) for each in self.specs(tables_of(plan.query)).values())
        for wrong, what, advice, why in (
            (privacy.secure_sum, "secure_sum", LEAVE, "embeddings are of single rows, which no sum hides"),
            (self.rounds > 1, f"rounds={self.rounds}", LEAVE, f"from the second on, {EVERY_EPOCH}"),
            (self.method != "nat", f"method={self.method!r}", LEAVE, "its products of columns are exact"),
            (self.noise > 0, f"noise={self.noise:g}", "set prediction_epsilon", "which is counted, as noise is not"),
            (self.lag is not None, f"lag={self.lag}", LEAVE, "nothing stands in for the noise of a party that is late"),
            (
                others,
                "networks other than mlp",
                LEAVE,
                "what a row adds to a gradient has no bound there",
            ),
        ):
            if wrong:
                raise PrivacyError(
                    f"feature_epsilon: FedOnce cannot have noise on features with {what}: {advice} ({why})"
                )

    def promise_for(self, plan: Plan, rows: Mapping[str, int], privacy: Privacy | None) -> FeaturePromise | None:
        """The promise for features: every table takes the same number of noisy steps."""
        if privacy is None or not privacy.is_feature_private:
            return None
        rounds = None if isinstance(self.epochs, str) else int(self.epochs)
        return new_promise(privacy, plan, rounds, rows, SGD(batch_size=self.batch_size))

    def parameters_of(self, alias: str, width: int, outputs: int) -> int:
        """Where steps have noise, all parameters of the network have it."""
        if not self._has_private_features:
            return super().parameters_of(alias, width, outputs)
        bottom = self.bottom[alias] if isinstance(self.bottom, Mapping) else self.bottom
        shape = msgspec.structs.replace(bottom, outputs=int(self.embedding)).theta_shape(width)
        assert shape is not None, "`_check_privacy` has refused networks other than mlp"
        return math.prod(shape)

    def plan_rounds(self, rows: int, allowed: Any) -> None:
        """Choose epochs and batches; with noise on features, rounds are those of its promise."""
        if self._promise is None:
            super().plan_rounds(rows, allowed)
            return
        self._promise = self._promise.within(allowed(1).most_rounds())
        allowed(1).check(self._promise.rounds, {"epochs": self.epochs}, "", "epochs")
        self._schedule = Schedule(self._promise.rounds, TOP_BATCH)

    def _holds_out(self, relation: Relation) -> bool:
        return not self._has_private_features and super()._holds_out(relation)

    def specs(self, aliases: Sequence[str]) -> dict[str, Bottom]:
        """The network of each table, with ``embedding`` outputs."""
        found = super().specs(aliases)
        return {alias: msgspec.structs.replace(spec, outputs=int(self.embedding)) for alias, spec in found.items()}

    def _fitted_specs(self, relation: Relation) -> dict[str, Bottom]:
        found = super()._fitted_specs(relation)
        linear = {a: Mlp((), spec.outputs, "relu", spec.double) for a, spec in found.items() if a != self.host_}
        return found | (linear if self.method == "pca" else {})

    def fewer_replies_by(self) -> list[str]:
        """Settings that need fewer replies in a round, where parties allow no more."""
        return [*super().fewer_replies_by(), *(["lower rounds"] if self.rounds > 1 else [])]

    def _costs(self, batches: int) -> Costs:
        if isinstance(self._promise, StepPromise):
            return Costs(Cost(0, 0), Cost(0, self._promise.steps_of_round))
        return super()._costs(batches)

    def _allowance(self, relation: Relation, validation: Relation | None, batches: int) -> RoundAllowance:
        """Shards of the host answer in every batch; shards of a guest average, and answer in the batches of rounds.

        With noise, all shards answer in every step.
        """
        if self._promise is not None:
            return super()._allowance(relation, validation, batches)
        label, aliases = relation.query.label, tables_of(relation.query)
        host = [alias for alias in aliases if label is not None and alias == label.alias]
        guests = [alias for alias in aliases if alias not in host]
        once = (AVERAGINGS if self.method == "nat" else 0) + batches * (int(self.rounds) - 1)
        found = RoundAllowance([
            (relation.client, host, Costs(Cost(0, 0), Cost(batches * (int(self.rounds) - 1), batches))),
            (relation.client, guests, Costs(Cost(0, 0), Cost(once, 0))),
        ])  # fmt: skip
        found.tables = [table for table in found.tables if table.cost.once or table.cost.each]
        return found

    def _row_releases(self, relation: Relation, alias: str, often: int, validated: bool, most: int) -> Cost:
        """The host's in every epoch, those of guests once; then of all in every further round."""
        each, later = often + validated, (often + validated) * (int(self.rounds) - 1)
        return Cost(later, each) if alias == self.host_ else Cost(1 + validated + later, 0)

    def _in_words(self, epochs: int) -> str:
        return f"{epochs} epochs of the host and rounds={self.rounds}"

    # The fit

    def _train(self, relation: Relation, loss: JoinedLoss, watch: Watch) -> tuple[Watched, Array]:
        assert relation.query.label is not None, "`_fit` has checked it"
        self.host_ = relation.query.label.alias
        return super()._train(relation, loss, watch)

    def _learn_networks(self, model: SplitModel, relation: Relation, loss: JoinedLoss, watch: Watch) -> None:
        assert isinstance(model, OnceModel), "`_new_model` makes it"
        noisy = self._noisy_steps(model)
        if model.guests:
            self._teach(model, relation, noisy)
        clients = [relation.client] if watch.validation is None else [relation.client, watch.validation.client]
        messages = model.receive(clients) if model.guests else {}
        for alias in sorted(model.absent):
            self._warn_of_lag(relation, alias)
        report = watch.of(model)
        if noisy is None:
            self._learn_from(messages, model, relation, loss, report, validated=watch.validation is not None)
            self.converged_ = ended_flat(self.history_, self.most_rounds)
        elif self.host_ in model.tables:
            noisy.learn(
                self.host_, messages, loss, self._highest_lr, self._schedule.batch_size, self.seed,
                lambda done: report(out_of_units(done, self._unit)),
            )  # fmt: skip
        model.forget()
        self.absent_ = sorted(model.absent)

    def _noisy_steps(self, model: OnceModel) -> NoisyOnce | None:
        """FedOnce-L1; None without noise on features."""
        if not isinstance(self._promise, StepPromise):
            return None
        assert isinstance(model.noise, StepNoise), "`_new_model` gave it"
        return NoisyOnce(model, model.noise, self._promise.rounds, self._promise.steps)

    def _learn_from(
        self, messages: Embeddings, model: OnceModel, relation: Relation, loss: JoinedLoss,
        report: Callable[[Round], bool], *, validated: bool,
    ) -> None:  # fmt: skip
        """The host learns beside the messages; with more rounds, all tables continue as in SplitNN."""
        if self.rounds == 1:
            relation.client.outbox.leave_lost()
        host = [alias for alias in model.tables if alias not in model.guests]
        rates = falling(self._highest_lr, self._schedule.rounds)
        self._descend(Exchange(model, host), loss, rates, report, fixed=messages)
        if self.rounds > 1 and model.guests:
            self._continue_as_splitnn(model, loss, report, validated)

    def _teach(self, model: OnceModel, relation: Relation, noisy: NoisyOnce | None) -> None:
        """Let guests learn by themselves."""
        message = f"{type(self).__name__}: guests learn from their own rows{'' if noisy is None else ', with noise'}"
        if noisy is not None:
            noisy.teach(self.seed, relation.events.progress("guests", message, noisy.steps))
            return
        model.blur = float(self.noise)
        epochs = self._epochs_of_guests(model) if self.method == "nat" else 1
        guests = Guests(model, model.guests, self.lag, relation.events.progress("guests", message, epochs))
        if self.method == "pca":
            guests.components()
            guests.report(1)
        else:
            settings = NatSettings(GUEST_BATCH, float(self.guest_lr), 1e-5, int(self.assign_every))
            guests.train(epochs, settings, self.seed)

    def _epochs_of_guests(self, model: OnceModel) -> int:
        if not isinstance(self.guest_epochs, str):
            return int(self.guest_epochs)
        rows = max(model.rows(alias) for alias in model.guests)
        return min(max(GUEST_EPOCHS[0], GUEST_STEPS // math.ceil(rows / GUEST_BATCH)), GUEST_EPOCHS[1])

    def _warn_of_lag(self, relation: Relation, alias: str) -> None:
        message = f"table {alias!r} did not send its message in time {relation.client.owners(alias)}: zeros stand in"
        relation.events.emit("warning", "guest.lags", message, table=alias)

    def _continue_as_splitnn(self, model: OnceModel, loss: JoinedLoss, report: Any, validated: bool) -> None:
        """All tables learn together, as in SplitNN, from the state that the one message has led to."""
        if validated:  # from the best state so far
            model.restore()
            model.keep()
        model.forget()
        model.absent = frozenset()
        before = len(self.history_)
        rates = falling(self._highest_lr / 3, int(self.rounds) - 1)

        def numbered(done: Round) -> bool:
            report(replace(done, number=before + done.number))
            return False

        self._descend(Exchange(model), loss, rates, numbered)
        model.rejoin()

    def _new_model(self, relation: Relation, specs: Mapping[str, Bottom]) -> OnceModel:
        model = OnceModel(self.host_, relation.client, self.encoding_, relation.wire, specs, self.l2, self._unit)
        if isinstance(self._promise, StepPromise):
            relation.events.emit("info", "privacy.noise", "choosing the noise of steps, which may take some seconds")
            model.noise = self._promise.choose({alias: model.table_model(alias).size for alias in model.tables})
        return model

    def _top(self, widths: Mapping[str, int], constant: Array, double: bool) -> Top:
        guests = [alias for alias in widths if alias != self.host_] if self.method == "nat" else []
        return SideBySide(widths, tuple(self.top), constant, self.seed, double=double, unit=guests)

    @property
    def most_rounds(self) -> int:
        """The largest number of epochs, or of rounds with noise."""
        return self._schedule.rounds + int(self.rounds) - 1

    # Saving

    def facts(self) -> dict[str, Any]:
        """Facts of the fit, with who is host and who sent no message."""
        return super().facts() | {"host": self.host_, "absent": self.absent_}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `facts` and `arrays` say."""
        super().restore(facts, arrays)
        self.host_, self.absent_ = facts["host"], list(facts["absent"])

    def saved(self, stored: Stored, engine: Engine, wire: str) -> Any:
        """A model with the stored parameters, for predictions only."""
        model = super().saved(stored, engine, wire)
        model.absent = frozenset(self.absent_)
        if self._promise is not None and self._promise.noise.prediction is not None:
            noise = self._promise.noise.of_predictions(self._promise.noise.clip)
            model.noise, model.spent = {alias: {"noise": noise} for alias in model.specs}, self._promise.noise
        elif self.noise:
            model.noise = {alias: {"blur": float(self.noise)} for alias in model.specs if alias != self.host_}
        return model


@learner
class FedOnceRegressor(Regressor, FedOnce):
    """Regression with one message per guest; l2 and lr are in units of the label's standard deviation."""


@learner
class FedOnceClassifier(Classifier, FedOnce):
    """Classification of two or more classes with one message per guest."""
