"""Variables of results on sensitive groups, pooled and per client."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.sensitive import SensitiveFeature
from fedjax_fair.metrics import group_fairness
from fedjax_fair.metrics.sensitive_group_metrics import client_difference, describe, needs_binary
from fedjax_fair.roles import GroupSums

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "RECORDED",
    "columns",
    "coordinate",
    "feature_counts",
    "gaps",
    "group_names",
    "record",
]

_RECORDED = "people_"  # Stored in checkpoints: another name would refuse unfinished runs.
RECORDED = tuple(f"{_RECORDED}{name}" for name in GroupSums._fields)
"""Names of the recorded fields of `GroupSums`."""

_COUNTS = ("seed", "round", "client", "sensitive_group", "label", "prediction")


def record(sums: GroupSums | None) -> dict[str, Any]:
    """Returns the arrays of an evaluation by name; none without sensitive features."""
    if sums is None:
        return {}
    return {f"{_RECORDED}{name}": getattr(sums, name) for name in GroupSums._fields}


def columns(
    recorded: Mapping[str, np.ndarray],
    prefix: str = "",
    *,
    loss_unit: str = "nat",
    has_accuracy: bool = True,
) -> dict[str, Any]:
    """Returns variables ``(dims, values, attributes)`` by name.

    Args:
        recorded: Arrays of all evaluations, ``[seeds, evaluations, ...]``.
        prefix: Prefix of all names, that of personalized models.
        loss_unit: Unit of the loss.
        has_accuracy: Whether predictions are right or wrong, unlike those of a regression.
    """
    if f"{prefix}{_RECORDED}examples" not in recorded:
        return {}
    suffix = ", of personalized models" if prefix else ""
    variables: dict[str, Any] = {}

    def add(name: str, dims: Sequence[str], values: Any, long_name: str, unit: str = "1") -> None:
        attributes = {"long_name": long_name + suffix, "units": unit}
        variables[prefix + name] = (tuple(dims), np.asarray(values), attributes)

    examples, correct, loss = (
        recorded[f"{prefix}{_RECORDED}{name}"] for name in ("examples", "correct", "loss")
    )
    counts = recorded.get(f"{prefix}{_RECORDED}counts")
    per_client, pooled = _COUNTS[:4], (*_COUNTS[:2], "sensitive_group")
    whole = "test examples of each sensitive group"
    add("sensitive_group_examples", per_client, examples, f"Number of {whole}", "examples")
    for name, sums, unit in (("accuracy", correct, "1"), ("loss", loss, loss_unit)):
        if name == "accuracy" and not has_accuracy:
            continue
        long_name = f"{name.capitalize()} on pooled {whole}"
        add(f"sensitive_group_{name}", pooled, _ratio(sums, examples, 2), long_name, unit)
        long_name = f"{name.capitalize()} on {whole} and client"
        add(f"client_group_{name}", per_client, _ratio(sums, examples), long_name, unit)
    if counts is not None:
        add("sensitive_group_counts", _COUNTS, counts, f"Number of {whole}, label, prediction")
        for rate in group_fairness.RATES:
            if rate.needs_binary:  # The accuracy is that of any number of classes.
                rates = _on_host(rate.function, counts.sum(axis=2))
                long_name = f"{rate.long_name}, pooled {whole}"
                add(f"sensitive_group_{rate.name}", pooled, rates, long_name)
    calibration = recorded.get(f"{prefix}{_RECORDED}calibration_error")
    if calibration is not None:
        long_name = f"Calibration error on pooled {whole}, ten bins"
        add("sensitive_group_calibration_error", pooled, calibration, long_name)
    fields: Any = (examples, correct, loss, counts)
    sums = GroupSums(*fields)
    for criterion in group_fairness.CRITERIA:
        if counts is not None or (has_accuracy and not needs_binary(criterion)):
            values = _on_host(partial(client_difference, criterion), sums)
            long_name = f"{describe(criterion)}, of each client"
            add(f"client_{criterion}_difference", _COUNTS[:3], values, long_name)
    return variables


def coordinate(data: FederatedData) -> dict[str, Any]:
    """Returns the names of sensitive groups as a coordinate, with those of the features."""
    if data.sensitive_names is None:
        return {}
    described = [[name, list(values)] for name, values in data.sensitive_names]
    attributes = {
        "long_name": "Sensitive group: " + ", ".join(name for name, _ in data.sensitive_names),
        "features": json.dumps(described),
    }
    names = np.array(group_names(data.sensitive_names))
    return {"sensitive_group": ("sensitive_group", names, attributes)}


def group_names(features: Sequence[SensitiveFeature]) -> list[str]:
    """Returns the name of each combination of values, in the order of codes.

    Examples:
        >>> sex, race = SensitiveFeature("sex", ("F", "M")), SensitiveFeature("race", ("B", "W"))
        >>> group_names([sex, race])
        ['F, B', 'F, W', 'M, B', 'M, W']
    """
    return [", ".join(values) for values in itertools.product(*(each.values for each in features))]


def feature_counts(dataset: xr.Dataset, features: Sequence[str] | None = None) -> xr.DataArray:
    """Sums counts of people to the groups of some sensitive features.

    Args:
        dataset: Results of data with sensitive features and two classes.
        features: Names of the features whose combinations are the groups; by default all.

    Returns:
        Counts whose last dimensions are ``client``, ``sensitive_group``, ``label`` and
        ``prediction``.

    Raises:
        ValueError: If the results have no counts, or a feature is unknown.
    """
    if "sensitive_group_counts" not in dataset:
        raise ValueError(
            "dataset has no sensitive_group_counts: expected results of data with "
            "sensitive_features and two classes."
        )
    described = json.loads(dataset["sensitive_group"].attrs["features"])
    names = [name for name, _ in described]
    chosen = names if features is None else list(features)
    if not chosen or not set(chosen) <= set(names):
        raise ValueError(f"features={chosen}: expected some of {names}.")
    positions = [position for position, name in enumerate(names) if name in chosen]
    sizes = [len(values) for _, values in described]
    counts = dataset["sensitive_group_counts"].transpose(..., *_COUNTS[2:])
    values = group_fairness.marginal_counts(counts.values, sizes, positions)
    groups = group_names([SensitiveFeature(*described[position]) for position in positions])
    coordinates = {
        name: value for name, value in dataset.coords.items() if set(value.dims) <= set(counts.dims)
    }
    coordinates["sensitive_group"] = groups
    return counts.__class__(values, coordinates, counts.dims)


def gaps(dataset: xr.Dataset, features: Sequence[str] | None = None) -> xr.Dataset:
    """Computes differences between groups of some sensitive features, pooled and per client.

    Args:
        dataset: Results of data with sensitive features and two classes.
        features: Names of the sensitive features whose combinations are compared; by default all.

    Returns:
        A dataset with the variables ``demographic_parity_difference``,
        ``equal_opportunity_difference``, ``equalized_odds_difference`` and
        ``accuracy_parity_difference`` of pooled people, and with the prefix ``client_`` of each
        client.

    Raises:
        ValueError: If the results have no counts, or a feature is unknown.
    """
    import xarray as xr

    counts = feature_counts(dataset, features)
    variables = {}
    for criterion in group_fairness.CRITERIA:
        function, name = partial(group_fairness.difference, criterion), f"{criterion}_difference"
        attributes = {"long_name": describe(criterion), "units": "1"}
        pooled = _on_host(function, counts.values.sum(axis=-4))
        variables[name] = (counts.dims[:-4], pooled, attributes)
        of_clients = _on_host(function, counts.values)
        variables[f"client_{name}"] = (counts.dims[:-3], of_clients, attributes)
    return xr.Dataset(variables, counts.drop_vars("sensitive_group").coords)


def _ratio(sums: np.ndarray, examples: np.ndarray, axis: int | None = None) -> np.ndarray:
    if axis is not None:
        sums, examples = sums.sum(axis=axis), examples.sum(axis=axis)
    return np.divide(sums, examples, out=np.full(sums.shape, np.nan), where=examples > 0)


def _on_host(function: Any, values: Any) -> np.ndarray:
    return np.asarray(jax.jit(function)(jax.tree.map(jnp.asarray, values)))
