"""Methods beside each other: how far apart they are, and what of it chance explains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair import checks, metrics
from fedjax_fair.results.datasets import class_based, final_metrics

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["compare", "default_metrics", "differences", "noise_floor"]

_PER_RUN = {"algorithm", "seed", "round"}


def compare(
    dataset: xr.Dataset,
    metric: str,
    baseline: str | None = None,
    *,
    paired: bool = True,
    average_last: int = 1,
) -> xr.Dataset:
    """Differences of all methods to one, and whether chance explains them.

    Args:
        dataset: Results with the dimension ``algorithm``, over two or more seeds.
        metric: A variable over seeds and rounds.
        baseline: The method that others are compared to; by default the first.
        paired: Whether runs of a seed belong together. Those of `fit` do: they share the initial
            model and the partition. Otherwise the seeds of methods may differ (Welch's test).
        average_last: Evaluations at the end of every method whose mean counts.

    Returns:
        Over the other methods, in the unit of the metric: their ``mean`` over seeds and its
        ``deviation`` between seeds; the mean ``difference``, its 95 % interval from ``low`` to
        ``high`` (Student's t), and the one from ``bootstrap_low`` to ``bootstrap_high``. Without
        unit: ``p`` of no difference, adjusted for as many comparisons as there are methods (Holm);
        ``effect_size``; ``seeds``, of which this is known, and ``seeds_needed`` to find a
        difference of this size with probability 0.8. `fedjax_fair.metrics.paired` says how.
        Last the ``noise_floor``, of the function of this name. ``baseline_mean``,
        ``baseline_deviation`` and ``baseline_noise_floor`` are those of the baseline.

    Raises:
        ValueError: If there is no such metric or method, nothing to compare, or a single seed.

    Examples:
        >>> import xarray as xr
        >>> accuracy = [[[0.7], [0.9]], [[0.8], [1.0]]]
        >>> dims = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {"accuracy_mean_clients": (dims, accuracy)},
        ...     {"algorithm": ["fedavg", "divfl"], "round": [10]},
        ... )
        >>> round(compare(runs, "accuracy_mean_clients").difference.item(), 3)
        0.1
    """
    methods = [str(name) for name in dataset["algorithm"].values]
    baseline = methods[0] if baseline is None else baseline
    summaries = tuple(str(name) for name, one in dataset.items() if set(one.dims) == _PER_RUN)
    checks.one_of("metric", metric, summaries)
    checks.one_of("baseline", baseline, tuple(methods))
    if len(methods) < 2 or dataset.sizes["seed"] < 2:
        raise ValueError(
            f"dataset: expected two or more methods and seeds, got {len(methods)} and "
            f"{dataset.sizes['seed']}."
        )
    ends = final_metrics(dataset, average_last)[metric]
    found = differences(ends, baseline, paired=paired)
    found["noise_floor"] = noise_floor(dataset, [metric], average_last)[metric]
    of_baseline = found.sel(algorithm=baseline, drop=True)
    found = found.sel(algorithm=[name for name in methods if name != baseline])
    resampled = [
        metrics.paired.bootstrap(*_samples(ends, str(name), baseline, paired=paired))
        for name in found["algorithm"].values
    ]
    for place, end in enumerate(("bootstrap_low", "bootstrap_high")):
        found[end] = ("algorithm", [ends[place] for ends in resampled])
    for name in ("mean", "deviation", "noise_floor"):
        found[f"baseline_{name}"] = of_baseline[name]
    described = {name: dataset[metric].attrs.get(name, "") for name in ("long_name", "units")}
    return found.assign_attrs(metric=metric, baseline=baseline, paired=int(paired), **described)


def differences(ends: xr.DataArray, baseline: str, *, paired: bool = True) -> xr.Dataset:
    """The part of `compare` that needs nothing but a number for each method and seed.

    Args:
        ends: Over ``algorithm`` and ``seed``; NaN where a method has not run.
        baseline: One of the methods.
        paired: As in `compare`.

    Returns:
        Over all methods ``mean``, ``deviation``, ``difference``, ``low``, ``high``, ``p``,
        ``effect_size``, ``seeds`` and ``seeds_needed``, as there; ``difference_deviation`` is what
        the last was computed with. The baseline differs from itself by nothing.

    Examples:
        >>> import xarray as xr
        >>> names = {"algorithm": ["fedavg", "divfl"]}
        >>> ends = xr.DataArray([[0.7, 0.9], [0.8, 1.0]], names, ("algorithm", "seed"))
        >>> differences(ends, "fedavg").difference.values.round(3).tolist()
        [0.0, 0.1]
    """
    import xarray as xr

    rows = []
    for name in ends["algorithm"].values:
        samples = _samples(ends, str(name), baseline, paired=paired)
        if min(map(len, samples)) == 0:
            found = metrics.paired.Difference(*[np.nan] * 5)
        else:
            found = (metrics.paired.interval if paired else metrics.paired.welch)(*samples)
        rows.append((found, min(map(len, samples))))
    found = [one for one, _ in rows]
    columns = {
        "difference": [one.mean for one in found],
        "low": [one.low for one in found],
        "high": [one.high for one in found],
        "p": metrics.paired.holm([one.p for one in found]),
        "difference_deviation": [one.deviation for one in found],
        "effect_size": [metrics.paired.effect_size(one) for one in found],
        "seeds": [runs for _, runs in rows],
        "seeds_needed": [
            metrics.paired.seeds_needed(one.mean, one.deviation, paired=paired) for one in found
        ],
    }
    return xr.Dataset(
        {
            "mean": ends.mean("seed"),
            "deviation": ends.std("seed", ddof=1),
            **{name: ("algorithm", values) for name, values in columns.items()},
        }
    )


def _samples(
    ends: xr.DataArray, name: str, baseline: str, *, paired: bool
) -> tuple[np.ndarray, ...]:
    """Differences of the pairs that there are, or the runs of both."""
    own, other = (ends.sel(algorithm=one).values for one in (name, baseline))
    if paired:
        gaps = own - other
        return (gaps[~np.isnan(gaps)],)
    own, other = own[~np.isnan(own)], other[~np.isnan(other)]
    # A method does not differ from itself, however its runs vary.
    return (0 * own, 0 * own) if name == baseline else (own, other)


def noise_floor(dataset: xr.Dataset, names: Sequence[str], average_last: int = 1) -> xr.Dataset:
    """What measures of spread would be if all clients were served alike.

    Test sets are finite, so that accuracies measured on them differ even then. A dissimilarity or a
    standard deviation that is not above its floor shows no unfairness, a worst tenth that is not
    below its own neither. Measured is the mean over random test sets at the accuracy that a method
    has on all examples.

    Args:
        dataset: Results with the dimension ``algorithm``.
        names: Summary metrics, also those of `class_based`.
        average_last: Evaluations at the end of every method whose mean accuracy counts.

    Returns:
        Each of them over ``algorithm``; NaN of those that are no spread of accuracies
        (`fedjax_fair.metrics.noise.OF_SPREAD`), and where results lack what it takes.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> dims = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {
        ...         "accuracy_mean_examples": (dims, [[[0.5], [0.5]]]),
        ...         "test_examples": (("client", "class"), np.full((100, 1), 25)),
        ...     },
        ...     {"algorithm": ["fedavg"]},
        ... )
        >>> floor = noise_floor(runs, ["accuracy_standard_deviation"])
        >>> round(floor.accuracy_standard_deviation.item(), 2)
        0.1
    """
    import xarray as xr

    methods = dataset["algorithm"].values
    columns = {name: np.full(len(methods), np.nan) for name in names}
    grouped = "group" in dataset
    spread = [
        name
        for name in names
        if name.removesuffix("_class_based") in metrics.noise.OF_SPREAD
        and (grouped or not name.startswith("group"))
    ]
    if spread and {"accuracy_mean_examples", "test_examples"} <= set(dataset):
        pooled = final_metrics(dataset[["accuracy_mean_examples"]], average_last)[
            "accuracy_mean_examples"
        ]
        for row, accuracy in enumerate(pooled.mean("seed").values):
            if 0 <= accuracy <= 1:  # A model may measure something else by this name.
                for name, value in _floors(dataset, spread, float(accuracy)).items():
                    columns[name][row] = value
    return xr.Dataset(
        {name: ("algorithm", values) for name, values in columns.items()},
        {"algorithm": methods},
    )


def _floors(dataset: xr.Dataset, names: Sequence[str], accuracy: float) -> dict[str, float]:
    """Means over the partitions of a Dataset."""
    owned = dataset[["test_examples", *({"group"} & set(dataset))]]
    whole = owned.dropna("seed") if "seed" in owned.dims else owned.expand_dims("seed")
    draws = max(20, 200 // whole.sizes["seed"])
    found = [
        metrics.noise.expected(
            names,
            accuracy,
            one["test_examples"].transpose("client", "class").values.astype(np.int64),
            one["group"].values if "group" in one else None,
            draws,
        )
        for one in (whole.isel(seed=run) for run in range(whole.sizes["seed"]))
    ]
    return {name: float(np.mean([one[name] for one in found])) for name in names}


def default_metrics(dataset: xr.Dataset) -> tuple[xr.Dataset, dict[str, str]]:
    """The metrics that methods are compared by where none is named, and what they are called.

    Args:
        dataset: Results with the dimension ``algorithm``.

    Returns:
        The same, with the accuracies of `class_based` where clients differ in their labels alone: spread
        is then read from those, which have less noise. Besides, words by the names of metrics.
    """
    chosen = {"accuracy_mean_clients": "accuracy"}
    spread = {"accuracy_worst_10pct": "worst 10 %", "client_dissimilarity": "dissimilarity"}
    if dataset.attrs.get("label_skew_only"):
        dataset = dataset.merge(class_based(dataset))
        chosen |= {
            f"{name}_class_based": f"{words},\nclass-based" for name, words in spread.items()
        }
    else:
        chosen |= spread
    if "group_accuracy_gap" in dataset:
        chosen |= {"group_accuracy_gap": "gap of groups"}
    return dataset, chosen
