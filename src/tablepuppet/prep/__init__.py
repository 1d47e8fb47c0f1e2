"""Data preparation over a relation: statistics, pipelines and encodings, computed where the rows are.

As ``tablepuppet.prep`` it is also where pipelines and their steps are found.
"""

from tablepuppet.prep.pipeline import Pipeline as Pipeline
from tablepuppet.prep.pipeline import booleans as booleans
from tablepuppet.prep.pipeline import dates as dates
from tablepuppet.prep.pipeline import flags as flags
from tablepuppet.prep.pipeline import numbers as numbers
from tablepuppet.prep.pipeline import texts as texts
from tablepuppet.prep.steps.bins import Bin as Bin
from tablepuppet.prep.steps.bounds import Clip as Clip
from tablepuppet.prep.steps.bounds import Outliers as Outliers
from tablepuppet.prep.steps.bounds import Winsorize as Winsorize
from tablepuppet.prep.steps.categories import Hash as Hash
from tablepuppet.prep.steps.categories import OneHot as OneHot
from tablepuppet.prep.steps.categories import Ordinal as Ordinal
from tablepuppet.prep.steps.categories import Recode as Recode
from tablepuppet.prep.steps.curves import Log as Log
from tablepuppet.prep.steps.curves import Power as Power
from tablepuppet.prep.steps.dates import DateParts as DateParts
from tablepuppet.prep.steps.drops import DropConstant as DropConstant
from tablepuppet.prep.steps.drops import DropMissing as DropMissing
from tablepuppet.prep.steps.impute import Impute as Impute
from tablepuppet.prep.steps.labelled import WOE as WOE
from tablepuppet.prep.steps.labelled import TargetEncode as TargetEncode
from tablepuppet.prep.steps.map import Map as Map
from tablepuppet.prep.steps.products import Interactions as Interactions
from tablepuppet.prep.steps.products import Polynomial as Polynomial
from tablepuppet.prep.steps.scale import MinMax as MinMax
from tablepuppet.prep.steps.scale import Robust as Robust
from tablepuppet.prep.steps.scale import Standardize as Standardize
