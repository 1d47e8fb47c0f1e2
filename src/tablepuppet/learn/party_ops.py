"""Every op of the learners, for a party that is a process of its own: importing this registers them.

What only the coordinator needs, such as scikit-learn, stays out.
"""

from tablepuppet.learn.labels import joined, metrics
from tablepuppet.learn.labels import noisy as noisy_labels
from tablepuppet.learn.linear import consensus
from tablepuppet.learn.linear import ops as ridge_ops
from tablepuppet.learn.network import admm, lbfgs
from tablepuppet.learn.private import steps
from tablepuppet.learn.solve import sgd
from tablepuppet.learn.tables import ops as model_ops
from tablepuppet.learn.tables import shelf_ops
from tablepuppet.operators import delivery, ids
from tablepuppet.prep import (
    category_names,
    correlation,
    crosstab,
    distribution,
    encode,
    groups,
    histograms,
    private_encode,
    sent_columns,
    shape,
    statistics,
)

MODULES = (
    model_ops,
    shelf_ops,
    sgd,
    ridge_ops,
    consensus,
    admm,
    lbfgs,
    steps,
    joined,
    noisy_labels,
    metrics,
    delivery,
    ids,
    category_names,
    correlation,
    crosstab,
    distribution,
    encode,
    groups,
    histograms,
    private_encode,
    sent_columns,
    shape,
    statistics,
)
