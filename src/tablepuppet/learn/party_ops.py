"""Every op of the learners, for a party that is a process of its own: importing this registers them.

What only the coordinator needs, such as scikit-learn, stays out.
"""

from tablepuppet.learn import (
    consensus,
    label_metrics,
    labels,
    linear,
    network_admm,
    network_lbfgs,
    networks,
    part,
    private_labels,
    private_linear,
    private_sgd,
    sgd,
)
from tablepuppet.prep import encode, private_encode, statistics

MODULES = (
    consensus,
    label_metrics,
    labels,
    private_labels,
    private_linear,
    private_sgd,
    linear,
    private_linear,
    part,
    sgd,
    networks,
    network_admm,
    network_lbfgs,
    encode,
    private_encode,
    statistics,
)
