"""Datasets of results: combination of runs, separation of models, and evaluations at a time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair import metrics
from fedjax_fair.results.history import PARTITION_VARIABLES
from fedjax_fair.results.task_metrics import primary, sign, validation
from fedjax_fair.roles import PERSONALIZED
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "MARK",
    "at_common_time",
    "at_seconds",
    "by_model",
    "check_one_kind",
    "class_based",
    "class_names",
    "combine",
    "configurations_as_methods",
    "final_metrics",
    "has_client_names",
    "is_repeated",
    "join_partitions",
    "merge_runs",
    "method_of",
    "reference",
    "swept_settings",
    "when",
]

_PLACE = "algorithm_and_settings"


def has_client_names(dataset: xr.Dataset) -> bool:
    """Returns whether the coordinate ``client`` has names; otherwise clients are numbered."""
    return "client" in dataset.dims and dataset["client"].dtype.kind not in "iu"


def class_names(dataset: xr.Dataset) -> list[str] | None:
    """Returns the names of classes as the user wrote them, or None if classes are numbered."""
    return [str(name) for name in dataset["class"].values] if "class" in dataset.coords else None


def combine(datasets: dict[str, xr.Dataset]) -> xr.Dataset:
    """Combines results on the same federated dataset, by name of the method.

    The dimension ``algorithm`` is added, except to the partition. Methods with fewer rounds or
    smaller cohorts are padded with NaN.

    Raises:
        ValueError: If partitions differ for a common seed.
    """
    import xarray as xr

    partitions = join_partitions(datasets)
    by_method = [
        dataset.drop_vars(PARTITION_VARIABLES, errors="ignore") for dataset in datasets.values()
    ]
    # Methods without a schedule have no device classes.
    classes = [one.coords["device_class"] for one in by_method if "device_class" in one.coords]
    if classes:
        by_method = [
            one if "device_class" in one.coords else one.assign_coords(device_class=classes[0])
            for one in by_method
        ]
    names = xr.DataArray(list(datasets), dims="algorithm", name="algorithm")
    combined = xr.concat(by_method, names, join="outer", combine_attrs="override")
    return combined.merge(partitions, join="left")


def merge_runs(runs: dict[str, xr.Dataset]) -> xr.Dataset:
    """Combines the methods of several runs and the configurations of sweeps.

    Args:
        runs: Results with the dimension ``algorithm``, by name of the run.

    Returns:
        All methods, ``fedavg (name)`` where several runs have different results of ``fedavg``;
        equal results are returned once. Values for seeds that a method has not run are NaN.
        Partitions are those of each seed.

    Raises:
        ValueError: If runs are on different data, or on different partitions for a common seed.

    Examples:
        >>> import xarray as xr
        >>> accuracy = (("algorithm", "seed", "round"), [[[0.5]]])
        >>> run = xr.Dataset({"accuracy": accuracy}, {"algorithm": ["fedavg"], "seed": [0]})
        >>> merge_runs({"one": run, "other": run + 0.1}).algorithm.values.tolist()
        ['fedavg (one)', 'fedavg (other)']
        >>> merge_runs({"one": run, "copy": run}).algorithm.values.tolist()
        ['fedavg']
    """
    first, *_ = runs.values()
    expected = first.attrs.get("data"), first.sizes.get("client")
    found: list[tuple[str, str, xr.Dataset]] = []
    for label, run in runs.items():
        received = run.attrs.get("data"), run.sizes.get("client")
        if received != expected:
            raise ValueError(
                f"{label}: results on {received[0]} with {received[1]} clients cannot be combined "
                f"with the first ones, on {expected[0]} with {expected[1]} clients."
            )
        # In another order, accuracies would be combined by name, and cohorts by position.
        if (
            "client" in run.dims
            and run["client"].values.tolist() != first["client"].values.tolist()
        ):
            raise ValueError(
                f"{label}: expected clients with the names of the first results, in their order; "
                "use runs of the same data."
            )
        methods = configurations_as_methods(run)
        for name in map(str, methods["algorithm"].values):
            method = methods.sel(algorithm=name, drop=True)
            if not any(name == other and _is_equal(method, known) for other, _, known in found):
                found.append((name, label, method))
    join_partitions(runs)  # Errors name runs; those of `combine` would name methods.
    names = [name for name, _, _ in found]
    merged = combine(
        {
            name if names.count(name) == 1 else f"{name} ({label})": method
            for name, label, method in found
        }
    )
    for name in ("settings", "privacy", "byzantine"):  # Of the first run alone.
        merged.attrs.pop(name, None)
    return merged


def _is_equal(method: xr.Dataset, other: xr.Dataset) -> bool:
    """Returns whether results of a method are equal, except for padding by other methods."""
    shared = [name for name in method if name in other and name not in PARTITION_VARIABLES]

    def unpadded(results: xr.Dataset) -> xr.Dataset:
        for dim in {"round", "training_round", "slot"} & set(results.dims):
            results = results.dropna(dim, how="all")
        return results.drop_vars(set(results.coords) - set(results.dims))

    return unpadded(method[shared]).equals(unpadded(other[shared]))


def join_partitions(datasets: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Joins the variables that describe partitions.

    Args:
        datasets: Results by name.

    Returns:
        The variables. They have the dimension ``seed`` if a partition has it, with the seeds of
        all results; variables that some of the results lack are then omitted.

    Raises:
        ValueError: If results have different partitions for a common seed, or different ones
            without the dimension ``seed``.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> examples = (("seed", "client", "class"), np.array([[[3, 1]], [[0, 4]]]))
        >>> runs = xr.Dataset({"test_examples": examples}, {"seed": [0, 1]})
        >>> later = runs.assign_coords(seed=[7, 8])
        >>> join_partitions({"one": runs, "other": later}).seed.values.tolist()
        [0, 1, 7, 8]
    """
    import xarray as xr

    columns = {}
    for name in PARTITION_VARIABLES:
        partitions = {label: one[name] for label, one in datasets.items() if name in one}
        if any("seed" in values.dims for values in partitions.values()):
            if len(partitions) < len(datasets):
                continue
            partitions = {
                label: values
                if "seed" in values.dims
                else values.expand_dims(seed=datasets[label]["seed"])
                for label, values in partitions.items()
            }
        if partitions:
            columns[name] = _join(name, partitions)
    return xr.Dataset(columns)


def _join(name: str, partitions: Mapping[str, xr.DataArray]) -> xr.DataArray:
    import xarray as xr

    joined, *_ = partitions.values()
    has_seeds = "seed" in joined.dims
    for label, values in partitions.items():
        common = np.intersect1d(values["seed"], joined["seed"]).tolist() if has_seeds else []
        values = values.transpose(*joined.dims)
        for place in [{"seed": seed} for seed in common] if has_seeds else [{}]:
            if not np.array_equal(values.sel(place), joined.sel(place), equal_nan=True):
                of_seed = f" for seed {place['seed']}" if place else ""
                raise ValueError(
                    f"{label}: results on another partition cannot be combined with the first "
                    f"ones; {name} differs{of_seed}. Use runs with equal settings and seed of the "
                    "data."
                )
        if has_seeds and len(common) < values.sizes["seed"]:
            is_new = ~np.isin(values["seed"], common)
            joined = xr.concat([joined, values.isel(seed=is_new)], "seed", join="override")
    return joined


def final_metrics(dataset: xr.Dataset, average_last: int = 1) -> xr.Dataset:
    """Selects the last evaluation of every method and configuration, or averages the last ones.

    Args:
        dataset: Results with the dimension ``algorithm``.
        average_last: Number of last evaluations to average; all if there are fewer.

    Raises:
        ValueError: If ``average_last`` is not a positive integer.

    Examples:
        >>> import xarray as xr
        >>> loss = (("algorithm", "seed", "round"), [[[3.0, 2.0, 1.0]], [[6.0, 5.0, float("nan")]]])
        >>> runs = xr.Dataset({"loss": loss}, {"algorithm": ["one", "stopped"]})
        >>> final_metrics(runs).loss.values.ravel().tolist()
        [1.0, 5.0]
        >>> final_metrics(runs, average_last=2).loss.values.ravel().tolist()
        [1.5, 5.5]
    """
    checks.positive_int("average_last", average_last)
    dataset = dataset.drop_dims(["training_round", "slot"], errors="ignore")
    evaluated = _evaluated(dataset)
    if average_last == 1:
        last = evaluated.cumsum("round").argmax("round")
        return dataset.isel(round=last).drop_vars("round", errors="ignore")
    num_later = evaluated.sum("round") - evaluated.cumsum("round")
    over_rounds = dataset[[name for name in dataset if "round" in dataset[name].dims]]
    means = over_rounds.where(evaluated & (num_later < average_last)).mean("round", keep_attrs=True)
    return dataset.drop_dims("round").merge(means)


def _evaluated(dataset: xr.Dataset) -> xr.DataArray:
    """Mask of evaluated rounds: a summary metric is not NaN for some seed."""
    over_rounds = [values for values in dataset.values() if {"seed", "round"} <= set(values.dims)]
    if not over_rounds:
        raise ValueError("dataset: expected results over seed and round; pass FitResult.dataset.")
    fewest = min(values.ndim for values in over_rounds)  # Excludes values per client or class.
    first, *others = [values for values in over_rounds if values.ndim == fewest]
    # xarray operators would compare the coordinates of every variable.
    is_known = first.notnull()
    for values in others:
        is_known.values |= ~np.isnan(values.transpose(*first.dims).values)
    return is_known.any("seed")


def swept_settings(results: xr.Dataset) -> list[str]:
    """Returns the dimensions that a sweep varied; none for results of a run."""
    level = primary(results).mean
    dims = results[level].dims if level in results else ()
    return [str(name) for name in dims if name not in ("algorithm", "seed", "round")]


def configurations_as_methods(results: xr.Dataset, num_best: int | None = None) -> xr.Dataset:
    """Converts a sweep to results of one method per configuration; other results are unchanged.

    A setting without effect on a method's results is omitted from its configurations.

    Args:
        results: Results, with the mean of the primary quantity, such as
            ``accuracy_mean_clients``, if of a sweep.
        num_best: Number of configurations with the best final mean to return, the best first, on
            validation examples if there are any; by default all.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> accuracy = [[[[0.5]], [[0.5]]], [[[0.4]], [[0.6]]]]
        >>> swept = xr.Dataset(
        ...     {"accuracy_mean_clients": (("algorithm", "prox", "seed", "round"), accuracy)},
        ...     {"algorithm": ["random", "fedprox"], "prox": [0.0, 0.1]},
        ... )
        >>> configurations_as_methods(swept)["algorithm"].values.tolist()
        ['random', 'fedprox, prox=0', 'fedprox, prox=0.1']
    """
    settings = swept_settings(results)
    if not settings:
        return results
    import xarray as xr

    has_methods = "algorithm" in results.dims
    dims = ["algorithm", *settings] if has_methods else settings
    effective = {
        name: [setting for setting in settings if not _is_constant(own, setting)]
        for name, own in (results.groupby("algorithm") if has_methods else [("", results)])
    }
    places: dict[str, int] = {}
    for place, values in enumerate(product(*(results[dim].values.tolist() for dim in dims))):
        configuration = dict(zip(dims, values, strict=True))
        method = str(configuration["algorithm"]) if has_methods else ""
        parts = [f"{name}={_short(configuration[name])}" for name in effective[method]]
        name = ", ".join([method_of(method), *parts] if has_methods else parts or ["run"])
        name += MARK if has_methods and method.endswith(MARK) else ""
        places.setdefault(name, place)
    if num_best is not None:
        quantity = primary(results)
        rank = validation(quantity.mean)
        rank = rank if rank in results else quantity.mean
        finals = final_metrics(results[[rank]])[rank].mean("seed").transpose(*dims).values
        # A configuration without a value comes last.
        scores = np.nan_to_num(-sign(quantity) * finals, nan=np.inf)
        places = dict(sorted(places.items(), key=lambda item: scores.flat[item[1]])[:num_best])
    indices = np.unravel_index(list(places.values()), [results.sizes[dim] for dim in dims])
    return (
        results.isel(
            {dim: xr.DataArray(at, dims=_PLACE) for dim, at in zip(dims, indices, strict=True)}
        )
        .drop_vars({"algorithm", *dims}, errors="ignore")
        .rename({_PLACE: "algorithm"})
        .assign_coords(algorithm=list(places))
    )


def _is_constant(results: xr.Dataset, dim: str) -> bool:
    first = results.isel({dim: [0] * results.sizes[dim]}).assign_coords({dim: results[dim]})
    return results.equals(first)


def _short(value: object) -> str:
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


def class_based(dataset: xr.Dataset) -> xr.Dataset:
    """Estimates client accuracies from class accuracies: same expectation, lower variance.

    See `fedjax_fair.metrics.class_based`.

    Returns:
        ``test_accuracy_class_based`` and summaries of it, with the suffix ``_class_based``; and
        their standard errors, with the suffix ``_class_based_se``.

    Raises:
        ValueError: If clients may differ in more than their labels.
    """
    import xarray as xr

    if not dataset.attrs.get("label_skew_only"):
        raise ValueError(
            "dataset: class-based accuracies need clients that differ in their labels alone; use a "
            "partition by label (iid, classes_per_client, dirichlet, ...)."
        )
    columns = {}
    summaries = metrics.class_based.summarize(dataset["class_accuracy"], dataset["test_examples"])
    for name, (values, errors) in summaries.items():
        attributes = dataset[name.removesuffix("_class_based")].attrs
        long_name = f"{attributes['long_name']}, from classes"
        columns[name] = values.assign_attrs(attributes | {"long_name": long_name})
        columns[f"{name}_se"] = errors.assign_attrs(
            {"long_name": f"{long_name}, standard error", "units": attributes["units"]}
        )
    return xr.Dataset(columns, attrs=dataset.attrs)


def by_model(results: xr.Dataset, *, serving: bool = False) -> xr.Dataset:
    """Separates global and personalized models, as entries of ``algorithm``.

    ``ditto`` is followed by ``ditto (personalized)``, whose metrics have the names of those of
    global models. Methods without a global model have one entry. Results without personalized
    models are unchanged.

    Args:
        results: Results of methods, also of a sweep, or of a single method.
        serving: Whether to omit the global models of methods with personalized ones, so that
            each method has the entry of the models that serve the clients.

    Examples:
        >>> import xarray as xr
        >>> dims = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {
        ...         "accuracy_mean_clients": (dims, [[[0.5]], [[0.6]]]),
        ...         "personalized_accuracy_mean_clients": (dims, [[[float("nan")]], [[0.7]]]),
        ...     },
        ...     {"algorithm": ["fedavg", "ditto"]},
        ... )
        >>> by_model(runs)["algorithm"].values.tolist()
        ['fedavg', 'ditto', 'ditto (personalized)']
        >>> by_model(runs).accuracy_mean_clients.values.ravel().tolist()
        [0.5, 0.6, 0.7]
    """
    import xarray as xr

    own = [str(name) for name in results if str(name).startswith(PERSONALIZED)]
    if not own:
        return results
    if "algorithm" not in results.dims:
        name = str(results["algorithm"].values) if "algorithm" in results.coords else "run"
        results = combine({name: results.drop_vars("algorithm", errors="ignore")})
    models = results.drop_vars(own)
    counterparts = {name: name.removeprefix(PERSONALIZED) for name in own}
    personalized = models.assign(
        {
            other: results[name].assign_attrs(models[other].attrs if other in models else {})
            for name, other in counterparts.items()
        }
    )
    # Personalized models have no values of classes and of a central test set.
    for name in [name for name in models if str(name).startswith(("class_accuracy", "central_"))]:
        personalized[name] = models[name] * np.nan
    parts: list[xr.Dataset] = []
    for i, name in enumerate(map(str, results["algorithm"].values)):
        has_own = any(_is_measured(results, name, i) for name in own)
        has_global = any(_is_measured(models, name, i) for name in counterparts.values())
        if not has_own or (has_global and not serving):
            parts.append(models.isel(algorithm=[i]))
        if has_own:
            part = personalized.isel(algorithm=[i])
            parts.append(part.assign_coords(algorithm=[f"{name}{MARK}"]))
    return xr.concat(
        parts, "algorithm", data_vars="minimal", coords="minimal", compat="override",
        join="override", combine_attrs="override",
    )  # fmt: skip


def _is_measured(results: xr.Dataset, name: str, method: int) -> bool:
    return name in results and bool(results[name].isel(algorithm=method).notnull().any())


MARK = " (personalized)"
"""End of the names of personalized models."""


def method_of(name: str) -> str:
    """Returns the method of an entry of `by_model`."""
    return name.removesuffix(MARK)


def is_repeated(name: str, names: list[str]) -> bool:
    """Returns whether an entry has the cohorts of another one, that of the global model."""
    return name.endswith(MARK) and method_of(name) in names


def reference(name: str, names: list[str], baseline: str) -> str | None:
    """Returns the entry of a baseline method that an entry of `by_model` is compared with.

    Global models are compared with global ones, personalized ones with personalized ones. A method
    without personalized models, on either side, has the model that serves the client on both.

    Returns:
        The entry; None if the baseline has no such model.

    Examples:
        >>> names = ["fedavg", "ditto", "ditto (personalized)"]
        >>> [reference(name, names, "ditto") for name in names]
        ['ditto (personalized)', 'ditto', 'ditto (personalized)']
        >>> [reference(name, names, "fedavg") for name in names]
        ['fedavg', 'fedavg', 'fedavg']
    """
    method = method_of(baseline)
    serving = f"{method}{MARK}" if f"{method}{MARK}" in names else method
    is_global = f"{name}{MARK}" in names
    wanted = method if is_global else serving
    return wanted if wanted in names else None


_KIND = "is_asynchronous"


def at_seconds(dataset: xr.Dataset, seconds: float) -> xr.Dataset:
    """Returns the last evaluation of every run at or before a virtual time.

    Values are never interpolated: the model of a run is that of its last update.

    Args:
        dataset: Results with virtual time.
        seconds: The time, which all runs have reached.

    Returns:
        Results with one entry of ``round``, without coordinate, and the attribute ``at_seconds``.

    Raises:
        ValueError: If a method has no virtual time, or a run has ended before.

    Examples:
        >>> import xarray as xr
        >>> per_run = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {
        ...         "loss": (per_run, [[[3.0, 2.0, 1.0]], [[3.0, 2.5, 2.0]]]),
        ...         "virtual_time": (per_run, [[[0.0, 6.0, 12.0]], [[0.0, 5.0, 10.0]]]),
        ...     },
        ...     {"algorithm": ["fedavg", "fedbuff"]},
        ... )
        >>> at_seconds(runs, 10.0).loss.values.ravel().tolist()
        [2.0, 2.0]
    """
    checks.positive("at_seconds", seconds)
    lengths = _lengths(dataset, f"at_seconds={seconds:g}")
    if (least := lengths.min()) < seconds:
        name = lengths.where(lengths == least, drop=True)["algorithm"].values[0]
        raise ValueError(
            f"at_seconds={seconds:g}: a run of {name} has ended at {float(least)} virtual "
            "seconds; expected at most that, or train it for longer."
        )
    last = (dataset["virtual_time"] <= seconds).cumsum("round").argmax("round")
    dataset = dataset.drop_vars(["round", _KIND], errors="ignore")
    selected = dataset.isel(round=last.expand_dims("round", -1))
    return selected.assign_attrs(at_seconds=float(seconds))


def at_common_time(dataset: xr.Dataset) -> xr.Dataset:
    """Returns results at the last time that all runs have reached, if rounds are not comparable.

    Results of one kind of schedule are unchanged.
    """
    if _two_kinds(dataset) is None:
        return dataset
    return at_seconds(dataset, float(_lengths(dataset, "results").min()))


def when(dataset: xr.Dataset) -> str:
    """Returns when the last evaluation was, for a sentence."""
    seconds = dataset.attrs.get("at_seconds")
    return "after the last round" if seconds is None else f"at {seconds:g} virtual seconds"


def check_one_kind(dataset: xr.Dataset) -> None:
    """Raises a ``ValueError`` if a comparison by round would mix kinds of schedules."""
    if (names := _two_kinds(dataset)) is not None:
        raise ValueError(
            f"{' and '.join(names)} have rounds of different length; compare with --at-seconds T, "
            "or results.at_seconds(dataset, T)."
        )


def _lengths(dataset: xr.Dataset, what: str) -> xr.DataArray:
    """Returns the virtual time at the end of every run, over ``algorithm``."""
    if "algorithm" not in dataset.dims:
        dataset = dataset.drop_vars("algorithm", errors="ignore").expand_dims(algorithm=["run"])
    missing = dataset["algorithm"].values
    if "virtual_time" in dataset:
        lengths = dataset["virtual_time"].max("round")
        lengths = lengths.min([dim for dim in lengths.dims if dim != "algorithm"])
        if not (is_missing := np.isnan(lengths.values)).any():
            return lengths
        missing = missing[is_missing]
    raise ValueError(
        f"{what}: {', '.join(map(str, missing))} has no virtual time; expected methods with a "
        "schedule; train them with Round(..., schedule=schedules.Synchronous(times))."
    )


def _two_kinds(dataset: xr.Dataset) -> list[str] | None:
    """Returns the first method of each kind of schedule; None if there is one kind or none."""
    if _KIND not in dataset or "algorithm" not in dataset[_KIND].dims:
        return None
    kinds = dataset[_KIND].max([dim for dim in dataset[_KIND].dims if dim != "algorithm"])
    found = [kinds["algorithm"].values[kinds.values == kind] for kind in (0, 1)]
    return [str(names[0]) for names in found] if all(map(len, found)) else None
