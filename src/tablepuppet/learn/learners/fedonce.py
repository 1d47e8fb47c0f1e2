"""FedOnce: one-shot learning across parties (Wu, Li, He 2022).

The label's table is the host. Every other table is a guest: it trains a network on its own rows, without labels, and
sends one message, the representations of its rows. The coordinator trains the host's network and a top network over all
representations, in rounds with the host alone. With ``rounds`` above 1, all tables then continue as in SplitNN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.learners.planner import tables_of
from tablepuppet.learn.learners.split import AUTO_LR, SplitNN
from tablepuppet.learn.learners.tasks import Classifier, Regressor
from tablepuppet.learn.learners.validation import Watched
from tablepuppet.learn.learners.watch import Watch
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.units import in_units, out_of_units
from tablepuppet.learn.noise.plan import StepNoise
from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.private.round_promises import StepPromise, new_promise
from tablepuppet.learn.registry import learner
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.settings import COUNT, NUMBER, RATE, Auto, Kind, or_auto, setting
from tablepuppet.learn.solve.allowance import Cost, Costs, RoundAllowance
from tablepuppet.learn.solve.plateau import ended_flat
from tablepuppet.learn.solve.schedule import Schedule, batches_of
from tablepuppet.learn.solve.sgd import falling
from tablepuppet.learn.solve.solvers import SGD
from tablepuppet.learn.split.bottom import BOTTOM, mlp
from tablepuppet.learn.split.exchange import Exchange
from tablepuppet.learn.split.nat import NatSettings
from tablepuppet.learn.split.noisy_once import NoisyOnce
from tablepuppet.learn.split.once import AVERAGINGS, Guests, OnceModel
from tablepuppet.learn.split.top import SideBySide, Top
from tablepuppet.learn.split.train import learn_by_batches
from tablepuppet.learn.tables.stored import Stored
from tablepuppet.party.arguments import Some, described, fits
from tablepuppet.party.spec import Bottom, Mlp
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.sql.plan import Plan
from tablepuppet.wire.engine import Engine

Array = NDArray[np.float64]
GUEST_STEPS = 6_000  # of "auto", about
GUEST_EPOCHS = (10, 100)  # of "auto", at least and at most
GUEST_BATCH = 64
LEAVE = "leave one of them out"
TOP_BATCH = 256  # of the top network, where features have noise
METHODS = ("nat", "pca")
METHOD = Kind("'nat' or 'pca'", lambda value: isinstance(value, str) and value in METHODS)
WIDTH = Kind(described(Some), lambda value: fits(value, Some))
LAG = Kind("a number of seconds above 0, or None", lambda value: value is None or RATE.fits(value))


class Parts:
    """Attributes of a learner after a fit: who took which part."""

    host_: str  # alias of the label's table
    absent_: list[str]  # aliases of guests that lagged


class FedOnce(Parts, SplitNN):
    """Guests send one message each; the host learns in rounds."""

    private_instead: ClassVar[str] = ""

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

    def _check_privacy(self, plan: Plan) -> None:
        """Noise on features is there for fully connected networks of tables with one shard that send one message."""
        privacy = self.privacy
        if privacy is None or not privacy.is_feature_private:
            super()._check_privacy(plan)
            return
        tables = tables_of(plan.query)
        several = [alias for alias in tables if len(plan.tables[alias].shards) > 1]
        for wrong, what, advice in (
            (privacy.secure_sum, "secure_sum", LEAVE),
            (self.rounds > 1, f"rounds={self.rounds}", LEAVE),
            (self.method != "nat", f"method={self.method!r}", LEAVE),
            (self.noise > 0, f"noise={self.noise:g}", "set prediction_epsilon, which is counted"),
            (self.lag is not None, f"lag={self.lag}", LEAVE),
            (self.wire != "auto", f"wire={self.wire!r}", LEAVE),
            (any(not isinstance(each, Mlp) for each in self.specs(tables).values()), "networks other than mlp", LEAVE),
            (bool(several), f"tables of several shards, as {', '.join(map(repr, several))}", "use tp.MLP*"),
        ):
            if wrong:
                raise PrivacyError(f"feature_epsilon: FedOnce cannot have noise on features with {what}: {advice}")

    def promise_for(self, plan: Plan, rows: Mapping[str, int], privacy: Privacy | None) -> FeaturePromise | None:
        """The promise for features: every table takes the same number of noisy steps."""
        if privacy is None or not privacy.is_feature_private:
            return None
        rounds = None if isinstance(self.epochs, str) else int(self.epochs)
        return new_promise(privacy, plan, rounds, rows, SGD(batch_size=self.batch_size))

    def parameters_of(self, alias: str, width: int, outputs: int) -> int:
        """Where steps have noise, all parameters of the network have it."""
        if self.promise_free:
            return super().parameters_of(alias, width, outputs)
        bottom = self.bottom[alias] if isinstance(self.bottom, Mapping) else self.bottom
        shape = msgspec.structs.replace(bottom, outputs=int(self.embedding)).theta_shape(width)
        assert shape is not None, "`_check_privacy` has refused networks other than mlp"
        return math.prod(shape)

    def plan_rounds(self, rows: int, allowed: Any) -> None:
        """Choose epochs and batches; with noise on features, rounds are those of its promise."""
        if self.promise_ is None:
            super().plan_rounds(rows, allowed)
        else:
            self.schedule_ = Schedule(self.promise_.rounds, TOP_BATCH)

    def _holds_out(self, relation: Relation) -> bool:
        return self.promise_free and super()._holds_out(relation)

    @property
    def promise_free(self) -> bool:
        """Whether features have no noise: with noise, the number of rounds is fixed before the first."""
        return self.privacy is None or not self.privacy.is_feature_private

    def specs(self, aliases: Sequence[str]) -> dict[str, Bottom]:
        """The network of each table, with ``embedding`` outputs."""
        found = super().specs(aliases)
        return {alias: msgspec.structs.replace(spec, outputs=int(self.embedding)) for alias, spec in found.items()}

    def _fitted_specs(self, relation: Relation) -> dict[str, Bottom]:
        found = super()._fitted_specs(relation)
        linear = {a: Mlp((), spec.outputs, "relu", spec.double) for a, spec in found.items() if a != self.host_}
        return found | (linear if self.method == "pca" else {})

    def fewer_replies_by(self) -> list[str]:
        """The same where parties allow no more replies."""
        return [*super().fewer_replies_by(), *(["lower rounds"] if self.rounds > 1 else [])]

    def _allowance(self, relation: Relation, validation: Relation | None, batches: int) -> RoundAllowance:
        """Shards of the host answer in every batch; shards of a guest average, and answer in the batches of rounds."""
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

    def _fit_embeddings(self, relation: Relation, validated: bool) -> None:
        """Lower the host's epochs of "auto" to what parties allow; PrivacyError if they do not allow what is asked."""
        size, epochs, more = self.schedule_.batch_size, self.schedule_.rounds, int(self.rounds) - 1
        batches = batches_of(len(relation), size)
        for alias in tables_of(relation.query):
            often = min(int(relation.mapping.counts(alias).max(initial=1)), batches) + validated  # in an epoch
            each, once = (often, 0) if alias == self.host_ else (0, 1 + validated)
            for shard in relation.plan.tables[alias].shards:
                most = None if shard.embeddings is None else shard.embeddings[1]
                need = once + each * epochs + often * more
                if most is None or need <= most:
                    continue
                fitting = (most - once - often * more) // max(each, 1)
                if not (isinstance(self.epochs, str) and each and fitting > 0):
                    raise PrivacyError(
                        f"party {shard.party!r}, table {shard.name!r}: the embeddings of a row are released {most} "
                        f"times in a session; this needs up to {need}: set epochs or rounds lower, make batch_size "
                        f"larger than {size:,}, or ask the party's operator",
                        rule="embeddings.max_epochs",
                    )
                epochs = fitting
        self.schedule_ = Schedule(epochs, size)

    # The fit

    def _train(self, relation: Relation, loss: JoinedLoss, watch: Watch) -> tuple[Watched, Array]:
        assert relation.query.label is not None, "`_fit` has checked it"
        self.host_ = relation.query.label.alias
        self._fit_embeddings(relation, watch.validation is not None)
        loss, self.unit_ = in_units(loss)
        model = self._begin_networks(relation, loss)
        model.narrow = self.narrow
        if isinstance(self.promise_, StepPromise):
            return self._train_noisily(model, relation, loss, watch, self.promise_)
        guests = self._teach(model, relation)
        clients = [relation.client] if watch.validation is None else [relation.client, watch.validation.client]
        messages = model.receive(clients) if guests else {}
        for alias in sorted(model.absent):
            self._warn_of_lag(relation, alias)
        if self.rounds == 1:
            relation.client.outbox.leave_lost()
        report, host = watch.of(model), [alias for alias in model.tables if alias not in guests]
        rates = falling(AUTO_LR if isinstance(self.lr, str) else self.lr, self.schedule_.rounds)

        def report_round(done: Round) -> bool:
            return report(out_of_units(done, self.unit_))

        size = self.schedule_.batch_size
        learn_by_batches(Exchange(model, host), loss, rates, size, self.seed, report_round, fixed=messages)
        if self.rounds > 1 and guests:
            self._continue_as_splitnn(model, loss, report_round, watch.validation is not None)
        model.forget()
        self.absent_ = sorted(model.absent)
        self.converged_ = ended_flat(self.history_, self.most_rounds)
        return model, np.zeros(loss.outputs)

    def _train_noisily(
        self, model: OnceModel, relation: Relation, loss: JoinedLoss, watch: Watch, promise: StepPromise
    ) -> tuple[Watched, Array]:
        """FedOnce-L1."""
        assert isinstance(model.noise, StepNoise), "`_new_model` gave it"
        steps, report = promise.steps, watch.of(model)
        noisy = NoisyOnce(model, model.noise, promise.rounds, steps)
        if model.guests:
            message = f"{type(self).__name__}: guests learn from their own rows, with noise"
            noisy.teach(self.seed, relation.events.progress("guests", message, steps))
        clients = [relation.client] if watch.validation is None else [relation.client, watch.validation.client]
        messages = model.receive(clients) if model.guests else {}
        lr = AUTO_LR if isinstance(self.lr, str) else self.lr
        if self.host_ in model.tables:
            noisy.learn(
                self.host_, messages, loss, lr, self.schedule_.batch_size, self.seed,
                lambda done: report(out_of_units(done, self.unit_)),
            )  # fmt: skip
        model.forget()
        self.absent_ = []
        return model, np.zeros(loss.outputs)

    def _teach(self, model: OnceModel, relation: Relation) -> list[str]:
        """Let guests learn by themselves; their aliases."""
        model.blur = float(self.noise)
        if not model.guests:
            return []
        epochs = self._epochs_of_guests(model) if self.method == "nat" else 1
        message = f"{type(self).__name__}: guests learn from their own rows"
        guests = Guests(model, model.guests, self.lag, relation.events.progress("guests", message, epochs))
        if self.method == "pca":
            guests.components()
            guests.report(1)
        else:
            settings = NatSettings(GUEST_BATCH, float(self.guest_lr), 1e-5, int(self.assign_every))
            guests.train(epochs, settings, self.seed)
        return list(model.guests)

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
        rates = falling((AUTO_LR if isinstance(self.lr, str) else self.lr) / 3, int(self.rounds) - 1)

        def numbered(done: Round) -> bool:
            report(replace(done, number=before + done.number))
            return False

        learn_by_batches(Exchange(model), loss, rates, self.schedule_.batch_size, self.seed, numbered)
        model.rejoin()

    def _new_model(self, relation: Relation, specs: Mapping[str, Bottom]) -> OnceModel:
        model = OnceModel(self.host_, relation.client, self.encoding_, relation.wire, specs, self.l2, self.unit_)
        if isinstance(self.promise_, StepPromise):
            relation.events.emit("info", "privacy.noise", "choosing the noise of steps, which may take some seconds")
            model.noise = self.promise_.choose({alias: model.table_model(alias).flat.size for alias in model.tables})
        return model

    def _begin_networks(self, relation: Relation, loss: JoinedLoss) -> OnceModel:
        model = super()._begin_networks(relation, loss)
        assert isinstance(model, OnceModel), "`_new_model` makes it"
        return model

    def _top(self, widths: Mapping[str, int], constant: Array, double: bool) -> Top:
        guests = [alias for alias in widths if alias != self.host_] if self.method == "nat" else []
        return SideBySide(widths, tuple(self.top), constant, self.seed, double=double, unit=guests)

    @property
    def most_rounds(self) -> int:
        """The largest number of epochs, or of rounds with noise."""
        return self.schedule_.rounds + int(self.rounds) - 1

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
        if self.promise_ is not None and self.promise_.noise.image is not None:
            noise = self.promise_.noise.of_predictions(self.promise_.noise.clip)
            model.noise, model.spent = {alias: {"noise": noise} for alias in model.specs}, self.promise_.noise
        elif self.noise:
            model.noise = {alias: {"blur": float(self.noise)} for alias in model.specs if alias != self.host_}
        return model


@learner
class FedOnceRegressor(Regressor, FedOnce):
    """Regression with one message per guest; l2 and lr are in units of the label's standard deviation."""


@learner
class FedOnceClassifier(Classifier, FedOnce):
    """Classification of two or more classes with one message per guest."""
