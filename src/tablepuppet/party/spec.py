"""The kind of a table's model as a Struct that is sent to parties, stored and shown; learn/tables/ computes with it.

A model of another kind is another Struct here, with its class there.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from tablepuppet.party.arguments import Layers, Some


class Linear(msgspec.Struct, frozen=True, tag_field="kind", tag="linear"):
    """Predictions T theta, of a table's encoded rows T; no intercept."""

    outputs: Some

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """The shape of the parameters of a table with ``width`` encoded columns."""
        return (width,) if self.outputs == 1 else (width, self.outputs)


class Network(msgspec.Struct, frozen=True, tag_field="kind", tag="network"):
    """Tanh layers of the widths ``hidden``, then a linear output without bias."""

    hidden: Layers
    outputs: Some

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """The same; the parameters of all layers are one vector."""
        sizes = (width, *self.hidden, self.outputs)
        return (sum((into + 1) * out for into, out in pairwise(sizes)) - self.outputs,)


Spec = Linear | Network
