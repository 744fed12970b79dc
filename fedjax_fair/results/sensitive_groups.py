"""Variables of results on sensitive groups, pooled and per client."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.sensitive import SensitiveFeature
from fedjax_fair.metrics import group_fairness
from fedjax_fair.metrics.sensitive_group_metrics import client_difference, describe, needs_classes
from fedjax_fair.roles import GroupSums

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "RECORDED",
    "columns",
    "coordinate",
    "describe_empty_cells",
    "feature_counts",
    "feature_names",
    "gap_by_feature",
    "gaps",
    "group_names",
    "range_of_groups",
    "record",
    "values_by_feature",
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
    features: Sequence[SensitiveFeature] = (),
    loss_unit: str = "nat",
    has_accuracy: bool = True,
) -> dict[str, Any]:
    """Returns variables ``(dims, values, attributes)`` by name.

    Args:
        recorded: Arrays of all evaluations, ``[seeds, evaluations, ...]``.
        prefix: Prefix of all names, that of personalized models.
        features: The sensitive features, whose combinations are the groups.
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
        sums = np.asarray(sums, np.float64)  # Sums of diverged losses overflow in float32.
        long_name = f"{name.capitalize()} on pooled {whole}"
        add(f"sensitive_group_{name}", pooled, _ratio(sums, examples, 2), long_name, unit)
        long_name = f"{name.capitalize()} on {whole} and client"
        add(f"client_group_{name}", per_client, _ratio(sums, examples), long_name, unit)
        if len(features) > 1:
            of_values, number = (_by_value(each.sum(axis=2), features) for each in (sums, examples))
            long_name = f"{name.capitalize()} on pooled test examples of a value of a feature"
            dims = (*_COUNTS[:2], "sensitive_value")
            add(f"sensitive_feature_{name}", dims, _ratio(of_values, number), long_name, unit)
    if counts is not None:
        num_classes = counts.shape[-1]
        add("sensitive_group_counts", _COUNTS, counts, f"Number of {whole}, label, prediction")
        for rate in group_fairness.RATES:
            if rate.by_class is None:  # The accuracy is above.
                continue
            function, dims, long_name = rate.function, pooled, rate.long_name
            options = {}
            if num_classes > 2:
                function, options = rate.by_class, {"classes": range(num_classes)}
                dims = (*pooled, "class")
                long_name = (
                    f"{rate.name.replace('_', ' ').capitalize()} of a class against all others"
                )
            values = _on_host(counts.sum(axis=2), function, **options)
            add(f"sensitive_group_{rate.name}", dims, values, f"{long_name}, pooled {whole}")
    calibration = recorded.get(f"{prefix}{_RECORDED}calibration_error")
    if calibration is not None:
        long_name = f"Calibration error on pooled {whole}, ten bins"
        add("sensitive_group_calibration_error", pooled, calibration, long_name)
    fields: Any = (examples, correct, loss, counts)
    sums = GroupSums(*fields)
    for criterion in group_fairness.CRITERIA:
        if counts is not None or (has_accuracy and not needs_classes(criterion)):
            values = _on_host(sums, client_difference, criterion)
            num_classes = 2 if counts is None else counts.shape[-1]
            long_name = f"{describe(criterion, num_classes=num_classes)}, of each client"
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
    found = {"sensitive_group": np.array(group_names(data.sensitive_names))}
    if len(data.sensitive_names) > 1:
        values = [f"{name}={value}" for name, values in data.sensitive_names for value in values]
        found["sensitive_value"] = np.array(values)
    return {name: (name, values, attributes) for name, values in found.items()}


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
        dataset: Results of data with sensitive features and classes.
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
            "sensitive_features and labels that are classes."
        )
    return _sum_to(dataset["sensitive_group_counts"], features)


def _sum_to(counts: xr.DataArray, features: Sequence[str] | None) -> xr.DataArray:
    """Sums over the features that are not given."""
    described = json.loads(counts["sensitive_group"].attrs["features"])
    names = [name for name, _ in described]
    chosen = names if features is None else list(features)
    if not chosen or not set(chosen) <= set(names):
        raise ValueError(f"features={chosen}: expected some of {names}.")
    positions = [position for position, name in enumerate(names) if name in chosen]
    sizes = [len(values) for _, values in described]
    counts = counts.transpose(..., *_COUNTS[2:])
    values = group_fairness.marginal_counts(counts.values, sizes, positions)
    groups = group_names([SensitiveFeature(*described[position]) for position in positions])
    return counts.__class__(values, {**counts.coords, "sensitive_group": groups}, counts.dims)


def gaps(dataset: xr.Dataset, features: Sequence[str] | None = None) -> xr.Dataset:
    """Computes differences between groups of some sensitive features, pooled and per client.

    Args:
        dataset: Results of data with sensitive features and classes.
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
        function, name = group_fairness.difference, f"{criterion}_difference"
        long_name = describe(criterion, num_classes=counts.shape[-1])
        attributes = {"long_name": long_name, "units": "1"}
        pooled = _on_host(counts.values.sum(axis=-4), function, criterion)
        variables[name] = (counts.dims[:-4], pooled, attributes)
        of_clients = _on_host(counts.values, function, criterion)
        variables[f"client_{name}"] = (counts.dims[:-3], of_clients, attributes)
    return xr.Dataset(variables, counts.drop_vars("sensitive_group").coords)


def feature_names(dataset: xr.Dataset) -> list[str]:
    """Returns the names of the sensitive features; none without any."""
    about = dataset["sensitive_group"].attrs if "sensitive_group" in dataset.coords else {}
    return [name for name, _ in json.loads(about.get("features", "[]"))]


def range_of_groups(values: xr.DataArray) -> xr.DataArray:
    """Returns the largest less the smallest value of sensitive groups; NaN with fewer than two."""
    number = values.notnull().sum("sensitive_group")
    gap = values.max("sensitive_group") - values.min("sensitive_group")
    return gap.where(number > 1).assign_attrs(values.attrs)


def values_by_feature(
    dataset: xr.Dataset, quantity: str, features: Sequence[str]
) -> xr.DataArray | None:
    """Returns a quantity of the groups of one sensitive feature, or of the combinations of all.

    Args:
        dataset: Results of data with sensitive features.
        quantity: Name of a quantity, such as ``"loss"``.
        features: Name of one feature, or the names of all.

    Returns:
        Values on pooled test examples with the dimension ``sensitive_group``; None if the results
        lack them.
    """
    described = json.loads(dataset["sensitive_group"].attrs["features"])
    names = [name for name, _ in described]
    if list(features) == names:
        return dataset.get(f"sensitive_group_{quantity}")
    values = dataset.get(f"sensitive_feature_{quantity}")
    if values is None:
        return None
    (place,) = (names.index(name) for name in features)
    start = sum(len(own) for _, own in described[:place])
    own = described[place][1]
    values = values.isel(sensitive_value=slice(start, start + len(own)))
    return values.rename(sensitive_value="sensitive_group").assign_coords(sensitive_group=own)


def gap_by_feature(dataset: xr.Dataset, name: str, feature: str) -> xr.DataArray:
    """Computes a difference between the groups of one sensitive feature, of pooled people.

    Args:
        dataset: Results of data with sensitive features.
        name: A difference between sensitive groups, such as ``"loss_parity_difference"``.
        feature: Name of one of the features.

    Raises:
        ValueError: If there is no such difference or feature.

    Examples:
        >>> import xarray as xr
        >>> about = {"features": '[["sex", ["F", "M"]]]'}
        >>> groups = ("sensitive_group", ["F", "M"], about)
        >>> losses = xr.Dataset({"sensitive_group_loss": ("sensitive_group", [0.5, 0.75])})
        >>> losses = losses.assign_coords(sensitive_group=groups)
        >>> gap_by_feature(losses, "loss_parity_difference", "sex").item()
        0.25
    """
    known = feature_names(dataset)
    if feature not in known:
        raise ValueError(
            f"metric={f'{name}:{feature}'!r}: expected one of the sensitive features {known} "
            "after the colon."
        )
    if (
        "sensitive_group_counts" in dataset
        and name.removesuffix("_difference") in group_fairness.CRITERIA
    ):
        gap = gaps(dataset, [feature])[name]
    else:
        values = values_by_feature(dataset, name.removesuffix("_parity_difference"), [feature])
        if values is None or not name.endswith("_parity_difference"):
            raise ValueError(
                f"metric={f'{name}:{feature}'!r}: expected a difference between sensitive groups "
                "before the colon, such as loss_parity_difference; results have no such values."
            )
        gap = range_of_groups(values)
    attributes = dict(dataset.get(name, gap).attrs)
    long_name = attributes.get("long_name", name)
    long_name = long_name.replace("sensitive groups", f"groups by {feature}")
    return gap.assign_attrs(attributes | {"better": "lower", "long_name": long_name})


def describe_empty_cells(
    dataset: xr.Dataset, features: Sequence[str] | None = None, *, by_class: bool
) -> str:
    """Counts the cells without test examples, which differences leave out; empty without any.

    Args:
        dataset: Results of data with sensitive features.
        features: Features whose combinations are the groups; by default all.
        by_class: Whether cells are of a group and a class, of pooled people and of clients, or of
            groups of pooled people.

    Returns:
        A sentence, with the largest number of all runs.
    """
    if by_class:
        people = feature_counts(dataset, features).sum("prediction")
    else:
        examples = dataset["sensitive_group_examples"].expand_dims(label=1, prediction=1)
        people = _sum_to(examples, features).sum("prediction")
    runs = people.values.reshape(-1, *people.shape[-3:])
    # Runs without a global model have no counts.
    runs = runs[np.nan_to_num(runs).any(axis=(1, 2, 3))]
    parts = []
    for counts, where in ((runs.sum(axis=1), "pooled people"), (runs, "clients"))[: 1 + by_class]:
        empty = (counts == 0).sum(axis=tuple(range(1, counts.ndim)))
        if most := int(empty.max(initial=0)):
            parts.append(f"{most:,} of {math.prod(counts.shape[1:]):,} {{}} of {where}")
    cells = "cells of a group and a class" if by_class else "groups"
    shown = ", ".join(parts).format(*[cells] * len(parts))
    return f"No test examples, hence left out: {shown}." if shown else ""


def _by_value(sums: np.ndarray, features: Sequence[SensitiveFeature]) -> np.ndarray:
    """Sums groups, the last axis, to the values of each feature, one feature after another."""
    sizes, cells = [len(each.values) for each in features], sums[..., None, None]
    parts = [group_fairness.marginal_counts(cells, sizes, [i]) for i in range(len(sizes))]
    return np.concatenate(parts, axis=-3)[..., 0, 0]


def _ratio(sums: np.ndarray, examples: np.ndarray, axis: int | None = None) -> np.ndarray:
    if axis is not None:
        sums, examples = sums.sum(axis=axis), examples.sum(axis=axis)
    return np.divide(sums, examples, out=np.full(sums.shape, np.nan), where=examples > 0)


def _on_host(values: Any, function: Any, *arguments: Any, **options: Any) -> np.ndarray:
    jitted = _jitted(function, *arguments, **options)
    return np.asarray(jitted(jax.tree.map(jnp.asarray, values)))


@lru_cache(maxsize=64)
def _jitted(function: Any, *arguments: Any, **options: Any) -> Any:
    """Returns one jitted function for equal arguments; another one would compile again."""
    return jax.jit(partial(function, *arguments, **options))
