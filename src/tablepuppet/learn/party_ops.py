"""Every op of the learners, for a party that is a process of its own: importing this registers them.

What only the coordinator needs, such as scikit-learn, stays out.
"""

from tablepuppet.learn import consensus, labels, linear, network_admm, network_lbfgs, networks, part, sgd
from tablepuppet.prep import encode, statistics

MODULES = (consensus, labels, linear, part, sgd, networks, network_admm, network_lbfgs, encode, statistics)
