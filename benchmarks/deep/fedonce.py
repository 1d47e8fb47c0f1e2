"""FedOnce beside what its paper compares it with, on the paper's data, with four parties.

Run with ``python -m benchmarks.deep.fedonce`` (``--quick``: one split, fewer rows and epochs; names of parts run only
these). All in one process; OMP_NUM_THREADS=1 gives figures of one thread. Communication is what guests, the parties
without the label, send and get as EMBEDDINGS, gradients included: measured where messages are sent. No setting was
chosen by a test row. On a machine that others use too, ``processor_seconds`` are what counts. Writes
``benchmarks/results/deep_fedonce.json`` and a picture beside it.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tablepuppet as tp
from benchmarks.baselines.fedonce import Boosted, Combine, Solo, priv_baseline, splitnn_at
from benchmarks.data import is_there
from benchmarks.deep.data import Halves, covtype, mnist, phishing, relations, twins, ujiindoorloc
from benchmarks.deep.results import RESULTS, Results
from tablepuppet.baselines import Centralized
from tablepuppet.privacy.accountant import Spending, noise_multiplier

SPLITS, COMPARED = 10, 2
PAPER: dict[str, Any] = {"guest_epochs": 100, "epochs": 300}  # of the paper, on phishing
PRIVATE = (2.0, 4.0, 6.0, 8.0)
CNN = tp.bottom.cnn(shape=(14, 14), hidden=(128,))
WIDE: dict[str, Any] = {"embedding": 64, "batch_size": 256, "lr": 1e-3}


def guest_bytes(traffic: Callable[[], list[dict[str, Any]]], host: str = "p0") -> int:
    """Bytes of embeddings and of gradients by them so far, of all parties but the host."""
    return sum(e["bytes"] for e in traffic() if e["party"] != host and e["release"] == "EMBEDDINGS")


def measured(learner: Any, train: tp.Relation, test: tp.Relation) -> dict[str, Any]:
    """How a learner or a baseline does on rows that it has not seen, how long its fit takes, and what guests send."""
    engine = train.client.engine
    before, start, used = guest_bytes(engine.traffic.to_list), time.perf_counter(), time.process_time()
    learner.fit(train)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    sent = guest_bytes(engine.traffic.to_list) - before
    found = {"seconds": round(seconds, 2), "processor_seconds": round(used, 2), "guest_bytes": sent}
    found |= learner.evaluate(test)
    return found | ({"epochs": len(learner.history_)} if hasattr(learner, "history_") else {})


def compared(
    halves: Halves, task: str, once: Mapping[str, Any], folder: Path, *, others: bool = True, trees: bool = True,
    steps: Mapping[str, Any] | None = None, hidden: Sequence[int] = (30, 30),
    put: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:  # fmt: skip
    """FedOnce and, with ``others``, all that it is compared with, on one split; ``put`` gets what there is so far.

    ``steps``: epochs and batches that the host, SplitNN, Solo and Combine all have; ``hidden``: layers of the last two.
    """
    classes = task == "classification"
    train, test = relations(folder, halves)
    kinds: tuple[Any, Any, Any] = (
        (tp.FedOnceClassifier, tp.SplitNNClassifier, tp.LogisticRegression)
        if classes
        else (tp.FedOnceRegressor, tp.SplitNNRegressor, tp.LinearRegression)
    )
    equal = dict(steps or {})
    learner = kinds[0](**once, **equal)
    shared = {name: value for name, value in once.items() if name in ("bottom", "top", "batch_size", "seed")}
    makers: dict[str, Callable[[], Any]] = {
        "FedOnce": lambda: learner,
        "FedOnce-PCA": lambda: kinds[0](**{**once, **equal, "method": "pca"}),
    }
    if others:
        makers |= {
            "SplitNN": lambda: kinds[1](**shared, **equal),
            "SplitNN at equal bytes": lambda: splitnn_at(learner),
            "Solo": lambda: Solo(task, hidden, **equal),
            "Combine": lambda: Combine(task, hidden, **equal),
            "Linear-Combine": lambda: Centralized(kinds[2](l2=1e-4)),
        } | ({"Boosted": lambda: Boosted(task)} if trees else {})
    found: dict[str, Any] = {}
    for name, make in makers.items():
        found[name] = measured(make(), train, test)
        put(found)
    return found


def averaged(splits: list[dict[str, Any]], measure: str) -> dict[str, Any]:
    """Mean and standard deviation over splits, by what was compared."""
    found = {name: [split[name] for split in splits if name in split] for name in splits[0]}
    return {
        name: {
            "mean": float(np.mean([each[measure] for each in entries])),
            "deviation": float(np.std([each[measure] for each in entries])),
            "splits": len(entries),
            "seconds": float(np.mean([each["seconds"] for each in entries])),
            "guest_bytes": float(np.mean([each["guest_bytes"] for each in entries])),
        }
        for name, entries in found.items()
    }


def run_phishing(results: Results, folder: Path, quick: bool) -> None:
    """Ten fixed splits with default settings; what it is compared with, on the first two."""
    splits = []
    for seed in range(1 if quick else SPLITS):
        once = {"seed": seed} | ({"epochs": 20, "guest_epochs": 10} if quick else {})
        place = folder / f"phishing{seed}"
        splits.append(compared(phishing(seed), "classification", once, place, others=seed < COMPARED))
        results.put("phishing", {"splits": splits, "means": averaged(splits, "accuracy"), "twins": twins(phishing(0))})


def run_time(results: Results, folder: Path, quick: bool) -> None:
    """The paper's epochs on phishing, in batches of 100 rows: guests 100, host 300; the authors' code takes 315 s."""
    train, test = relations(folder / "time", phishing(0))
    epochs: dict[str, Any] = {"guest_epochs": 10, "epochs": 30} if quick else PAPER
    settings: dict[str, Any] = {"bottom": tp.bottom.mlp(hidden=(30, 30)), "top": (30,), "batch_size": 100}
    for embedding in (3, 16):
        learner = tp.FedOnceClassifier(embedding=embedding, **epochs, **settings)
        results.put(f"phishing, epochs of the paper, embedding {embedding}", measured(learner, train, test))


def run_mnist(results: Results, folder: Path, quick: bool) -> None:
    """Four quarters of the digits: 12,000 rows with 6 + 8 epochs, then all rows."""
    cnn = tp.bottom.cnn(shape=(14, 14))
    budgets: dict[str, tuple[int | None, dict[str, Any]]] = {
        "mnist, 12,000 rows, 6 + 8 epochs": (12_000, {"guest_epochs": 6, "epochs": 8})
    }
    if quick:
        budgets = {"mnist, 2,000 rows, 3 + 4 epochs": (2_000, {"guest_epochs": 3, "epochs": 4})}
    for name, (rows, epochs) in budgets.items():
        train, test = relations(folder / f"mnist{rows}", mnist(rows))
        learner = tp.FedOnceClassifier(bottom=cnn, top=(128,), assign_every=3, **epochs)
        found = {"FedOnce": measured(learner, train, test)}
        found["SplitNN at equal bytes"] = measured(splitnn_at(learner), train, test)
        results.put(name, found)


def run_mnist_whole(results: Results, folder: Path, quick: bool) -> None:
    """All 60,000 digits in some minutes."""
    epochs = {"guest_epochs": 1, "epochs": 2} if quick else {"guest_epochs": 10, "epochs": 24}
    mnist_by_epoch("mnist, all rows", tp.bottom.cnn(shape=(14, 14)), epochs, results, folder, quick)


def run_mnist_hour(results: Results, folder: Path, quick: bool) -> None:
    """All 60,000 digits, within an hour: a hidden layer of 128 as in the paper, 64 numbers per row, smaller batches.

    `run_mnist_choose` has what speaks for them.
    """
    epochs = {"guest_epochs": 1, "epochs": 2} if quick else {"guest_epochs": 8, "epochs": 75}
    mnist_by_epoch("mnist, an hour", CNN, {**epochs, **WIDE}, results, folder, quick)


def run_mnist_stopped(results: Results, folder: Path, quick: bool) -> None:
    """The same with four epochs of guests; the host holds a tenth of the training rows out, and stops by them."""
    train, test = relations(folder / "stopped", mnist(2_000 if quick else None))
    learner = tp.FedOnceClassifier(bottom=CNN, top=(128,), assign_every=3, guest_epochs=1 if quick else 4, **WIDE)
    found = measured(learner, train, test)
    results.put("mnist, stopped by rows held out", {**found, "best_round": learner.best_round_, **WIDE})


def run_mnist_choose(results: Results, folder: Path, quick: bool) -> None:
    """Layers, widths and epochs of guests on rows of training: 12,000 to learn from, 5,000 others to measure on."""
    learned, measured_on = (1_000, 500) if quick else (12_000, 5_000)
    found, rows = {}, mnist(learned + measured_on).train
    places = np.arange(len(rows))
    halves = Halves(rows.rows(places[:learned]), rows.rows(places[learned:]))
    train, test = relations(folder / "choose", halves)
    for hidden, embedding, epochs in (((), 16, 2), ((128,), 16, 2), ((128,), 16, 8), ((128,), 32, 2), ((128,), 64, 2)):
        learner = tp.FedOnceClassifier(
            bottom=tp.bottom.cnn(shape=(14, 14), hidden=hidden), embedding=embedding, guest_epochs=epochs, epochs=10,
            top=(128,), assign_every=3, batch_size=128, lr=2e-3,
        )  # fmt: skip
        found[f"hidden {hidden}, {embedding} numbers, {epochs} epochs"] = measured(learner, train, test)
        results.put("mnist, rows of training only", found)


def mnist_by_epoch(
    name: str, bottom: Any, settings: Mapping[str, Any], results: Results, folder: Path, quick: bool
) -> None:
    """Accuracy on test rows after each epoch of the host.

    It is written after each epoch, so that a run that is stopped leaves what it had. No epoch is chosen by it.
    """
    train, test = relations(folder / "mnist", mnist(2_000 if quick else None))
    began, used, curve = time.perf_counter(), time.process_time(), []

    def read(event: tp.Event) -> None:
        if event.name != "fit":
            return
        seconds, processor = round(time.perf_counter() - began), round(time.process_time() - used)
        curve.append({"accuracy": event.fields["validation_metric"], "seconds": seconds, "processor": processor})
        results.put(name, {**settings, "by epoch": curve})

    tp.FedOnceClassifier(
        bottom=bottom, top=(128,), assign_every=3, patience=10_000, callbacks=[read], **settings
    ).fit(train, test)  # fmt: skip


def run_ujiindoorloc(results: Results, folder: Path, quick: bool) -> None:
    """Longitude and latitude, each scaled to 0..1."""
    for label in ("LONGITUDE",) if quick else ("LONGITUDE", "LATITUDE"):
        once = {"bottom": tp.bottom.mlp(hidden=(64, 64))} | ({"epochs": 5, "guest_epochs": 2} if quick else {})
        halves = ujiindoorloc(0, label)
        results.put(
            f"ujiindoorloc, {label.lower()}", compared(halves, "regression", once, folder / label, trees=not quick)
        )


def run_covtype(results: Results, folder: Path, quick: bool) -> None:
    """Type 2 against the rest, on a sample of rows."""
    rows = 5_000 if quick else 20_000
    once: dict[str, Any] = {"epochs": 5, "guest_epochs": 2} if quick else {}
    results.put(f"covtype, {rows:,} rows", compared(covtype(0, rows), "classification", once, folder / "covtype"))


def run_covtype_whole(results: Results, folder: Path, quick: bool) -> None:
    """All rows, with as many steps for each: 20 epochs in batches of 1,024; guests have three epochs of their own.

    FedOnce and SplitNN have the same networks, with 10,000 parameters in all; the pooled networks have about as many.
    """
    steps = {"epochs": 2 if quick else 20, "batch_size": 1_024}
    once = {"guest_epochs": 3, "bottom": tp.bottom.mlp(hidden=(32, 32), embedding=16)}

    def put(found: dict[str, Any]) -> None:
        results.put("covtype, all rows", {**found, **steps, "guest_epochs": 3})

    halves = covtype(0, 5_000 if quick else None)
    compared(halves, "classification", once, folder / "whole", steps=steps, hidden=(96, 64), put=put)


def run_private(results: Results, folder: Path, quick: bool) -> None:
    """FedOnce-L1 on phishing: epsilon for somebody with a row in every table, given messages, by moments division.

    The promise of each table is found such that all together come to that. Priv-Baseline divides epsilon simply.
    """
    train, test = relations(folder / "private", phishing(0))
    settings: dict[str, Any] = {"embedding": 8, "bottom": tp.bottom.mlp(hidden=(30,)), "top": (10,)}
    for epsilon in PRIVATE[:1] if quick else PRIVATE:
        found = {}
        moments = tp.Privacy(feature_epsilon=_share(epsilon) * epsilon, delta=1e-5)
        plain = tp.FedOnceClassifier(**settings)
        for name, learner in (
            ("FedOnce-L1", tp.FedOnceClassifier(privacy=moments, **settings)),
            ("Priv-Baseline", priv_baseline(plain, train, epsilon)),
        ):
            found[name] = measured(learner, train, test) | {
                "epsilon": str(learner.privacy_["epsilon"]),
                "epsilon_given_messages": learner.privacy_["epsilon_given_messages"],
                "total_by_moments": learner.privacy_["total"]["moments_given_messages"],
                "total_by_simple_division": learner.privacy_["total"]["epsilon_given_messages"],
            }
        results.put(f"phishing, epsilon {epsilon:g}", found)


def _share(epsilon: float) -> float:
    """What each of four tables may promise, as a share of what all come to: Gaussian noise in so many steps each."""
    low, high = 0.25, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        multiplier = noise_multiplier(middle * epsilon, 1e-5)
        total = Spending.of_gaussian(multiplier).times(4).epsilon(1e-5)
        low, high = (middle, high) if total <= epsilon else (low, middle)
    return low


def run_curves(results: Results, folder: Path, quick: bool) -> None:
    """Accuracy against communication on phishing (Figure 6): FedOnce, then further rounds, beside SplitNN.

    A run with the test rows as validation gives accuracy by epoch; the same run without them gives bytes by epoch.
    """
    train, test = relations(folder / "curves", phishing(0))
    more = 5 if quick else 15
    shared: dict[str, Any] = {"epochs": 5 if quick else 40, "patience": 10_000}
    found = {}
    for name, learner in {
        "FedOnce, then rounds": tp.FedOnceClassifier(rounds=more, guest_epochs=5 if quick else 30, **shared),
        "SplitNN": tp.SplitNNClassifier(epochs=more, bottom=tp.bottom.mlp(hidden=(32, 32), embedding=16)),
    }.items():
        seen, sent = [], [guest_bytes(train.client.engine.traffic.to_list)]

        def read(event: tp.Event, sent: list[int] = sent) -> None:
            if event.name == "fit":
                sent.append(guest_bytes(train.client.engine.traffic.to_list))

        learner.set_params(callbacks=[read]).fit(train)
        seen = [entry["validation_metric"] for entry in learner.set_params(callbacks=[]).fit(train, test).history_]
        found[name] = {"guest_bytes": [each - sent[0] for each in sent[1:]], "accuracy": seen}
    found["FedOnce, then rounds"] = {  # of the one message on, the last epoch of the host counts
        key: values[shared["epochs"] - 1 :] for key, values in found["FedOnce, then rounds"].items()
    }
    results.put("curves", found)
    draw(found, RESULTS / "deep-fedonce.png")


def draw(curves: Mapping[str, Any], path: Path) -> None:
    """Accuracy against megabytes of guests."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4))
    for name, curve in curves.items():
        if isinstance(curve, Mapping):
            axes.plot([each / 1e6 for each in curve["guest_bytes"]], curve["accuracy"], marker="o", ms=3, label=name)
    axes.set_xscale("log")
    axes.set_xticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
    axes.minorticks_off()
    axes.set_xlabel("MB that guests send and get")
    axes.set_ylabel("accuracy on test rows")
    axes.set_title("phishing, four parties")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


PARTS: dict[str, Callable[[Results, Path, bool], None]] = {
    "time": run_time, "phishing": run_phishing, "curves": run_curves, "mnist": run_mnist,
    "private": run_private, "covtype": run_covtype, "ujiindoorloc": run_ujiindoorloc, "mnist-whole": run_mnist_whole,
    "mnist-choose": run_mnist_choose, "mnist-hour": run_mnist_hour, "mnist-stopped": run_mnist_stopped,
    "covtype-whole": run_covtype_whole,
}  # fmt: skip


def main() -> None:
    """Measure everything that is asked for and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one split, fewer rows and epochs")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; none: all")
    given = parser.parse_args()
    logging.getLogger("tablepuppet").setLevel(logging.ERROR)
    results = Results("deep_fedonce_quick" if given.quick else "deep_fedonce")
    with tempfile.TemporaryDirectory() as place:
        for name in given.parts or PARTS:
            data = name.partition("-")[0]
            if is_there({"time": "phishing", "curves": "phishing", "private": "phishing"}.get(data, data)):
                PARTS[name](results, Path(place), given.quick)


if __name__ == "__main__":
    main()
