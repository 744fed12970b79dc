"""Metrics of virtual time: whose results count, who waits, and who is served late.

`fedjax_fair.results` records when tasks start and results arrive. All metrics follow from these
records, so that training does not compute them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["DEFINITIONS", "Definition", "summarize"]

Kind = Literal["device_class", "planted_group"]

_UPDATES = "of results whose rounds changed the model"


class Definition(NamedTuple):
    """A metric of virtual time.

    Attributes:
        description: What it is.
        formula: Its definition.
        unit: Unit of its values; "1" for values from 0 to 1, others are not negative.
        better: Which values are better; None if neither are.
    """

    description: str
    formula: str
    unit: str = "1"
    better: Literal["higher", "lower"] | None = None

    @property
    def range(self) -> str:
        """Possible values, with their unit."""
        return "0 to 1" if self.unit == "1" else f">= 0 {self.unit}"


DEFINITIONS = {
    "class_participation_share": Definition(
        "share of a class in the results so far", "results of the class / all results"
    ),
    "class_weight_share": Definition(
        "share of a class in the aggregation weights so far. In CA2FL and AREA clients also count "
        "through the memory of the server",
        f"sum of w scale over the class / sum over all, {_UPDATES}",
    ),
    "class_staleness_mean": Definition(
        "mean staleness of the results of a class so far",
        "updates of the model between sending it and using the result",
        "updates",
    ),
    "class_waiting_mean": Definition(
        "mean time from the arrival of a result of a class to the update of the model",
        "update_time - cohort_arrived",
        "s",
    ),
    "class_lost_share": Definition(
        "share of the task time of a class without effect: aborted, late or discarded",
        "class_lost_seconds / class_seconds",
        better="lower",
    ),
    "class_device_accuracy": Definition(
        "mean over the clients of a device class; also of the loss and other quantities",
        "mean of a_i over the class",
        better="higher",
    ),
    "device_accuracy_gap": Definition(
        "difference in accuracy of the best and the worst device class",
        "max - min of class_device_accuracy",
        better="lower",
    ),
    "device_accuracy_minimum": Definition(
        "accuracy of the worst device class", "min of class_device_accuracy", better="higher"
    ),
    "participation_parity": Definition(
        "lowest participation share of a class relative to its share of the clients; 1 is equal. "
        "`analysis.expected_parity` is its value by chance",
        "min of class_participation_share / share of clients",
        better="higher",
    ),
    "weight_parity": Definition(
        "lowest weight share of a class relative to its share of the clients; 1 is equal. "
        "`analysis.expected_parity` is its value by chance",
        "min of class_weight_share / share of clients",
        better="higher",
    ),
    "never_arrived": Definition(
        "share of clients without a result so far", "(clients with r_i = 0) / m", better="lower"
    ),
    "first_arrival_time": Definition(
        "time of the first result of a client that counts; undefined if there is none",
        "min of cohort_arrived",
        "s",
    ),
    "time_to_accuracy": Definition(
        "first evaluation at which a class reaches a target that was chosen in advance; undefined "
        "if it never does. Its resolution is the time between evaluations",
        "min of virtual_time with class_device_accuracy >= target",
        "s",
        "lower",
    ),
    "accuracy_over_time": Definition(
        "mean accuracy of a class over virtual time, as a step function that keeps the value of "
        "the last evaluation",
        "integral of class_device_accuracy from 0 to T / T",
        better="higher",
    ),
    "accuracy_over_time_minimum": Definition(
        "mean accuracy of the worst class over virtual time",
        "min of accuracy_over_time",
        better="higher",
    ),
}
"""Metrics by name."""

_VARIABLES: dict[Kind, tuple[str, str]] = {
    "device_class": ("device_class_of", "class_device_accuracy"),
    "planted_group": ("group", "group_accuracy"),
}
"""Class of each client, and accuracy of each class."""


def summarize(
    results: xr.Dataset, by: Kind = "device_class", target: float | None = None
) -> xr.Dataset:
    """Computes the metrics of `DEFINITIONS` from the records of a run.

    Args:
        results: Results with virtual time.
        by: The classes of clients: their device classes, or ground-truth groups.
        target: Accuracy for ``time_to_accuracy``, in ``[0, 1]``; choose it before the runs.

    Returns:
        The metrics over ``round`` and the classes, over ``round``, or over ``client``. They are
        NaN while there are no results.

    Raises:
        ValueError: If results have no virtual time or no such classes, or the target is invalid.

    Examples:
        >>> import xarray as xr
        >>> per_slot = ("seed", "training_round", "slot")
        >>> times = {
        ...     "cohort_clients": (per_slot, [[[0, 1], [0, 0]]]),
        ...     "cohort_weights": (per_slot, [[[0.5, 0.5], [0.5, 0.5]]]),
        ...     "cohort_responded": (per_slot, [[[1, 1], [1, 1]]]),
        ...     "cohort_staleness": (per_slot, [[[0, 0], [0, 1]]]),
        ...     "cohort_arrived": (per_slot, [[[1.0, 3.0], [4.0, 5.0]]]),
        ...     "update_time": (per_slot[:2], [[3.0, 5.0]]),
        ...     "virtual_time": (("seed", "round"), [[0.0, 3.0, 5.0]]),
        ...     "participation": (("seed", "round", "client"), [[[0, 0], [1, 1], [3, 1]]]),
        ...     "device_class_of": ("client", [0, 1]),
        ... }
        >>> names = {"device_class": ["fast", "slow"], "round": [0, 1, 2]}
        >>> found = summarize(xr.Dataset(times, names))
        >>> found.class_participation_share.sel(device_class="slow").values.tolist()
        [[nan, 0.5, 0.25]]
        >>> found.participation_parity.values.tolist()
        [[nan, 1.0, 0.5]]
    """
    import xarray as xr

    checks.one_of("by", by, get_args(Kind))
    if "virtual_time" not in results:
        raise ValueError(
            "results: expected virtual_time, which runs with a schedule have; pass "
            "schedule=schedules.Synchronous(times) to Round."
        )
    of_client, level = _VARIABLES[by]
    if of_client not in results:
        raise ValueError(
            "by='planted_group': expected results of data with ground-truth groups; use "
            "'device_class'."
        )
    results = results.drop_vars(["training_round", "client"], errors="ignore")
    kinds, time = results[of_client].fillna(-1).astype(int), results["virtual_time"]
    named = {by: results[by]} if by in results.coords else None
    names = xr.DataArray(np.arange(results.sizes[by]), named, by)
    clients = results["cohort_clients"]
    counts = (clients >= 0) & (results["cohort_responded"] > 0)
    in_class = counts & (kinds.isel(client=clients.where(counts, 0).astype(int)) == names)

    def so_far(values: Any) -> xr.DataArray:
        """Returns the sum over the results of each class up to every evaluation."""
        sums = xr.where(in_class, values, 0.0).sum("slot").cumsum("training_round")
        padded = sums.pad(training_round=(1, 0), constant_values=0.0)
        return padded.isel(training_round=results["round"].astype(int)).where(time.notnull())

    def share(sums: xr.DataArray) -> xr.DataArray:
        return sums / sums.sum(by).where(lambda total: total != 0)

    results_so_far = so_far(1.0)
    known = results_so_far.where(results_so_far > 0)
    shares = {"participation": share(results_so_far)}
    if "cohort_weights" in results:
        weights = results["cohort_weights"].astype(np.float64)
        if "aggregation_scale" in results:  # Weights sum to 1 and the scale says how far they go.
            weights = weights * results["aggregation_scale"].fillna(1)
        if "update_nonfinite" in results:
            weights = weights.where(results["update_nonfinite"] == 0, 0)
        shares["weight"] = share(so_far(weights))
    found = {f"class_{name}_share": values for name, values in shares.items()}
    found["class_staleness_mean"] = so_far(results["cohort_staleness"]) / known
    waiting = results["update_time"] - results["cohort_arrived"]
    found["class_waiting_mean"] = so_far(waiting) / known
    of_clients = (kinds == names).mean("client")
    for name, values in shares.items():
        found[f"{name}_parity"] = (values / of_clients.where(of_clients > 0)).min(by)
    if "class_seconds" in results and by == "device_class":
        spent = results["class_seconds"]
        found["class_lost_share"] = results["class_lost_seconds"] / spent.where(spent > 0)
    found["first_arrival_time"] = _first_arrivals(results, counts)
    found["never_arrived"] = (results["participation"] == 0).mean("client").where(time.notnull())
    if level in results:
        found |= _of_levels(results[level], time, by, target)
    described = {name: values.assign_attrs(_attributes(name)) for name, values in found.items()}
    return xr.Dataset(described)


def _attributes(name: str) -> dict[str, str]:
    """Returns the attributes of a metric's variable."""
    definition = DEFINITIONS[name]
    long_name = definition.description.partition(".")[0].partition(";")[0]
    about = {"long_name": f"{long_name[0].upper()}{long_name[1:]}"}
    about |= {"units": definition.unit, "population": "all clients", "weighting": "uniform"}
    return about | ({"better": definition.better} if definition.better else {})


def _first_arrivals(results: xr.Dataset, counts: xr.DataArray) -> xr.DataArray:
    """Returns the time of each client's first result."""
    import xarray as xr

    size = results.sizes["client"]

    def of_run(clients, times):
        earliest = np.full(size, np.inf)
        np.minimum.at(earliest, clients[clients >= 0].astype(int), times[clients >= 0])
        return np.where(np.isinf(earliest), np.nan, earliest)

    per_run = [["training_round", "slot"]] * 2
    arrays = results["cohort_clients"].where(counts, -1), results["cohort_arrived"]
    return xr.apply_ufunc(
        of_run, *arrays, input_core_dims=per_run, output_core_dims=[["client"]], vectorize=True
    )


def _of_levels(
    levels: xr.DataArray, time: xr.DataArray, by: Kind, target: float | None
) -> dict[str, xr.DataArray]:
    """Returns the metrics of the accuracies of classes."""
    import xarray as xr

    def widths(times):
        """Returns for how long each evaluation is the last one; NaN are of other methods."""
        following = np.fmin.accumulate(times[..., ::-1], axis=-1)[..., ::-1]
        following = np.append(following[..., 1:], following[..., -1:], axis=-1)
        return np.nan_to_num(following - times)

    dims: Any = {"input_core_dims": [["round"]], "output_core_dims": [["round"]]}
    areas = levels * xr.apply_ufunc(widths, time, **dims)
    last = time.max("round")
    mean = areas.sum("round", min_count=1) / last.where(last > 0)
    found = {
        "device_accuracy_gap": levels.max(by) - levels.min(by),
        "device_accuracy_minimum": levels.min(by),
        "accuracy_over_time": mean,
        "accuracy_over_time_minimum": mean.min(by),
    }
    if target is not None:
        checks.fraction("target", target)
        found["time_to_accuracy"] = time.where(levels >= target).min("round")
    return found
