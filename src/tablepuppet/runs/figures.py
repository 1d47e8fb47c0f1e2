"""Numbers for people: a metric, a value, a size is written in one way, wherever it is shown.

Tables, progress, commands and notebooks all take their texts from here; programs get the numbers themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

METRICS = {"accuracy": "accuracy", "auc": "AUC", "log_loss": "log loss", "rmse": "RMSE", "r2": "R2"}  # as people spell
_DECIMALS = 4  # of metrics that have no unit
_IN_UNITS = ("rmse", "loss")  # of the label: as many digits as a number of any size needs
_GROUPED_FROM = 10_000  # below it no comma parts thousands, so that a year stays a year
_LEAST, _MOST = 1e-4, 1e15  # beyond these a number has an exponent
UNKNOWN = "not known"
WITHHELD, NOT_APPLICABLE, NO_PROMISE = "withheld", "-", "no promise"  # why there is no number


def metric_name(name: str) -> str:
    """How people spell a metric, or a column that is named after one.

    >>> metric_name("auc"), metric_name("mean_test_log_loss"), metric_name("seconds")
    ('AUC', 'mean test log loss', 'seconds')
    """
    known = _metric_in(name)
    before = name.removesuffix(known).replace("_", " ") if known else name.replace("_", " ")
    return before + METRICS.get(known, "")


def is_metric(name: str) -> bool:
    """Whether a column holds a metric: ``auc``, ``test_auc`` and the like."""
    return bool(_metric_in(name))


@lru_cache(1024)
def _metric_in(name: str) -> str:
    return next((known for known in METRICS if name == known or name.endswith(f"_{known}")), "")


def metric(name: str, value: float) -> str:
    """The value of a metric or a loss: four decimals, but four digits where it has the unit of the label.

    >>> metric("auc", 0.69919), metric("rmse", 35990.4), metric("loss", 0.5), metric("auc", float("nan"))
    ('0.6992', '35,990', '0.5000', 'not known')
    """
    if math.isnan(value):
        return UNKNOWN
    if (_metric_in(name) or name) in _IN_UNITS:
        return number(value, zeros=True)
    return fixed(value, _DECIMALS)


def metrics_line(values: Mapping[str, float], constant: Mapping[str, float] | None = None) -> str:
    """Metrics in one line, each beside that of a constant model, where it is known.

    >>> metrics_line({"accuracy": 0.76941, "auc": 0.69919, "log_loss": 0.50541})
    'accuracy 0.7694, AUC 0.6992, log loss 0.5054'
    >>> metrics_line({"accuracy": 0.76012}, {"accuracy": 0.759})
    'accuracy 0.7601 (constant 0.7590)'
    """
    known = constant or {}
    return ", ".join(f"{metric_name(name)} {beside(name, value, known.get(name))}" for name, value in values.items())


def beside(name: str, value: float, constant: float | None) -> str:
    """A metric with that of a constant model in brackets, if both are known.

    >>> beside("auc", 0.69919, 0.5), beside("auc", float("nan"), 0.5), beside("auc", 0.69919, None)
    ('0.6992 (constant 0.5000)', 'not known', '0.6992')
    """
    if constant is None or math.isnan(value) or math.isnan(constant):
        return metric(name, value)
    return f"{metric(name, value)} (constant {metric(name, constant)})"


def number(value: float, digits: int = 4, *, zeros: bool = False) -> str:
    """A number with so many significant digits, its whole part always whole; ``zeros`` keeps those at its end.

    Thousands are parted from 10,000 on; very small and very large numbers have an exponent.

    >>> number(2013.0), number(35990.0), number(0.0042841), number(1.5), number(-0.0), number(1e-7)
    ('2013', '35,990', '0.004284', '1.5', '0', '1e-07')
    >>> number(0.5, zeros=True)
    '0.5000'
    """
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return f"{0:.{digits}f}" if zeros else "0"
    if not _LEAST <= abs(value) < _MOST:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, decimals)
    text = f"{rounded:,.{decimals}f}" if abs(rounded) >= _GROUPED_FROM else f"{rounded:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals and not zeros else text


def fixed(value: float, decimals: int) -> str:
    """A number with so many decimals; what rounds to zero has no sign.

    >>> fixed(-0.00001, 4), fixed(-0.25, 1), fixed(1234.5, 0)
    ('0.0000', '-0.2', '1,234')
    """
    return f"{round(value, decimals) + 0.0:,.{decimals}f}"


def shown(value: Any, digits: int = 4) -> str:
    """A value as a cell of a table: whole numbers are counts, fractions have so many significant digits.

    >>> shown(None), shown("a"), shown(12345), shown(0.123456), shown(True), shown(["a", "b"])
    ('', 'a', '12,345', '0.1235', 'yes', 'a, b')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(shown(each, digits) for each in value)
    if isinstance(value, float):
        return number(value, digits)
    return f"{value:,}" if isinstance(value, int) else str(value)


def setting_text(value: Any, digits: int = 4) -> str:
    """A setting, as short as it can be typed.

    >>> setting_text(1e-6), setting_text(0.00123456), setting_text(2e4), setting_text("lbfgs"), setting_text((16, 8))
    ('1e-06', '0.001235', '20000', 'lbfgs', '(16, 8)')
    """
    return number(value, digits).replace(",", "") if isinstance(value, float) else str(value)


def readable(size: float) -> str:
    """Bytes.

    >>> readable(999), readable(31_234_567), readable(999_700)
    ('999 B', '31.2 MB', '1 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.5:  # three digits of more are 1000
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def seconds(duration: float) -> str:
    """A duration.

    >>> seconds(0.04), seconds(12.3), seconds(150), seconds(7260)
    ('0.0 s', '12 s', '2 min 30 s', '2 h 1 min')
    """
    if duration < 10:
        return f"{duration:.1f} s"
    whole = round(duration)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"


def shown_time(duration: float) -> str:
    """A duration, in milliseconds where it is short.

    >>> shown_time(0.0042), shown_time(75)
    ('4.2 ms', '75 s')
    """
    return f"{1000 * duration:.1f} ms" if duration < 1 else seconds(duration)
