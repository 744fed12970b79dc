"""The metrics that show results of a task: one place for tables, comparisons, sweeps and reports.

`quantities(dataset)` are what clients are measured by, the most important one first: the metrics
that the user named with ``metrics=`` or ``--training.metrics``, then those of the task (accuracy of
classes; MAE, RMSE and R^2 of a regression; F1 and accuracy of several labels; perplexity of
sequences). `primary(dataset)` is the first one. Each `Quantity` has the heading, the direction
(``better``), and the names of its variables: ``client`` (over clients), ``mean``, ``pooled``,
``worst``, ``spread``, ``dissimilarity``, ``group``, ``group_gap``, ``sensitive_group``, ``parity``,
``unseen`` and ``adapted``; results need not have all of them. `validation(name)` is the variable of
validation examples, `shown_columns(dataset)` the headings of the variables that methods are
compared by. `scale`, `unit` and `digits` say how to show values of a variable: accuracies in
percent, others in their unit with three significant digits. `sign` is 1 where higher values are
better, else -1, so that ``sign * values`` ranks configurations, models and clients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedjax_fair import metrics
from fedjax_fair.metrics.group_fairness import CRITERIA
from fedjax_fair.metrics.quantities import ACCURACY, Quantity

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "better",
    "digits",
    "is_percent",
    "primary",
    "quantities",
    "scale",
    "shown_columns",
    "sign",
    "title",
    "unit",
    "validation",
]

_KNOWN = {each.name: each for each in metrics.quantities.known_quantities()}


def quantities(results: Mapping[Any, Any]) -> tuple[Quantity, ...]:
    """Returns what clients are measured by, the most important one first.

    Args:
        results: Results; or values of summaries by name, as of a log, from which the quantities
            are inferred.

    Examples:
        >>> import xarray as xr
        >>> [each.name for each in quantities(xr.Dataset({"accuracy_mean_clients": 0.5}))]
        ['accuracy']
        >>> errors = xr.Dataset({"r2_worst_10pct": 0.1, "mean_absolute_error_worst_10pct": 2.0})
        >>> [each.heading for each in quantities(errors)]
        ['MAE', 'R2']
    """
    names = json.loads(getattr(results, "attrs", {}).get("quantities", "[]"))
    found = [name for name in names if _has(results, name)] or _infer(results)
    return tuple(_quantity(results, name) for name in found) or (ACCURACY,)


def primary(results: Mapping[Any, Any]) -> Quantity:
    """Returns the quantity that tables, plots and sweeps use."""
    return quantities(results)[0]


def shown_columns(results: xr.Dataset) -> dict[str, str]:
    """Returns the headings of the variables that methods are compared by.

    These are the mean, worst tenth and dissimilarity over clients of the primary quantity, its gap
    between ground-truth groups, and the means of the others.
    """
    first, *others = quantities(results)
    columns = {
        first.mean: first.heading,
        first.worst: "worst 10%",
        first.dissimilarity: "dissimilarity",
        first.group_gap: "gap of groups",
    }
    columns |= {each.mean: each.heading for each in others}
    # Of one measured client there is no dissimilarity.
    return {
        name: heading
        for name, heading in columns.items()
        if name in results and (name == first.mean or _is_known(results[name]))
    }


def validation(name: str) -> str:
    """Returns the variable of validation examples that corresponds to one of test examples.

    Examples:
        >>> validation("test_loss_mean_clients"), validation("accuracy_mean_clients")
        ('validation_loss_mean_clients', 'validation_accuracy_mean_clients')
    """
    return f"validation_{name.removeprefix('test_')}"


def better(results: xr.Dataset, name: str) -> Literal["higher", "lower", "zero"] | None:
    """Returns which values of a variable are better, None if unknown or none are."""
    known = metrics.BY_NAME.get(name)
    return results[name].attrs.get("better") or (known.better if known else None)


def sign(quantity: Quantity) -> int:
    """Returns 1 if higher values are better, else -1."""
    return 1 if quantity.better == "higher" else -1


def unit(results: xr.Dataset, name: str) -> str:
    """Returns the unit in which a variable is shown; empty if it has none.

    Examples:
        >>> import xarray as xr
        >>> unit(xr.Dataset({"accuracy_mean_clients": 0.5}), "accuracy_mean_clients")
        '%'
    """
    of_values = results[name].attrs.get("units") or "1"
    if is_percent(name, of_values):
        return "%"
    return "" if of_values == "1" else of_values


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


def scale(results: xr.Dataset, name: str) -> int:
    """Returns the factor of the unit: 100 for percentages, else 1."""
    return 100 if unit(results, name) == "%" else 1


def digits(results: xr.Dataset, name: str) -> int:
    """Returns the decimals in tables: one for percentages, else for three significant digits.

    Examples:
        >>> import xarray as xr
        >>> errors = xr.Dataset({"error": 17.31, "small": 0.01234, "large": 4321.0})
        >>> [digits(errors, name) for name in errors]
        [1, 4, 0]
    """
    values = np.abs(np.asarray(results[name].values, np.float64))
    if unit(results, name) == "%" or not (
        largest := np.max(values[np.isfinite(values)], initial=0)
    ):
        return 1
    return min(6, max(0, 2 - math.floor(math.log10(largest))))


def title(results: xr.Dataset) -> str:
    """Returns what the primary quantity is, such as "Test accuracy"."""
    return primary(results).description


def _has(results: Mapping[Any, Any], name: str) -> bool:
    known = _KNOWN.get(name, Quantity(name, name, "higher", name))
    names = (known.mean, known.client, validation(known.mean))
    return any(each in results for each in names)


def _infer(results: Mapping[Any, Any]) -> list[str]:
    """Finds quantities by their variables, in the order of tasks, the accuracy last."""
    suffix, other = "_worst_10pct", ("validation_", "personalized_")
    names = [str(name) for name in results]
    found = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    found = [name for name in found if not name.startswith(other)]
    order = [name for name in _KNOWN if name in found]
    order += [name for name in found if name not in _KNOWN]
    if len(order) > 1 and ACCURACY.name in order and not _is_known(results[ACCURACY.worst]):
        order.remove(ACCURACY.name)
    return order


def _is_known(values: Any) -> bool:
    return bool(np.isfinite(np.asarray(values, np.float64)).any())


def _quantity(results: Mapping[Any, Any], name: str) -> Quantity:
    quantity = _KNOWN.get(name, Quantity(name, name, "higher", name))
    for variable in (quantity.client, quantity.mean, validation(quantity.mean)):
        attributes = getattr(results[variable], "attrs", {}) if variable in results else {}
        if "better" in attributes and "heading" in attributes:
            return quantity._replace(
                heading=attributes["heading"],
                better=attributes["better"],
                unit=attributes.get("units", "1"),
                description=attributes.get("long_name", name)
                .partition(",")[0]
                .partition(" of test")[0],
            )
    return quantity
