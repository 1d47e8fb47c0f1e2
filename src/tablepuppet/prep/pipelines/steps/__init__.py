"""The steps of pipelines: a new one is a file here, and its name in both lists below."""

from tablepuppet.prep.pipelines.steps.bins import Bin
from tablepuppet.prep.pipelines.steps.bounds import Clip, Outliers, Winsorize
from tablepuppet.prep.pipelines.steps.categories import Hash, OneHot, Ordinal, Recode
from tablepuppet.prep.pipelines.steps.drops import DropConstant, DropMissing
from tablepuppet.prep.pipelines.steps.impute import Impute
from tablepuppet.prep.pipelines.steps.labelled import WOE, TargetEncode
from tablepuppet.prep.pipelines.steps.made import DateParts, Interactions, Polynomial
from tablepuppet.prep.pipelines.steps.map import Map
from tablepuppet.prep.pipelines.steps.scale import Log, MinMax, Power, Robust, Standardize

__all__ = [
    "WOE", "Bin", "Clip", "DateParts", "DropConstant", "DropMissing", "Hash", "Impute", "Interactions", "Log", "Map",
    "MinMax", "OneHot", "Ordinal", "Outliers", "Polynomial", "Power", "Recode", "Robust", "Standardize", "TargetEncode",
    "Winsorize",
]  # fmt: skip
