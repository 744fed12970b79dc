"""Datasets of several methods side by side, and what is read from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair import checks, metrics
from fedjax_fair.results.history import PARTITION_VARIABLES

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["class_based", "combine", "final_metrics", "merge_runs"]


def combine(datasets: dict[str, xr.Dataset]) -> xr.Dataset:
    """Puts the results of several methods on the same federation side by side.

    Args:
        datasets: Results by name of the method. Where methods differ in rounds or cohort size, the
            shorter ones are padded with NaN.

    Returns:
        A Dataset with the dimension ``algorithm``; what all methods share (the partition of
        examples) stays without it.
    """
    import xarray as xr

    shared = list(PARTITION_VARIABLES)
    own = [dataset.drop_vars(shared, errors="ignore") for dataset in datasets.values()]
    names = xr.DataArray(list(datasets), dims="algorithm", name="algorithm")
    combined = xr.concat(own, names, join="outer", combine_attrs="override")
    first = next(iter(datasets.values()))
    return combined.merge(first[[name for name in shared if name in first]])


def merge_runs(runs: dict[str, xr.Dataset]) -> xr.Dataset:
    """Puts the methods of several runs side by side.

    Args:
        runs: Results with the dimension ``algorithm``, by a name for the run. Seeds that a method
            has not run are NaN.

    Returns:
        All methods; ``fedavg (name)`` where several runs have one of this name.

    Raises:
        ValueError: If runs are on different data, or are sweeps.

    Examples:
        >>> import xarray as xr
        >>> accuracy = (("algorithm", "seed", "round"), [[[0.5]]])
        >>> run = xr.Dataset({"accuracy": accuracy}, {"algorithm": ["fedavg"], "seed": [0]})
        >>> merge_runs({"one": run, "other": run}).algorithm.values.tolist()
        ['fedavg (one)', 'fedavg (other)']
    """
    _, first = next(iter(runs.items()))
    names = [str(name) for run in runs.values() for name in np.atleast_1d(run["algorithm"].values)]
    methods = {}
    for label, run in runs.items():
        own = run.attrs.get("data"), run.sizes.get("client")
        expected = first.attrs.get("data"), first.sizes.get("client")
        if own != expected:
            raise ValueError(
                f"{label}: expected results on {expected[0]} with {expected[1]} clients as the "
                f"first, got {own[0]} with {own[1]}."
            )
        for name in map(str, run["algorithm"].values):
            unique = name if names.count(name) == 1 else f"{name} ({label})"
            methods[unique] = run.sel(algorithm=name, drop=True)
    return combine(methods)


def final_metrics(dataset: xr.Dataset, average_last: int = 1) -> xr.Dataset:
    """The last evaluation of every method and every point of a sweep, whenever that was.

    Args:
        dataset: Results with the dimension ``algorithm``.
        average_last: Evaluations at the end, of which the mean is taken; all where there are fewer. A
            variable that is NaN in some has the mean of the others.

    Returns:
        The same without the dimension ``round``.

    Raises:
        ValueError: If ``average_last`` is no positive integer.

    Examples:
        >>> import xarray as xr
        >>> loss = (("algorithm", "seed", "round"), [[[3.0, 2.0, 1.0]], [[6.0, 5.0, float("nan")]]])
        >>> runs = xr.Dataset({"loss": loss}, {"algorithm": ["one", "stopped"]})
        >>> final_metrics(runs).loss.values.ravel().tolist(), final_metrics(runs, 2).loss.values.ravel().tolist()
        ([1.0, 5.0], [1.5, 5.5])
    """
    checks.positive_int("average_last", average_last)
    kept = dataset.drop_dims(["training_round", "slot"], errors="ignore")
    evaluated = _evaluated(kept)
    if average_last == 1:
        at = evaluated.cumsum("round").argmax("round")
        return kept.isel(round=at).drop_vars("round", errors="ignore")
    after = evaluated.sum("round") - evaluated.cumsum("round")
    changing = kept[[name for name in kept if "round" in kept[name].dims]]
    means = changing.where(evaluated & (after < average_last)).mean("round", keep_attrs=True)
    return kept.drop_dims("round").merge(means)


def _evaluated(dataset: xr.Dataset) -> xr.DataArray:
    """Whether a method was evaluated after a round: some summary is there, in some seed."""
    over_rounds = [one for one in dataset.values() if {"seed", "round"} <= set(one.dims)]
    if not over_rounds:
        raise ValueError("dataset: expected results over seed and round.")
    fewest = min(one.ndim for one in over_rounds)  # Not those of each client or class.
    first, *others = [one for one in over_rounds if one.ndim == fewest]
    # Numbers alone: xarray would compare the coordinates of every variable.
    known = first.notnull()
    for one in others:
        known.values |= ~np.isnan(one.transpose(*first.dims).values)
    return known.any("seed")


def class_based(dataset: xr.Dataset) -> xr.Dataset:
    r"""Accuracies of clients from the accuracies of classes: the same on average, with less noise.

    Where clients differ in their numbers of examples of each class alone, what is expected of
    client :math:`k`, with label shares :math:`\pi_k`, is :math:`\sum_c \pi_{kc} a_c`, where
    :math:`a_c` is the accuracy on *all* test examples of class :math:`c`. Its own test examples
    have that mean as well, but they are few (`fedjax_fair.metrics.class_based`).

    Args:
        dataset: Results on a federation of one of the partitions by label: ``iid``,
            ``quantity_skew``, ``classes_per_client``, ``dirichlet``, ``shards`` or
            ``planted_clusters``. Not of writers, wards or planted features, whose examples of a
            class differ.

    Returns:
        ``test_accuracy_class_based`` of every client, and the summaries that spread and level are read
        from, named as those of the clients' own test examples with ``_class_based`` behind; each with
        its standard error (``_class_based_se``) for the test examples that there are.

    Raises:
        ValueError: If clients may differ in more than their labels, or results do not say.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits", ff.data.classes_per_client(20, 3))
        >>> method = ff.Round(
        ...     ff.models.logistic(10), ff.selectors.Uniform(5), ff.solvers.SGD(0.1, 10, steps=5),
        ...     ff.aggregators.Mean(),
        ... )
        >>> mixed = class_based(ff.fit(method, data, rounds=1))
        >>> mixed.test_accuracy_class_based.dims
        ('seed', 'round', 'client')
    """
    import xarray as xr

    if not dataset.attrs.get("label_skew_only"):
        raise ValueError(
            "dataset: expected results on clients that differ in their labels alone, which a "
            "partition by label (iid, classes_per_client, dirichlet, ...) makes."
        )
    measured = metrics.class_based.summarize(dataset["class_accuracy"], dataset["test_examples"])
    described = {name: dataset[name.removesuffix("_class_based")].attrs for name in measured}
    columns = {}
    for name, (values, errors) in measured.items():
        named = f"{described[name]['long_name']}, from classes"
        columns[name] = values.assign_attrs(described[name] | {"long_name": named})
        columns[f"{name}_se"] = errors.assign_attrs(
            {"long_name": f"{named}, standard error", "units": described[name]["units"]}
        )
    return xr.Dataset(columns, attrs=dataset.attrs)
