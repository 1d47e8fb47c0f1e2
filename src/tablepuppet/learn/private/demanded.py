"""What parties demand of a fit, and what its query would reveal beside its noise: checked before anything is asked.

Input: a learner's privacy and a plan. Output: nothing, a PrivacyError, or sentences on what is not protected.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from tablepuppet.errors import PrivacyError
from tablepuppet.operators.secure_sum import check_shards
from tablepuppet.privacy.settings import Privacy
from tablepuppet.sql.expression import checked, columns_of
from tablepuppet.sql.plan import Plan, known_of_features, uses_of_table


def check_supported(privacy: object) -> None:
    """PrivacyError if the privacy has a part that learners do not support yet."""
    if privacy is None:
        return
    if not isinstance(privacy, Privacy):
        raise PrivacyError(f"privacy must be tp.Privacy(...) or None, not {type(privacy).__name__}")
    if privacy.is_empty:
        raise PrivacyError(
            "this tp.Privacy promises nothing: set label_epsilon (labels are noised), feature_epsilon (what is learned "
            "from features is noised) or secure_sum, or leave privacy out"
        )
    if privacy.prediction_epsilon is not None and privacy.feature_epsilon is None:
        raise PrivacyError("prediction_epsilon is for predictions only: set feature_epsilon too, 1 is usual")


def check_demanded(plan: Plan, privacy: Privacy | None, instead: str = "") -> None:
    """PrivacyError if a party demands noise, of labels or of what is learned from features, that is not asked for.

    ``instead``: what to learn with where features cannot have noise.
    """
    label = None if plan.query.label is None else plan.query.label.alias
    features = {column.alias for column in plan.query.features}
    for alias, table in plan.tables.items():
        needs = []
        if alias == label and (privacy is None or privacy.label_epsilon is None):
            needs.append("label_epsilon")
        if alias in features:
            asked = ("feature_epsilon", "prediction_epsilon")
            needs += [name for name in asked if privacy is None or getattr(privacy, name) is None]
        demanding = [shard.party for shard in table.shards if shard.require_dp]
        if needs and demanding:
            learners = f"{instead} and " if instead and needs != ["label_epsilon"] else ""
            raise PrivacyError(
                f"party {demanding[0]!r}, table {table.name!r}: its policy demands differential privacy; learn with "
                f"{learners}privacy=tp.Privacy({', '.join(f'{name}=...' for name in needs)}) (policy rule require_dp)",
                rule="require_dp",
            )


def check_sums_demanded(plan: Plan, privacy: Privacy | None) -> None:
    """PrivacyError if a party demands secure sums, and they are not asked for or its table has too few shards."""
    for alias in dict.fromkeys(column.alias for column in plan.query.features):
        table = plan.tables[alias]
        demanding = [shard.party for shard in table.shards if shard.secure_sum]
        if demanding and (privacy is None or not privacy.secure_sum):
            raise PrivacyError(
                f"party {demanding[0]!r}, table {table.name!r}: its policy demands that sums over its rows leave only "
                "within a sum over three or more shards; learn with privacy=tp.Privacy(secure_sum=True) (policy rule "
                "secure_sum)",
                rule="secure_sum",
            )
        if demanding:
            check_shards(table, [shard.party for shard in table.shards])


def check_label_apart(plan: Plan, privacy: Privacy | None) -> None:
    """PrivacyError if labels get noise but the query reveals their columns in another way.

    A filter on whether a label is missing is allowed: this is treated as public.
    """
    label = plan.query.label
    if privacy is None or not privacy.is_label_private or label is None:
        return
    table, own = plan.tables[label.alias].name, set(columns_of(label.expression))
    for how, text in uses_of_table(plan, table):
        shared = sorted(own & set(_revealed_columns(text) if how == "filter" else columns_of(text)))
        if shared and how != "label":
            raise PrivacyError(
                f"table {table!r}, column {shared[0]!r}: it makes the label, which is noised, and is used as a "
                f"{how} too, which would reveal it without noise; leave it out there"
            )


def known_otherwise(plan: Plan, privacy: Privacy | None) -> list[str]:
    """Features whose columns the query uses in another way too, as sentences, if features are protected.

    Keys, results of filters and labels are treated as public: what they reveal of such a cell is not protected.
    """
    if privacy is None or not privacy.is_feature_private:
        return []
    return known_of_features(plan)


def _revealed_columns(text: str) -> Iterable[str]:
    """The columns of a filter of which it reveals more than whether they are missing."""
    for column in checked(text).find_all(exp.Column):
        test = column.parent
        while isinstance(test, exp.Paren):
            test = test.parent
        if not (isinstance(test, exp.Is) and isinstance(test.expression, exp.Null)):
            yield from columns_of(column.sql(dialect="duckdb"))
