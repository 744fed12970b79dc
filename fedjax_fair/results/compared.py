"""Datasets of several methods side by side, and what is read from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedjax_fair import checks, metrics

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["by_mix", "combine", "compare", "final"]

_SHARED = ("train_examples", "test_examples", "validation_examples", "group")


def combine(datasets: dict[str, xr.Dataset]) -> xr.Dataset:
    """Puts the results of several methods on the same federation side by side.

    Args:
        datasets: Results by name of the method. Where methods differ in rounds or cohort size, the
            shorter ones are padded with NaN.

    Returns:
        A Dataset with the dimension ``algorithm``; what all methods share (the ownership of
        examples) stays without it.
    """
    import xarray as xr

    shared = list(_SHARED)
    own = [dataset.drop_vars(shared, errors="ignore") for dataset in datasets.values()]
    names = xr.DataArray(list(datasets), dims="algorithm", name="algorithm")
    combined = xr.concat(own, names, join="outer", combine_attrs="override")
    first = next(iter(datasets.values()))
    return combined.merge(first[[name for name in shared if name in first]])


def compare(dataset: xr.Dataset, metric: str, baseline: str | None = None) -> xr.Dataset:
    """Differences of all methods to one, seed by seed, and whether chance explains them.

    Args:
        dataset: Results with the dimension ``algorithm``, over two or more seeds.
        metric: A variable over seeds and rounds; of the last evaluation of every method.
        baseline: The method that others are compared to; by default the first.

    Returns:
        Over the other methods: the mean ``difference`` of paired seeds, the ends ``low`` and
        ``high`` of its 95 % interval (Student's t), and ``p`` of no difference, adjusted for as
        many comparisons as there are methods (Holm).

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
    import xarray as xr

    methods = [str(name) for name in dataset["algorithm"].values]
    baseline = methods[0] if baseline is None else baseline
    for name, value, known in (
        ("metric", metric, tuple(map(str, dataset))),
        ("baseline", baseline, tuple(methods)),
    ):
        checks.one_of(name, value, known)
    others = [name for name in methods if name != baseline]
    if not others or dataset.sizes["seed"] < 2:
        raise ValueError(
            f"dataset: expected two or more methods and seeds, got {len(methods)} and "
            f"{dataset.sizes['seed']}."
        )
    last = final(dataset)[metric]
    found = [
        metrics.paired.compare(last.sel(algorithm=name).values, last.sel(algorithm=baseline).values)
        for name in others
    ]
    columns = {
        "difference": [one.mean for one in found],
        "low": [one.low for one in found],
        "high": [one.high for one in found],
        "p": metrics.paired.holm([one.p for one in found]),
    }
    return xr.Dataset(
        {name: ("algorithm", values) for name, values in columns.items()},
        {"algorithm": others},
        {"metric": metric, "baseline": baseline},
    )


def final(dataset: xr.Dataset) -> xr.Dataset:
    """The last evaluation of every method and every point of a sweep, whenever that was.

    Args:
        dataset: Results with the dimension ``algorithm``.

    Returns:
        The same without the dimension ``round``.
    """
    kept = dataset.drop_dims(["training_round", "slot"], errors="ignore")
    evaluated = kept["accuracy_mean_clients"].notnull().any("seed")
    last = evaluated.cumsum("round").argmax("round")
    return kept.isel(round=last).drop_vars("round")


def by_mix(dataset: xr.Dataset) -> xr.Dataset:
    r"""Accuracies of clients from the accuracies of classes: the same on average, with less noise.

    Where clients differ in their numbers of examples of each class alone, what is expected of
    client :math:`k`, with label shares :math:`\pi_k`, is :math:`\sum_c \pi_{kc} a_c`, where
    :math:`a_c` is the accuracy on *all* test examples of class :math:`c`. Its own test examples
    have that mean as well, but they are few (`fedjax_fair.metrics.by_mix`).

    Args:
        dataset: Results on a federation of one of the partitions by label: ``iid``,
            ``quantity_skew``, ``classes_per_client``, ``dirichlet``, ``shards`` or
            ``planted_clusters``. Not of writers, wards or planted features, whose examples of a
            class differ.

    Returns:
        ``test_accuracy_by_mix`` of every client, and the summaries that spread and level are read
        from, named as those of the clients' own test examples with ``_by_mix`` behind; each with
        its standard error (``_by_mix_se``) for the test examples that there are.

    Raises:
        ValueError: If clients may differ in more than their labels, or results do not say.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits", ff.data.classes_per_client(20, 3))
        >>> method = ff.make_round(
        ...     ff.models.logistic(10), ff.selectors.uniform(5), ff.solvers.sgd(0.1, 10, steps=5),
        ...     ff.aggregators.mean(),
        ... )
        >>> mixed = by_mix(ff.fit(method, data, rounds=1))
        >>> mixed.test_accuracy_by_mix.dims
        ('seed', 'round', 'client')
    """
    import xarray as xr

    if not dataset.attrs.get("label_skew"):
        raise ValueError(
            "dataset: expected results on clients that differ in their labels alone, which a "
            "partition by label (iid, classes_per_client, dirichlet, ...) makes."
        )
    measured = metrics.by_mix.summarize(dataset["class_accuracy"], dataset["test_examples"])
    described = {name: dataset[name.removesuffix("_by_mix")].attrs for name in measured}
    columns = {}
    for name, (values, errors) in measured.items():
        named = f"{described[name]['long_name']}, from classes"
        columns[name] = values.assign_attrs(described[name] | {"long_name": named})
        columns[f"{name}_se"] = errors.assign_attrs(
            {"long_name": f"{named}, standard error", "units": described[name]["units"]}
        )
    return xr.Dataset(columns, attrs=dataset.attrs)
