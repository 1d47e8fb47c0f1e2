"""The split TabNet is TabNet: module by module, and step by step of training, on the joined rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pytorch_tabnet")

from pytorch_tabnet.metrics import UnsupervisedLoss  # noqa: E402
from pytorch_tabnet.tab_network import TabNetNoEmbeddings, TabNetPretraining  # noqa: E402

from tablepuppet.errors import LearnError  # noqa: E402
from tablepuppet.learn.split.tabnet import (  # noqa: E402
    BatchMoments,
    Guest,
    PartialDecoder,
    PartialEncoder,
    TabNetShape,
    WeightedBatchNorm,
    final_mapping,
    hidden,
    latent_of,
    latent_parts,
    mean_at_base_rows,
)
from tablepuppet.learn.split.tabnet_table import TabNet  # noqa: E402
from tablepuppet.learn.tables.model import Hiding  # noqa: E402
from tablepuppet.learn.threads import seeded  # noqa: E402

SHAPE = TabNetShape(latent=6, attention=5, steps=3)
RATIO, RATE, LAMBDA = 0.3, 0.02, 1e-3


def columns(rows: int, width: int, seed: int = 0) -> Any:
    """Numbers that no column has the mean 0 or the variance 1 of."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(rng.normal(size=width), rng.uniform(0.5, 2, width), (rows, width)))


def mask_of(batch: int, rows: int, width: int) -> Any:
    return torch.from_numpy(TabNet(1, 0, (), True).mask(Hiding(RATIO, 1, batch), "a", rows, width)).double()


def repeated(base: Any, counts: Any) -> tuple[Any, Any]:
    """(the joined rows, the base row of each)."""
    index = torch.repeat_interleave(torch.arange(len(base)), counts)
    return base[index], index


def test_batch_norm_weighted_by_counts_is_that_of_the_repeated_rows() -> None:
    """Outputs, gradients by weight and bias, and running statistics, over three batches; then without a batch."""
    ours, theirs = WeightedBatchNorm(4).double(), torch.nn.BatchNorm1d(4, momentum=0.01).double()
    for seed in range(3):
        base, counts = columns(7, 4, seed), torch.tensor([1, 3, 1, 2, 5, 1, 2])
        joined, index = repeated(base, counts)
        found, expected = ours(base, BatchMoments.of(base, counts))[index], theirs(joined)
        torch.testing.assert_close(found, expected)
        slopes = columns(len(joined), 4, 9)
        for module, output in ((ours, found), (theirs, expected)):
            module.zero_grad()
            output.backward(slopes)
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
        torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
    torch.testing.assert_close(ours(base, None), theirs.eval()(base))


def test_moments_of_shards_add_up() -> None:
    """The sum of two shards' moments is that of the table."""
    base, counts = columns(9, 3), torch.arange(1, 10)
    whole = BatchMoments.of(base, counts)
    one, other = BatchMoments.of(base[:4], counts[:4]), BatchMoments.of(base[4:], counts[4:])
    parts = BatchMoments(one.rows + other.rows, one.sums + other.sums, one.squares + other.squares)
    assert parts.rows == whole.rows == 45
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.unbiased, repeated(base, counts)[0].var(dim=0))


def test_reconstruction_error_is_that_of_pytorch_tabnet_on_the_repeated_rows() -> None:
    """Each base row once, weighted by its count; the gradient by its decoded part is the sum over its joined rows."""
    base, counts = columns(8, 5), torch.tensor([1, 2, 1, 4, 1, 1, 3, 2])
    mask = mask_of(0, 8, 5)
    guest = Guest(5, 5, 3).double()
    decoded = columns(8, 3, 1).requires_grad_()
    found = guest.error(decoded, base, mask, counts, BatchMoments.of(base, counts))
    joined, index = repeated(base, counts)
    at_joined = decoded.detach()[index].requires_grad_()
    expected = UnsupervisedLoss(guest.rebuild(at_joined), joined, mask[index])
    torch.testing.assert_close(found, expected)
    (slope,) = torch.autograd.grad(found, decoded)
    (slopes,) = torch.autograd.grad(expected, at_joined)
    torch.testing.assert_close(slope, torch.zeros_like(slope).index_add(0, index, slopes))


def test_a_column_that_does_not_vary_in_a_batch_has_a_finite_error() -> None:
    """Its squared errors count as they are, whatever its mean."""
    base, counts = torch.tensor([[-0.5, 1.0], [-0.5, 2.0]]), torch.tensor([1, 1])
    guest = Guest(2, 2, 1)
    with torch.no_grad():
        guest.rebuild.weight.zero_()
    mask = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    error = guest.error(torch.zeros(2, 1), base, mask, counts, BatchMoments.of(base, counts))
    assert float(error.detach()) == pytest.approx(0.25)


def test_means_at_base_rows_are_of_their_joined_rows() -> None:
    """The gradient of a mean goes back to each joined row in equal shares."""
    index, counts = torch.tensor([1, 0, 1, 1]), torch.tensor([1, 3])
    values = columns(4, 2).requires_grad_()
    means = mean_at_base_rows(values, index, counts)
    torch.testing.assert_close(means[1], values[[0, 2, 3]].mean(dim=0))
    means.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(values.grad[:, 0], torch.tensor([1 / 3, 1, 1 / 3, 1 / 3], dtype=torch.float64))


class Central:
    """pytorch-tabnet on all columns, with the layers that the guest has in addition, from the same weights."""

    def __init__(self, guest: Guest, encoder: PartialEncoder, decoder: PartialDecoder | None, final: Any):
        width = guest.mix.in_features
        common = {"n_d": SHAPE.latent, "n_a": SHAPE.attention, "n_steps": SHAPE.steps, "gamma": SHAPE.gamma}
        if decoder is not None:
            self.net = TabNetPretraining(width, group_attention_matrix=torch.eye(width).double(), **common).double()
            self.net.decoder.load_state_dict(decoder.inner.state_dict(), strict=False)
            self.net.decoder.reconstruction_layer.load_state_dict(guest.rebuild.state_dict())
        else:
            self.net = TabNetNoEmbeddings(width, final.out_features, **common).double()
            self.net.encoder.group_attention_matrix = torch.eye(width).double()
            self.net.final_mapping.load_state_dict(final.state_dict())
        self.net.encoder.load_state_dict(encoder.inner.state_dict(), strict=False)
        norm = torch.nn.BatchNorm1d(width, momentum=0.01).double()
        norm.load_state_dict(guest.norm.state_dict(), strict=False)
        mix = torch.nn.Linear(width, width).double()
        mix.load_state_dict(guest.mix.state_dict())
        self.net.encoder.initial_bn = torch.nn.Sequential(norm, mix)

    def pretraining_loss(self, rows: Any, mask: Any) -> Any:
        """What TabNetPretrainer minimises, with this mask."""
        self.net.masker = Masked(mask)
        rebuilt, embedded, obfuscated = self.net(rows)
        return UnsupervisedLoss(rebuilt, embedded, obfuscated)

    def finetuning_loss(self, rows: Any, labels: Any) -> Any:
        """What TabNetClassifier minimises."""
        scores, sparsity = self.net(rows)
        return torch.nn.functional.cross_entropy(scores, labels) - LAMBDA * sparsity


class Masked(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Hides the cells of a given mask, as RandomObfuscator hides those of a mask that it draws."""

    def __init__(self, mask: Any):
        super().__init__()
        self.mask = mask

    def forward(self, values: Any) -> Any:
        return hidden(values, self.mask), self.mask, self.mask


class Split:
    """One guest and a coordinator, each with an optimiser of its own; between them only tensors without history."""

    def __init__(self, width: int, outputs: int):
        def made(build: Callable[[], Any]) -> Any:
            return seeded(3, "a", build).double()

        self.guest = made(lambda: Guest(width, width, SHAPE.latent))
        self.encoder = made(lambda: PartialEncoder(width, SHAPE))
        self.decoder = made(lambda: PartialDecoder(SHAPE))
        self.final = made(lambda: final_mapping(SHAPE.latent, outputs))

    def begin(self, *tops: Any) -> None:
        self.below = torch.optim.Adam(self.guest.parameters(), lr=RATE)
        self.above = torch.optim.Adam([p for top in tops for p in top.parameters()], lr=RATE)

    def pretraining_step(self, rows: Any, counts: Any, index: Any, mask: Any) -> float:
        """Embeddings up; means down, gradients by them up; gradients by embeddings down."""
        for each in (self.below, self.above):
            each.zero_grad()
        sent = self.guest(rows, counts, mask)
        got = sent.detach()[index].requires_grad_()
        steps, _ = self.encoder(got, prior=1 - mask[index])
        means = mean_at_base_rows(self.decoder(steps), index, counts)
        back = means.detach().requires_grad_()
        error = self.guest.error(back, rows, mask, counts, BatchMoments.of(rows, counts))
        error.backward()
        means.backward(back.grad)  # type: ignore[no-untyped-call]
        sent.backward(torch.zeros_like(sent).index_add(0, index, got.grad))
        for each in (self.below, self.above):
            each.step()
        return float(error.detach())

    def finetuning_step(self, rows: Any, counts: Any, index: Any, labels: Any) -> float:
        """Embeddings up, gradients by them down."""
        for each in (self.below, self.above):
            each.zero_grad()
        sent = self.guest(rows, counts)
        got = sent.detach()[index].requires_grad_()
        steps, sparsity = self.encoder(got)
        loss = torch.nn.functional.cross_entropy(self.final(latent_of(steps)), labels) - LAMBDA * sparsity
        loss.backward()
        sent.backward(torch.zeros_like(sent).index_add(0, index, got.grad))
        for each in (self.below, self.above):
            each.step()
        return float(loss.detach())


def agree(split: Split, central: Central) -> None:
    """All weights and running statistics of the split network are those of the central one."""
    encoder = central.net.encoder
    pairs = [(split.encoder.inner, encoder), (split.guest.norm, encoder.initial_bn[0])]
    pairs.append((split.guest.mix, encoder.initial_bn[1]))
    for ours, theirs in pairs:
        expected = theirs.state_dict()
        for name, value in ours.state_dict().items():
            torch.testing.assert_close(value, expected[name], rtol=1e-7, atol=1e-9)


def compare(step: Callable[[int], float], central: Central, loss: Callable[[int], Any], split: Split) -> None:
    """Five steps of both."""
    optimiser = torch.optim.Adam(central.net.parameters(), lr=RATE)
    for number in range(5):
        optimiser.zero_grad()
        expected = loss(number)
        expected.backward()
        assert step(number) == pytest.approx(float(expected.detach()), rel=1e-9)
        optimiser.step()
        agree(split, central)


@pytest.mark.parametrize("joined", [False, True], ids=["identity", "repeated"])
def test_pretraining_follows_central_tabnet(joined: bool) -> None:
    """From the same weights, with the same masks: losses, weights and statistics of five steps.

    With repeated rows the central network averages the decoder's output over equal rows, which is all that differs.
    """
    split = Split(5, 2)
    split.begin(split.encoder, split.decoder)
    central = Central(split.guest, split.encoder, split.decoder, None)
    counts = torch.tensor([1, 3, 2, 1] * 5) if joined else torch.ones(20, dtype=torch.long)
    index = torch.repeat_interleave(torch.arange(20), counts)
    if joined:
        rebuild = central.net.decoder.reconstruction_layer
        central.net.decoder.reconstruction_layer = torch.nn.Sequential(Averaged(index, counts), rebuild)
    masks = [mask_of(number, 20, 5) for number in range(5)]
    batches = [columns(20, 5, seed) for seed in range(5)]
    compare(
        lambda n: split.pretraining_step(batches[n], counts, index, masks[n]),
        central,
        lambda n: central.pretraining_loss(batches[n][index], masks[n][index]),
        split,
    )


class Averaged(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Gives each joined row the mean over the joined rows of its base row."""

    def __init__(self, index: Any, counts: Any):
        super().__init__()
        self.index, self.counts = index, counts

    def forward(self, values: Any) -> Any:
        return mean_at_base_rows(values, self.index, self.counts)[self.index]


@pytest.mark.parametrize("joined", [False, True], ids=["identity", "repeated"])
def test_finetuning_follows_central_tabnet(joined: bool) -> None:
    """The same with labels; repeated rows are exactly the repeated rows of the central network."""
    split = Split(5, 3)
    split.begin(split.encoder, split.final)
    central = Central(split.guest, split.encoder, None, split.final)
    counts = torch.tensor([1, 3, 2, 1] * 5) if joined else torch.ones(20, dtype=torch.long)
    index = torch.repeat_interleave(torch.arange(20), counts)
    batches = [columns(20, 5, seed) for seed in range(5)]
    labels = torch.arange(len(index)) % 3
    compare(
        lambda n: split.finetuning_step(batches[n], counts, index, labels),
        central,
        lambda n: central.finetuning_loss(batches[n][index], labels),
        split,
    )


def test_attention_is_that_of_pytorch_tabnet() -> None:
    """By embedding as `forward_masks` has it."""
    split = Split(5, 2)
    central = Central(split.guest, split.encoder, None, split.final)
    split.encoder.eval(), central.net.eval()
    rows = columns(11, 5)
    found = split.encoder.attention(split.guest.embed(rows, None))
    torch.testing.assert_close(found, central.net.forward_masks(rows)[0])


def test_masks_follow_from_seed_table_and_batch() -> None:
    """The same again, another for another batch or table; about the share of cells is hidden, categories of a column
    together; and what shards draw are parts of what the whole table draws.
    """

    def drawn(batch: int, rows: int = 500, offset: int = 0, alias: str = "a") -> Any:
        return TabNet(1, 0, (3, 2), True).mask(Hiding(0.2, 1, batch, offset), alias, rows, 9)

    mask = drawn(7)
    assert mask.shape == (500, 9)
    assert np.array_equal(mask, drawn(7))
    assert not np.array_equal(mask, drawn(8))
    assert not np.array_equal(mask, drawn(7, alias="b"))
    assert mask.mean() == pytest.approx(0.2, abs=0.02)
    assert np.array_equal(mask[:, 4], mask[:, 6])
    assert not np.array_equal(mask[:, 6], mask[:, 7])
    assert np.array_equal(mask, np.concatenate([drawn(7, 120), drawn(7, 380, 120)]))


def test_latent_is_split_evenly_and_must_reach_all_guests() -> None:
    """16 over five guests; two over three is an error that says what to do."""
    assert latent_parts(16, list("abcde")) == [4, 3, 3, 3, 3]
    with pytest.raises(LearnError, match=r"latent=2 is below the number of tables with features, 3 .*latent=3 or more"):
        latent_parts(2, list("abc"))


def test_a_batch_of_one_joined_row_is_refused() -> None:
    """It has no variance."""
    one = columns(1, 3)
    with pytest.raises(LearnError, match="larger batch_size"):
        WeightedBatchNorm(3).double()(one, BatchMoments.of(one, torch.ones(1)))
