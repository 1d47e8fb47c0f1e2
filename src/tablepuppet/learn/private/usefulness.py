"""Whether a model is useful despite noise, and what would help if not, from what the coordinator knows anyway.

Input: losses on labels and predictions that were released, multipliers, counts of rows and columns. Output: the
text of a warning, with figures. It uses released values only, so it reveals nothing more and costs nothing.

The figures are rules of thumb for linear models of 3 to 60 columns and 100 to 10,000 rows:

- nu = multiplier sqrt(parameters) / (rows sqrt(steps)) is the noise of a table's steps relative to the bound of one
  row. With nu = 0.1 a table's part of the model keeps most of its value, with 0.3 almost none. nu falls with more rows
  and with a larger epsilon.
- A numeric column without bounds in the policy needs about 20 x multiplier rows to find its range, text about 28.
- Noise on predictions does not average out over rows: if it is as large as the predictions, half of them is left.
- Noisy labels carry a share s^2 of the information of true labels. Features that explain a tenth of the label need
  about 20 rows per parameter, divided by that share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tablepuppet.learn.labels.noisy import kept
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.private.feature_promise import FeaturePromise, SumPromise
from tablepuppet.privacy.accountant import gaussian_epsilon, noise_multiplier
from tablepuppet.privacy.settings import Privacy
from tablepuppet.runs.figures import number

LITTLE = 0.01  # share of a constant's loss: a model that gains less, on labels without noise, is no better
FINE_NOISE, ALL_NOISE = 0.1, 1.5  # nu
ROWS_FOR_RANGE, ROWS_FOR_LIST = 20, 28  # in multipliers
ROWS_PER_PARAMETER = 20
SPREAD = 32.0  # noise of epsilon 1, in variances of a label whose standard deviation is a quarter of its bounds


@dataclass(frozen=True)
class TableSize:
    """The size of one table, with which noise is compared."""

    name: str
    parties: tuple[str, ...]
    rows: int  # that take part
    parameters: int
    shards: int = 1
    dropped: tuple[str, ...] = ()  # columns that noise hides


def is_useless(loss: JoinedLoss, constant: float, gained: float, rows: int, searched: float) -> bool:
    """Whether a model is no better than a constant, though its mean loss is lower by the share ``gained``.

    A model that fits chance in ``searched`` directions seems to gain about that many nats in total (Akaike).
    """
    nats = -math.log(max(1 - gained, 1e-300)) / 2 if loss.quadratic else constant * gained
    return rows * nats < searched or gained <= 0


def noise_of_steps(promise: FeaturePromise, alias: str, table: TableSize) -> float:
    """nu of a table: the approximate noise in its parameters, relative to the bound of one row; 0 without steps."""
    if not table.parameters or not table.rows:
        return 0.0
    return promise.row_noise(alias) * math.sqrt(table.parameters * table.shards) / table.rows


def is_all_noise(promise: FeaturePromise, tables: Mapping[str, TableSize]) -> bool:
    """Whether the parameters of all tables are almost only noise: any gain of such a model is chance.

    False if the plane search, which has no noise, covers all parameters because there are enough rounds.
    """
    learned = {alias: table for alias, table in tables.items() if table.parameters}
    return bool(learned) and all(
        table.parameters > promise.rounds and noise_of_steps(promise, alias, table) > ALL_NOISE
        for alias, table in learned.items()
    )


def searched_directions(promise: FeaturePromise, tables: Mapping[str, TableSize]) -> float:
    """In how many directions a fit can follow chance: the parameters that noise does not hide, plus its rounds."""
    seen = sum(t.parameters / (1 + (noise_of_steps(promise, a, t) / FINE_NOISE) ** 2) for a, t in tables.items())
    return promise.rounds + seen


def prediction_noise_ratio(promise: FeaturePromise) -> float | None:
    """Noise in predictions relative to their usual size; None if they have none."""
    multiplier = promise.noise.prediction
    return None if multiplier is None else promise.prediction_size * multiplier


def help_for_features(promise: FeaturePromise, tables: Mapping[str, TableSize]) -> list[str]:
    """Advice for a fit with noise on features, as sentences; empty if no noise is large."""
    learned = any(table.parameters for table in tables.values())
    found = [_for_predictions(promise) if learned else None, *(_for_columns(promise, a, t) for a, t in tables.items())]
    return [text for text in (*found, *(_for_steps(promise, a, t) for a, t in tables.items())) if text]


def _for_predictions(promise: FeaturePromise) -> str | None:
    noise = prediction_noise_ratio(promise)
    if noise is None or noise < 0.5:
        return None
    enough = gaussian_epsilon(1 / promise.prediction_size, promise.privacy.delta, promise.rounds)
    return (
        f"Predictions have noise of {number(noise, 2)} times their own size, which leaves {1 / (1 + noise**2):.1%} of "
        f"the information in them, however many rows there are: prediction_epsilon={number(enough, 2)} would leave "
        "half; without it nothing is lost, and epsilon_given_messages is what holds."
    )


def help_for_clipping(promise: FeaturePromise, deviation: float, columns: int) -> list[str]:
    """Advice to increase ``clip_norm`` of a regressor, if that would help; ``deviation`` is that of the label.

    With noise on predictions a step is never longer than the tables' own solve, so what clipping removes is lost.
    """
    usual = deviation * math.sqrt(columns)
    noise = promise.noise
    if not isinstance(promise, SumPromise) or noise.prediction is None or noise.clip >= usual / 2:
        return []
    return [
        f"clip_norm={noise.clip:g} cuts rows' gradients, whose usual length is the label's standard deviation "
        f"times the root of the columns, about {number(usual, 2)}: use that."
    ]


def _for_columns(promise: FeaturePromise, alias: str, table: TableSize) -> str | None:
    if not table.dropped or alias not in promise.encoders.multipliers:
        return None
    rows = rows_for_encoders(promise, alias)
    if rows <= table.rows:  # then it was not for noise that they were left out
        return None
    epsilon = epsilon_for(promise, rows / max(table.rows, 1))
    return (
        f"Table {table.name}: noise hides {len(table.dropped)} of its columns ({_listed(table.dropped)}). Bounds and "
        f"categories in the policy of {_listed(table.parties)} cost nothing; else it needs {_about(rows)} rows that "
        f"take part (there are {table.rows:,}), feature_epsilon={epsilon} or fewer columns."
    )


def epsilon_for(promise: FeaturePromise, factor: float) -> str:
    """The feature_epsilon whose noise is ``factor`` times smaller, rounded up: noise is not in proportion to it."""
    delta = promise.privacy.delta
    enough = gaussian_epsilon(noise_multiplier(promise.whole, delta) / factor, delta)
    unit = 10.0 ** (math.floor(math.log10(enough)) - 1)
    return number(math.ceil(enough / unit) * unit, 2)


def rows_for_encoders(promise: FeaturePromise, alias: str) -> float:
    """The approximate number of rows that a table needs to find ranges and categories of its columns despite noise."""
    most = ROWS_FOR_LIST if promise.statistics[alias].lists else ROWS_FOR_RANGE
    return most * promise.encoders.multipliers[alias]


def _for_steps(promise: FeaturePromise, alias: str, table: TableSize) -> str | None:
    noise = noise_of_steps(promise, alias, table)
    if noise <= FINE_NOISE:
        return None
    factor = noise / FINE_NOISE
    fewer = round(table.parameters / factor**2)
    return (
        f"Table {table.name}: noise hides what its {table.rows:,} rows say about {_counted(table.parameters)}: "
        f"{_about(table.rows * factor)} rows would do, or feature_epsilon={epsilon_for(promise, factor)}"
        f"{f', or {_counted(fewer)}' if fewer >= 1 else ''}."
    )


def label_share(privacy: Privacy, classes: int | None) -> float:
    """s^2: the share of information in noisy labels; for numbers, if their deviation is a quarter of the bounds.

    >>> round(label_share(Privacy(label_epsilon=2.0), 2), 2), round(label_share(Privacy(label_epsilon=2.0), None), 2)
    (0.58, 0.11)
    """
    assert privacy.label_epsilon is not None, "asked where labels have noise"
    if classes is None:
        return 1 / (1 + SPREAD / privacy.label_epsilon**2)
    keep = kept(privacy, classes)
    return (keep - (1 - keep) / (classes - 1)) ** 2


def help_for_labels(privacy: Privacy, classes: int | None, rows: int, parameters: int) -> list[str]:
    """Advice for a fit with noisy labels, as sentences; empty if there are enough rows."""
    share = label_share(privacy, classes)
    needed = ROWS_PER_PARAMETER * parameters / share
    if rows >= needed or not rows:
        return []
    enough = ROWS_PER_PARAMETER * parameters / rows  # the share that would be enough
    ways = [f"{_about(needed)} rows would do for {_counted(parameters)}"]
    ways += [f"label_epsilon={number(_label_epsilon(enough, classes), 2)}"] if enough < 1 else []
    ways.append(f"fewer columns (about {max(1, round(rows * share / ROWS_PER_PARAMETER)):,})")
    ways += [] if classes is not None else ["narrower label bounds"]
    return [
        f"Labels have so much noise that {rows:,} of them say as much as {_about(rows * share)} without: "
        f"{', or '.join(ways)}{'' if enough < 1 else '; no label_epsilon would be enough'}."
    ]


def _label_epsilon(share: float, classes: int | None) -> float:
    """The epsilon at which noisy labels carry this share; for classes, by randomised response."""
    if classes is None:
        return math.sqrt(SPREAD / (1 / share - 1))
    root = math.sqrt(share)
    return math.log((1 + (classes - 1) * root) / (1 - root))


def _counted(parameters: int) -> str:
    return "1 parameter" if parameters == 1 else f"{parameters:,} parameters"


def _about(count: float) -> str:
    """A number rounded to two digits, in words.

    >>> _about(1234.5), _about(3.2)
    ('about 1,200', 'about 3')
    """
    digits = max(0, len(str(int(count))) - 2)
    return f"about {round(count / 10**digits) * 10**digits:,}"


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"
