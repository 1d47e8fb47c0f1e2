"""What a fit may promise: whether its `Privacy` can be kept, and is what the tables of a relation demand.

Comes in: a learner's privacy and a plan. Goes out: nothing, or a PrivacyError, before anything is asked of a party.
"""

from __future__ import annotations

from tablepuppet.errors import PrivacyError
from tablepuppet.privacy.settings import Privacy
from tablepuppet.sql.plan import Plan


def check_supported(privacy: object) -> None:
    """PrivacyError unless learners can keep every part of it. The one place that says what is not there yet."""
    if privacy is None:
        return
    if not isinstance(privacy, Privacy):
        raise PrivacyError(f"privacy must be tp.Privacy(...) or None, not {type(privacy).__name__}")
    for name in ("feature_epsilon", "prediction_epsilon"):
        if getattr(privacy, name) is not None:
            raise PrivacyError(f"{name} is not supported yet; leave it at None")
    if privacy.secure_sum:
        raise PrivacyError("secure_sum is not supported yet; leave it at False")


def check_demanded(plan: Plan, privacy: Privacy | None) -> None:
    """PrivacyError if a party demands noise, of labels or of what is learned from features, that is not asked for."""
    label = None if plan.query.label is None else plan.query.label.alias
    features = {column.alias for column in plan.query.features}
    for alias, table in plan.tables.items():
        needs = []
        if alias == label and (privacy is None or privacy.label_epsilon is None):
            needs.append("label_epsilon")
        if alias in features and (privacy is None or privacy.feature_epsilon is None):
            needs.append("feature_epsilon")
        demanding = [shard.party for shard in table.shards if shard.require_dp]
        if needs and demanding:
            raise PrivacyError(
                f"party {demanding[0]!r}, table {table.name!r}: its policy demands differential privacy; learn with "
                f"privacy=tp.Privacy({', '.join(f'{name}=...' for name in needs)}) (policy rule require_dp)",
                rule="require_dp",
            )
