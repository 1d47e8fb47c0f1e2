"""Data preparation over a relation: statistics, pipelines and encodings, computed where the rows are.

As ``tablepuppet.prep`` it is also where pipelines and their steps are found.
"""

from tablepuppet.prep.pipelines import steps
from tablepuppet.prep.pipelines.pipeline import Pipeline, booleans, dates, flags, numbers, texts
from tablepuppet.prep.pipelines.steps import *  # noqa: F403 - their names are listed there

__all__ = ["Pipeline", "booleans", "dates", "flags", "numbers", "texts"]
__all__ += steps.__all__


def __dir__() -> list[str]:
    return __all__
