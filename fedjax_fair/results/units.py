"""Units of metrics in tables and plots."""

from __future__ import annotations

from fedjax_fair.metrics.group_fairness import CRITERIA

__all__ = ["is_percent"]


def is_percent(name: str, unit: str = "1") -> bool:
    """Returns whether tables and plots show a metric in percent.

    These are accuracies, and differences of accuracies or of rates of sensitive groups.

    Args:
        name: Name of the variable.
        unit: Unit of its values.

    Examples:
        >>> is_percent("accuracy_minimum"), is_percent("accuracy_gini")
        (True, False)
        >>> is_percent("perplexity_pooled"), is_percent("accuracy_entropy", "nat")
        (False, False)
    """
    parts = ("accuracy", "sigma_acc", "client_dissimilarity", *CRITERIA)
    return (
        unit == "1"
        and any(part in name for part in parts)
        and not any(part in name for part in ("gini", "jain", "_ratio"))
    )
