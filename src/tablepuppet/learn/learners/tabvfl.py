"""TabVFL: TabNet divided between tables and coordinator; pretrained without labels on all columns, then finetuned.

It computes one latent vector per joined row from the columns of all tables (papers: TabVFL). Each table releases
embeddings that are as wide as its encoded columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.learners.not_fitted import check_fitted
from tablepuppet.learn.learners.planner import tables_of
from tablepuppet.learn.learners.split import SplitLearner
from tablepuppet.learn.learners.tasks import Classifier, Regressor
from tablepuppet.learn.learners.watch import Watch
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.registry import learner
from tablepuppet.learn.settings import COUNT, NUMBER, RATE, WHOLE, Auto, Kind, or_auto, setting
from tablepuppet.learn.solve.schedule import Cost, Costs, Schedule
from tablepuppet.learn.solve.sgd import falling
from tablepuppet.learn.split.bottoms import need_tabnet
from tablepuppet.learn.split.exchange import Exchange
from tablepuppet.learn.split.model import CHUNK, SavedSplitModel, SplitModel
from tablepuppet.learn.split.pretrain import Pretraining
from tablepuppet.learn.split.tabnet_table import TabNet
from tablepuppet.learn.split.top import Top, TorchTop
from tablepuppet.learn.tables.model import Bottom
from tablepuppet.learn.threads import need_torch, one_thread, seeded
from tablepuppet.mapping.joined_rows import Block
from tablepuppet.prep.encode.encode import Encoding, apply_encoding
from tablepuppet.relation import Relation
from tablepuppet.runs.figures import metric, readable
from tablepuppet.runs.table_view import Records
from tablepuppet.spelling import names_checked, shows

MOST_PRETRAINED = 40  # epochs of "auto"
VIRTUAL_BATCH = 128  # joined rows that batch norm within TabNet takes together
HIDDEN = Kind("a number above 0 and below 1", lambda value: RATE.fits(value) and value < 1)


@shows("explain")
class TabVFL(SplitLearner):
    """TabNet over the embeddings of tables."""

    _usual_lr: ClassVar[float] = 0.02  # pytorch-tabnet's
    _to_lower: ClassVar[str] = "pretrain_epochs and epochs"
    bottom: Any = None  # each table has TabNet's part

    latent: int = setting(default=16, kind=COUNT, help="width of the latent vector; at least one per table")
    pretrain_epochs: int | Auto = setting(
        default="auto",
        kind=or_auto(WHOLE),
        help="passes over the joined rows without labels at most; they end when the reconstruction error has not "
        "fallen for `patience` of them",
    )
    hide: float = setting(default=0.2, kind=HIDDEN, help="the share of cells that are hidden in pretraining")
    sparsity: float = setting(default=1e-3, kind=NUMBER, help="weight of the sparsity of attention in the loss")
    steps: int = setting(default=3, kind=COUNT, help="decision steps of TabNet")

    # Before a fit

    def check_settings(self) -> None:
        """Raise LearnError if a setting is out of range, or torch or pytorch-tabnet is not installed."""
        super().check_settings()
        need_tabnet()

    def specs(self, aliases: Sequence[str]) -> dict[str, Bottom]:
        """The part of each table before it is known how wide the table is."""
        self._parts(aliases)
        return dict.fromkeys(aliases, TabNet(1, 0, (), False))

    def _parts(self, aliases: Sequence[str]) -> dict[str, int]:
        """How many of the decoder's outputs each table gets; LearnError if latent is too small."""
        need_tabnet()
        from tablepuppet.learn.split.tabnet import latent_parts

        return dict(zip(aliases, latent_parts(self.latent, aliases), strict=True))

    def _costs(self, batches: int) -> Costs:
        """Of tables with several shards, each batch is a sum, and two in pretraining."""
        return Costs(Cost(0, 0), Cost(2 * batches * self._most_pretrained(MOST_PRETRAINED), batches))

    def fewer_replies_by(self) -> list[str]:
        """Settings that need fewer replies in a round, where parties allow no more."""
        return [*super().fewer_replies_by(), *(["lower pretrain_epochs"] if self.pretrain_epochs else [])]

    def _most_pretrained(self, epochs: int) -> int:
        return min(epochs, MOST_PRETRAINED) if isinstance(self.pretrain_epochs, str) else self.pretrain_epochs

    def plan_rounds(self, rows: int, allowed: Any) -> None:
        """Choose epochs and batches; LearnError if a batch would have one row, which batch norm cannot work on."""
        super().plan_rounds(rows, allowed)
        size = self._schedule.batch_size
        fits = size
        while rows > 1 and _has_single(rows, fits):
            fits += 1
        if rows < 2:
            raise LearnError("a relation of one joined row has no variance, which batch norm needs: learn from more")
        if fits != size and not isinstance(self.batch_size, str):
            raise LearnError(
                f"batch_size={size} leaves a batch of one joined row out of {rows:,}, whose variance batch norm needs: "
                f"set batch_size to {fits} or 'auto'"
            )
        self._schedule = Schedule(self._schedule.rounds, fits)
        self._pretraining_epochs = self._most_pretrained(self._schedule.rounds)

    def _fit_embeddings(self, relation: Relation, validated: bool) -> None:
        for alias in tables_of(relation.query):
            width = len(self.encoding_.names(alias))
            for shard in relation.plan.tables[alias].shards:
                widest = None if shard.embeddings is None else shard.embeddings[0]
                if widest is not None and width > widest:
                    raise PrivacyError(
                        f"party {shard.party!r}, table {shard.name!r}: embeddings of its rows have at most {widest} "
                        f"numbers; TabVFL needs {width}, as many as there are encoded columns: select fewer, or ask "
                        "the party's operator",
                        rule="embeddings.max_width",
                    )
        super()._fit_embeddings(relation, validated)

    def _row_releases(self, relation: Relation, alias: str, often: int, validated: bool, most: int) -> Cost:
        """Pretraining releases two vectors of a row for each batch that it is in: its embedding and a gradient.

        Shards of a table release one more, of sums. Pretraining of "auto" takes half of what is allowed at most.
        """
        more = len(relation.client.shards(alias)) > 1
        pretrained = often * (2 + more)
        if isinstance(self.pretrain_epochs, str):
            self._pretraining_epochs = min(self._pretraining_epochs, most // 2 // pretrained)
        # one batch may be begun and not used
        return Cost(pretrained * self._pretraining_epochs + pretrained, often * (1 + more) + validated)

    def _in_words(self, epochs: int) -> str:
        return f"{self._pretraining_epochs} epochs of pretraining and {epochs} after it"

    # The fit

    def _learn_networks(self, model: SplitModel, relation: Relation, loss: JoinedLoss, watch: Watch) -> None:
        self.pretraining_ = Records()
        if self._pretraining_epochs:
            self._pretrain(relation, model, falling(self._highest_lr, self._pretraining_epochs), watch)
        super()._learn_networks(model, relation, loss, watch)

    def _fitted_specs(self, relation: Relation) -> dict[str, Bottom]:
        double, encoding = relation.double, self.encoding_
        known = [alias for alias in relation.client.tables if encoding.names(alias) and relation.client.shards(alias)]
        return {
            alias: TabNet(len(encoding.names(alias)), part, _categories(encoding, alias), double)
            for alias, part in (self._parts(known) if known else {}).items()
        }

    def _side_by_side(self, model: SplitModel) -> Sequence[str]:
        return list(model.specs)

    def _pretrain(self, relation: Relation, model: SplitModel, rates: Sequence[float], watch: Watch) -> None:
        """Alg. 1; then the encoder goes on in the top network."""
        from tablepuppet.learn.split.tabnet import PretrainingTop

        specs = {alias: spec for alias, spec in model.specs.items() if isinstance(spec, TabNet)}
        widths = model.top.widths
        double = any(spec.double for spec in specs.values())
        module = seeded(self.seed, "", lambda: PretrainingTop(widths, self._shape))
        top = TorchTop(module, widths, self.latent, double=double)
        ends = list(accumulate(spec.part for spec in specs.values()))
        parts = {a: slice(end - spec.part, end) for (a, spec), end in zip(specs.items(), ends, strict=True)}
        exchange = Exchange(model, hide=self.hide, seed=self.seed)
        watch.restart()

        def report(epoch: int, error: float) -> bool:
            cost = watch.cost()
            entry = {"round": epoch, "seconds": cost.pop("seconds"), "loss": error, **cost}
            entry["lost"] = sorted(relation.client.outbox.take_missed())
            self.pretraining_.append(entry)
            sent = readable(cost["bytes_up"] + cost["bytes_down"])
            message = f"pretraining, epoch {epoch} · reconstruction error {metric('loss', error)} · {sent}"
            self.emit(relation, "progress", "pretrain", message, {**entry, "done": epoch, "total": len(rates)})
            errors = [each["loss"] for each in self.pretraining_]
            return epoch - 1 - int(np.argmin(errors)) >= max(self.patience, self._own_patience)

        Pretraining(exchange, top, parts).run(rates, self._schedule.batch_size, self.seed, report)
        watch.restart()
        learned = top.flat.named(top.theta)
        named = model.top.flat.named(model.top.theta)
        model.top.theta = model.top.flat.flat({name: learned.get(name, value) for name, value in named.items()})

    @property
    def _shape(self) -> Any:
        from tablepuppet.learn.split.tabnet import TabNetShape

        return TabNetShape(self.latent, self.latent, self.steps, virtual_batch=VIRTUAL_BATCH)

    def _top(self, widths: Mapping[str, int], constant: Array, double: bool) -> Top:
        from tablepuppet.learn.split.tabnet import FinetuningTop

        torch = need_torch()

        def build() -> Any:
            return FinetuningTop(widths, self._shape, torch.from_numpy(constant), self.sparsity)

        with one_thread(torch):
            return TorchTop(seeded(self.seed, "", build), widths, len(constant), double=double)

    # After a fit

    @names_checked
    def transform(self, relation: Relation) -> NDArray[np.float32]:
        """The latent vector of every joined row, (N, latent), in the order of ``rows()``."""
        return np.concatenate([np.zeros((0, self.latent)), *self._outputs(relation, "latent")]).astype(np.float32)

    @names_checked
    def explain(self, relation: Relation, by: Literal["table", "column"] = "table") -> dict[str, Array]:
        """Where the attention of every joined row goes: shares by alias, in the order of ``rows()``.

        They add up to 1, or to 0 for a row whose latent vector is zero.

        ``by="column"``: by encoded column. Embeddings are mixtures of a table's columns; its own weights, which the
        party's policy must release, share attention out among them.
        """
        check_fitted(self)
        if by not in ("table", "column"):
            raise LearnError(f"by must be 'table' or 'column', not {by!r}")
        widths = self._networks.top.widths
        found = np.concatenate([np.zeros((0, sum(widths.values()))), *self._outputs(relation, "attention")])
        total = found.sum(axis=1, keepdims=True)
        shares = found / np.where(total > 0, total, 1.0)
        ends = accumulate(widths.values())
        tables = {alias: shares[:, end - width : end] for (alias, width), end in zip(widths.items(), ends, strict=True)}
        if by == "table":
            return {alias: part.sum(axis=1) for alias, part in tables.items()}
        columns: dict[str, Array] = {}
        for alias, weights in self._mixes().items():
            sizes = np.abs(weights)  # (embeddings, columns)
            split = tables[alias] @ (sizes / np.maximum(sizes.sum(axis=1, keepdims=True), np.finfo(float).tiny))
            columns |= dict(zip(self.encoding_.names(alias), split.T, strict=True))
        return columns

    def _mixes(self) -> dict[str, Array]:
        """The weights of each table's layer, where its policy releases them."""
        networks = self._networks
        thetas = networks.parameters()
        found = {}
        for alias, spec in networks.specs.items():
            width = len(self.encoding_.names(alias))
            start = 2 * width  # scale and shift of batch norm come first
            found[alias] = thetas[alias][start : start + spec.outputs * width].reshape(spec.outputs, width)
        return found

    def _outputs(self, relation: Relation, wanted: str) -> list[Floats]:
        """What the top network makes of joined rows, in chunks."""
        self.check_relation(relation, "transform" if wanted == "latent" else "explain")
        client, torch = relation.client, need_torch()
        apply_encoding(client, self.encoding_)
        networks, top = self._networks, self._networks.top
        if isinstance(networks, SavedSplitModel):
            embeddings = networks.embeddings(client)
        else:
            embeddings = networks.embeddings(client, networks.tables)
        with one_thread(torch), torch.no_grad():
            return client.rows.one_by_one(CHUNK, _wanted, top, embeddings, wanted)

    # Saving

    def facts(self) -> dict[str, Any]:
        """Facts of the fit, pretraining included."""
        return super().facts() | {"pretraining": self.pretraining_}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `facts` and `arrays` say."""
        super().restore(facts, arrays)
        self.pretraining_ = Records(facts["pretraining"])


def _wanted(block: Block, top: Any, embeddings: Mapping[str, Floats], wanted: str) -> Floats:
    """What the top network makes of the joined rows of a block."""
    torch = need_torch()
    rows = {alias: torch.from_numpy(block.taken(alias, values)) for alias, values in embeddings.items()}
    given = {alias: each.to(top.flat.dtype) for alias, each in rows.items()}
    found: Floats = top.flat(top.flat.tensor(top.theta), given, wanted=wanted).numpy()
    return found


def _categories(encoding: Encoding, alias: str) -> tuple[int, ...]:
    return tuple(encoder.size for encoder in encoding.categories[alias])


def _has_single(rows: int, size: int) -> bool:
    """Whether an epoch has a batch of one row, or one of which TabNet's batch norm gets a row by itself."""
    return any(_least_chunk(batch) == 1 for batch in {min(size, rows), rows % size or size} if batch <= rows)


def _least_chunk(rows: int) -> int:
    """The rows of the last part when a batch is cut as TabNet does for its batch norm."""
    chunk = -(-rows // -(-rows // VIRTUAL_BATCH))
    return rows - chunk * (-(-rows // chunk) - 1)


@learner
class TabVFLRegressor(Regressor, TabVFL):
    """Regression by TabNet over embeddings of tables; l2 and lr are in units of the label's standard deviation."""


@learner
class TabVFLClassifier(Classifier, TabVFL):
    """Classification of two or more classes by TabNet over embeddings of tables."""
