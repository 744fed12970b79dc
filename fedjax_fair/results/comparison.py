"""Differences between methods, their statistical significance, and noise floors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair import metrics
from fedjax_fair.metrics.quantities import ACCURACY
from fedjax_fair.metrics.sensitive_group_metrics import CLIENTS, LOSS_PARITY, PEOPLE, needs_classes
from fedjax_fair.results.client_summaries import client_summary
from fedjax_fair.results.datasets import class_based, configurations_as_methods, final_metrics
from fedjax_fair.results.loss_gaps import loss_gaps
from fedjax_fair.results.model_names import MARK, method_of, reference
from fedjax_fair.results.models import by_model
from fedjax_fair.results.sensitive_groups import (
    describe_empty_cells,
    feature_names,
    gap_by_feature,
    values_by_feature,
)
from fedjax_fair.results.task_metrics import better, primary, shown_columns
from fedjax_fair.results.virtual_time import check_one_kind
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "MIN_SEEDS",
    "compare",
    "compare_means",
    "default_metrics",
    "differences",
    "gaps_by_feature",
    "noise_floor",
    "with_client_summaries",
]

MIN_SEEDS = 5
"""Seeds that statistical significance needs; with fewer, a test has hardly any power."""

_PER_RUN = {"algorithm", "seed", "round"}


def compare(
    dataset: xr.Dataset,
    metric: str,
    baseline: str | None = None,
    *,
    paired: bool = True,
    average_last: int = 1,
) -> xr.Dataset:
    """Compares all methods with a baseline in one metric.

    Args:
        dataset: Results with the dimension ``algorithm``, over two or more seeds. The
            configurations of a sweep are compared as methods. `at_seconds` of results compares
            them at a virtual time.
        metric: A variable over seeds and rounds; a summary over clients of `client_summaries` or
            `loss_gaps`, such as ``"test_loss_gini"`` and ``"loss_gap_maximum"``; or a difference
            between sensitive groups and one sensitive feature, such as
            ``"loss_parity_difference:sex"``.
        baseline: One of the methods; by default the first. With entries of `by_model`, each
            model is compared with the corresponding one of the baseline, see `reference`.
        paired: Whether runs with equal seeds are pairs; if not, seeds may differ (Welch's test).
        average_last: As for `final_metrics`.

    Returns:
        The columns of `differences` over the other methods, the ``noise_floor``, and the bootstrap
        interval of the difference from ``bootstrap_low`` to ``bootstrap_high``. Pairs are of the
        seeds that all methods have; ``seeds_left_out`` names other seeds. The baseline has
        ``baseline_mean``, ``baseline_deviation``, ``baseline_half_width`` and
        ``baseline_noise_floor``.

    Raises:
        ValueError: If there is no such metric or baseline, only one method or seed, or methods with
            synchronous and asynchronous rounds.

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
    compared, finals, dataset = _compare(dataset, metric, baseline, paired, average_last)
    chosen = str(compared.attrs["baseline"])
    floors = noise_floor(dataset, [metric], average_last)[metric]
    compared["baseline_noise_floor"] = floors.sel(algorithm=chosen, drop=True)
    compared["noise_floor"] = floors.sel(algorithm=compared["algorithm"])
    intervals = [
        metrics.paired.bootstrap(*_samples(finals, str(name), chosen, paired=paired))
        for name in compared["algorithm"].values
    ]
    for name, ends in zip(
        ("bootstrap_low", "bootstrap_high"), zip(*intervals, strict=True), strict=True
    ):
        compared[name] = ("algorithm", list(ends))
    return compared


def compare_means(dataset: xr.Dataset, metric: str) -> xr.Dataset:
    """Compares as `compare`, without what takes random numbers: bootstrap and noise floors."""
    return _compare(dataset, metric)[0]


def _compare(
    dataset: xr.Dataset,
    metric: str,
    baseline: str | None = None,
    paired: bool = True,
    average_last: int = 1,
) -> tuple[xr.Dataset, xr.DataArray, xr.Dataset]:
    """Returns the differences, and the last values and the results of the compared seeds."""
    dataset = configurations_as_methods(dataset)
    methods = [str(name) for name in dataset["algorithm"].values]
    baseline = methods[0] if baseline is None else baseline
    baseline = reference(f"{method_of(baseline)}{MARK}", methods, baseline) or baseline
    of_groups, _, feature = metric.partition(":")
    if feature and metric not in dataset:
        dataset = dataset.assign({metric: gap_by_feature(dataset, of_groups, feature)})
    dataset = with_client_summaries(dataset, metric)
    summaries = tuple(str(name) for name, one in dataset.items() if set(one.dims) == _PER_RUN)
    checks.one_of("metric", metric, summaries)
    _check_baseline(baseline, methods)
    if len(methods) < 2 or dataset.sizes["seed"] < 2:
        raise ValueError(
            f"dataset: expected two or more methods and seeds, got {len(methods)} and "
            f"{dataset.sizes['seed']}."
        )
    check_one_kind(dataset)
    finals = final_metrics(dataset, average_last)[metric]
    left_out = ""
    if paired:
        is_common = _is_common_seed(finals, baseline)
        left_out = ", ".join(str(seed) for seed in dataset["seed"].values[~is_common])
        dataset, finals = dataset.isel(seed=is_common), finals.isel(seed=is_common)
    compared = differences(finals, baseline, paired=paired)
    of_baseline = compared.sel(algorithm=baseline, drop=True)
    compared = compared.sel(algorithm=[name for name in methods if name != baseline])
    for name in ("mean", "deviation", "half_width"):
        compared[f"baseline_{name}"] = of_baseline[name]
    labels = {name: dataset[metric].attrs.get(name, "") for name in ("long_name", "units")}
    about = {"metric": metric, "baseline": baseline, "paired": int(paired)}
    about |= {"better": better(dataset, metric) or ""}
    about |= {name: dataset.attrs[name] for name in ("at_seconds",) if name in dataset.attrs}
    if dataset[metric].attrs.get("population") in (PEOPLE, CLIENTS):
        by_class = needs_classes(of_groups) and "sensitive_group_counts" in dataset
        features = [feature] if feature else None
        about |= {"empty": describe_empty_cells(dataset, features, by_class=by_class)}
    compared = compared.assign_attrs(**about, seeds_left_out=left_out, **labels)
    return compared, finals, dataset


def with_client_summaries(dataset: xr.Dataset, *metrics: str) -> xr.Dataset:
    """Adds those of the metrics that are summaries of `client_summaries` or `loss_gaps`."""
    missing = [metric for metric in metrics if metric not in dataset]
    gaps = loss_gaps(dataset) if any(map(_is_of_gaps, missing)) else {}
    for metric in missing:
        summary = gaps.get(metric) if _is_of_gaps(metric) else client_summary(dataset, metric)
        if summary is not None:
            dataset = dataset.assign({metric: summary})
    return dataset


def _is_of_gaps(metric: str) -> bool:
    return metric.startswith("loss_gap_")


def gaps_by_feature(dataset: xr.Dataset) -> list[str]:
    """Returns the metrics of `compare` that are gaps between the groups of each sensitive feature.

    They are the differences of the primary quantity, and of the loss.
    """
    known = {primary(dataset).name: primary(dataset).parity, "loss": LOSS_PARITY.name}
    return [
        f"{name}:{feature}"
        for feature in feature_names(dataset)
        for quantity, name in known.items()
        if values_by_feature(dataset, quantity, [feature]) is not None
    ]


def _is_common_seed(finals: xr.DataArray, baseline: str) -> np.ndarray:
    """Returns which seeds have a pair for every method with pairs, or all if there is none.

    Means and differences of a table are then over the same runs, so that they agree.
    """
    names = finals["algorithm"].values
    is_pair = ~np.isnan([np.subtract(*_pair(finals, str(name), baseline)) for name in names])
    is_common = np.asarray(is_pair[is_pair.any(axis=1)].all(axis=0))
    return is_common if is_common.any() else np.ones_like(is_common)


def _check_baseline(baseline: str, methods: list[str]) -> None:
    variants = [name for name in methods if name.startswith((f"{baseline} (", f"{baseline}, "))]
    if baseline not in methods and variants:
        expected = " or ".join(map(repr, variants))
        raise ValueError(f"baseline={baseline!r} has several results; expected {expected}.")
    checks.one_of("baseline", baseline, tuple(methods))


def differences(finals: xr.DataArray, baseline: str, *, paired: bool = True) -> xr.Dataset:
    """Computes the columns of `compare` that need only one value per method and seed.

    Args:
        finals: Over ``algorithm`` and ``seed``; NaN for seeds that a method has not run.
        baseline: One of the methods, which has difference 0.
        paired: As for `compare`.

    Returns:
        Over all methods: ``mean`` and ``deviation`` over seeds, and ``half_width``, half of the 95%
        interval of the mean; the ``difference`` with its 95% interval from ``low`` to ``high``
        (Student's t) and its ``difference_deviation``; ``p``, adjusted for the number of methods
        (Holm), which includes methods that equal the baseline in every seed (their own is NaN);
        ``is_significant``, whether ``p < 0.05`` with at least five ``seeds``, the number of
        pairs or runs; ``effect_size``; and ``seeds_needed`` to detect the difference with
        probability 0.8 (`fedjax_fair.metrics.paired`).

    Examples:
        >>> import xarray as xr
        >>> names = {"algorithm": ["fedavg", "divfl"]}
        >>> finals = xr.DataArray([[0.7, 0.9], [0.8, 1.0]], names, ("algorithm", "seed"))
        >>> differences(finals, "fedavg").difference.values.round(3).tolist()
        [0.0, 0.1]
    """
    import pandas as pd
    import xarray as xr

    undefined = metrics.paired.Difference(*[np.nan] * 5)
    rows = {}
    for name in finals["algorithm"].values:
        samples = _samples(finals, str(name), baseline, paired=paired)
        seeds = min(map(len, samples))
        test = metrics.paired.interval if paired else metrics.paired.welch
        gap = test(*samples) if seeds else undefined
        runs = finals.sel(algorithm=name).dropna("seed").values
        of_mean = metrics.paired.interval(runs) if runs.size else undefined
        rows[name] = {
            "mean": of_mean.mean,
            "deviation": of_mean.deviation,
            "half_width": of_mean.high - of_mean.mean,
            "difference": gap.mean,
            "low": gap.low,
            "high": gap.high,
            "p": gap.p,
            "difference_deviation": gap.deviation,
            "effect_size": metrics.paired.effect_size(gap),
            "seeds": seeds,
            "seeds_needed": metrics.paired.seeds_needed(gap.mean, gap.deviation, paired=paired),
        }
    columns: Any = pd.DataFrame.from_dict(rows, orient="index")
    # Equal runs have no p value, but are a comparison that was planned.
    is_compared = columns["difference_deviation"].notna() & (columns.index != baseline)
    columns["p"] = metrics.paired.holm(columns["p"].tolist(), int(is_compared.sum()))
    columns["is_significant"] = (columns["p"] < 0.05) & (columns["seeds"] >= MIN_SEEDS)
    by_method = {name: ("algorithm", column.values) for name, column in columns.items()}
    return xr.Dataset(by_method, {"algorithm": finals["algorithm"].values})


def _pair(finals: xr.DataArray, name: str, baseline: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the runs of a method and of its reference by seed, NaN if it has none."""
    other = reference(name, [str(one) for one in finals["algorithm"].values], baseline)
    runs = finals.sel(algorithm=name).values
    if name == other != baseline:  # The other model of the baseline is compared with nothing.
        other = None
    return runs, finals.sel(algorithm=other).values if other else np.full(runs.shape, np.nan)


def _samples(
    finals: xr.DataArray, name: str, baseline: str, *, paired: bool
) -> tuple[np.ndarray, ...]:
    """The differences of pairs, or the runs of both methods; without NaN."""
    runs, baseline_runs = _pair(finals, name, baseline)
    if paired:
        gaps = runs - baseline_runs
        return (gaps[~np.isnan(gaps)],)
    runs, baseline_runs = runs[~np.isnan(runs)], baseline_runs[~np.isnan(baseline_runs)]
    # The difference of a method to itself has no variance.
    return (0 * runs, 0 * runs) if name == baseline else (runs, baseline_runs)


def noise_floor(dataset: xr.Dataset, names: Sequence[str], average_last: int = 1) -> xr.Dataset:
    """Estimates measures of spread as they would be if all clients had equal accuracy.

    A spread that is not above its floor is no evidence of unfairness, nor is a worst 10% that is
    not below it. The floor is the mean over random test sets at a method's accuracy.

    Args:
        dataset: Results with the dimension ``algorithm``.
        names: Summary metrics, also those of `class_based`.
        average_last: As for `final_metrics`, for the accuracy.

    Returns:
        The metrics over ``algorithm``; NaN for those not in `fedjax_fair.metrics.noise.OF_SPREAD`,
        and without test examples.

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
    spreads = [
        name
        for name in names
        if name.removesuffix("_class_based") in metrics.noise.OF_SPREAD
        and ("group" in dataset or not name.startswith("group"))
    ]
    if spreads and {"accuracy_mean_examples", "test_examples"} <= set(dataset):
        partitions = dataset[["test_examples", *({"group"} & set(dataset))]]
        levels = final_metrics(dataset[["accuracy_mean_examples"]], average_last)
        levels = levels["accuracy_mean_examples"].transpose("algorithm", "seed").values
        for row, runs in enumerate(levels):
            is_measured = ~np.isnan(runs)
            accuracy = float(runs[is_measured].mean()) if is_measured.any() else np.nan
            if 0 <= accuracy <= 1:  # A custom model may measure something else by this name.
                of_runs = partitions.isel(seed=is_measured, missing_dims="ignore")
                for name, value in _floors(of_runs, spreads, accuracy).items():
                    columns[name][row] = value
    variables = {name: ("algorithm", values) for name, values in columns.items()}
    return xr.Dataset(variables, {"algorithm": methods})


def _floors(partitions: xr.Dataset, names: Sequence[str], accuracy: float) -> dict[str, float]:
    """Returns means over partitions."""
    if "seed" not in partitions.dims:
        partitions = partitions.expand_dims("seed")
    draws = max(20, 200 // partitions.sizes["seed"])
    floors = [
        metrics.noise.expected(
            names,
            accuracy,
            partition["test_examples"].transpose("client", "class").values.astype(np.int64),
            partition["group"].values if "group" in partition else None,
            draws,
        )
        for partition in (partitions.isel(seed=run) for run in range(partitions.sizes["seed"]))
    ]
    return {name: float(np.mean([floor[name] for floor in floors])) for name in names}


def default_metrics(dataset: xr.Dataset) -> tuple[xr.Dataset, dict[str, str]]:
    """Returns the results and the headings of the metrics that methods are compared by.

    Models are separated, see `by_model`. If clients differ only in their labels, measures of spread
    are class-based, with less noise, unless there are personalized models.
    """
    dataset = by_model(dataset)
    headings = shown_columns(dataset)
    is_personalized = any(str(name).endswith(MARK) for name in dataset["algorithm"].values)
    is_class_based = dataset.attrs.get("label_skew_only") and primary(dataset) == ACCURACY
    if not is_class_based or is_personalized:
        return dataset, headings
    dataset = dataset.merge(class_based(dataset))
    columns = {}
    for name, heading in headings.items():
        # Only measures of spread are class-based, hence not the accuracy.
        better_name = f"{name}_class_based"
        if metrics.BY_NAME[name].has_noise_floor and better_name in dataset:
            columns[better_name] = f"{heading}\nclass-based"
        else:
            columns[name] = heading
    return dataset, columns
