"""Data preparation over a relation: statistics, pipelines and encodings, computed where the rows are.

As ``tablepuppet.prep`` it is also where pipelines and their steps are found.
"""

from tablepuppet.prep.pipelines.pipeline import Pipeline as Pipeline
from tablepuppet.prep.pipelines.pipeline import booleans as booleans
from tablepuppet.prep.pipelines.pipeline import dates as dates
from tablepuppet.prep.pipelines.pipeline import flags as flags
from tablepuppet.prep.pipelines.pipeline import numbers as numbers
from tablepuppet.prep.pipelines.pipeline import texts as texts
from tablepuppet.prep.pipelines.steps.bins import Bin as Bin
from tablepuppet.prep.pipelines.steps.bounds import Clip as Clip
from tablepuppet.prep.pipelines.steps.bounds import Outliers as Outliers
from tablepuppet.prep.pipelines.steps.bounds import Winsorize as Winsorize
from tablepuppet.prep.pipelines.steps.categories import Hash as Hash
from tablepuppet.prep.pipelines.steps.categories import OneHot as OneHot
from tablepuppet.prep.pipelines.steps.categories import Ordinal as Ordinal
from tablepuppet.prep.pipelines.steps.categories import Recode as Recode
from tablepuppet.prep.pipelines.steps.curves import Log as Log
from tablepuppet.prep.pipelines.steps.curves import Power as Power
from tablepuppet.prep.pipelines.steps.dates import DateParts as DateParts
from tablepuppet.prep.pipelines.steps.drops import DropConstant as DropConstant
from tablepuppet.prep.pipelines.steps.drops import DropMissing as DropMissing
from tablepuppet.prep.pipelines.steps.impute import Impute as Impute
from tablepuppet.prep.pipelines.steps.labelled import WOE as WOE
from tablepuppet.prep.pipelines.steps.labelled import TargetEncode as TargetEncode
from tablepuppet.prep.pipelines.steps.map import Map as Map
from tablepuppet.prep.pipelines.steps.products import Interactions as Interactions
from tablepuppet.prep.pipelines.steps.products import Polynomial as Polynomial
from tablepuppet.prep.pipelines.steps.scale import MinMax as MinMax
from tablepuppet.prep.pipelines.steps.scale import Robust as Robust
from tablepuppet.prep.pipelines.steps.scale import Standardize as Standardize
