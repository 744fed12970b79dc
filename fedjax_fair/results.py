"""Results: recorded during a run as a ``History``, kept as one ``xarray.Dataset``.

Plots and notebooks read nothing but the Dataset.

Dimensions:

* ``algorithm``: the name of the method, where several are compared (``method`` would collide with a
  parameter of ``Dataset.sel``);
* ``seed``: the runs;
* ``round``: rounds done when the model was evaluated, 0 before training;
* ``client``: the clients of the federation;
* ``planted_group``: their groups, where they are known;
* ``class``: the classes of the data;
* ``training_round`` and ``slot``: every round, and the slots of its cohort.

Variables over ``(seed, round, client)`` are ``test_accuracy``, ``test_loss``, ``train_loss`` and
``participation``; ``class_accuracy`` is over ``(seed, round, class)``. Every summary metric is one
over ``(seed, round)``, named as in ``fedjax_fair.metrics.SUMMARIES``, whose attributes say
population and weighting. Rounds themselves are over ``(seed, training_round, slot)``:
``cohort_clients``, ``cohort_weights``, ``cohort_loss`` and ``cohort_steps``. Info of the selector
is over ``(seed, training_round)``, as ``selection_<name>``, and so is that of the aggregator, as
``aggregation_<name>``, some of it for every ``slot``. ``train_examples`` and ``test_examples`` are
over ``(client, class)``, and over ``seed`` where every run has a partition of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair import checks, metrics
from fedjax_fair.base import ClientMetrics, Variables
from fedjax_fair.data.federated import ClientExamples, FederatedData
from fedjax_fair.metrics.communication import bytes_per_round
from fedjax_fair.simulate import RoundInfo

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "RECORDED",
    "History",
    "by_mix",
    "combine",
    "compare",
    "final",
    "open",
    "save",
    "to_dataset",
]

RECORDED = {
    "test_accuracy": ("client", "Test accuracy", "1"),
    "test_loss": ("client", "Test loss", "nat"),
    "train_loss": ("client", "Training loss", "nat"),
    "participation": ("client", "Rounds trained in", "rounds"),
    "class_accuracy": ("class", "Accuracy on all test examples of a class", "1"),
}
"""Fields of ``ClientMetrics`` that change during a run: last dimension, long name and unit."""

_PER_SLOT = {
    "clients": ("Client in the cohort", "1"),
    "weights": ("Aggregation weight", "1"),
    "loss": ("Mean minibatch loss in local training", "nat"),
    "steps": ("Local steps", "steps"),
}
_SHARED = ("train_examples", "test_examples", "group")


class History:
    """Evaluations and rounds, in the order they happened.

    Arrays are kept as they come, with seeds first; ``arrays`` puts time second.
    """

    def __init__(self) -> None:
        self._evaluated: list[int] = []
        self._summaries: list[dict[str, np.ndarray]] = []
        self._metrics: list[dict[str, np.ndarray]] = []
        self._rounds: list[dict[str, np.ndarray]] = []
        self._selection: list[dict[str, np.ndarray]] = []
        self._aggregation: list[dict[str, np.ndarray]] = []

    @property
    def round(self) -> int:
        """The round of the latest evaluation; -1 before the first."""
        return self._evaluated[-1] if self._evaluated else -1

    def add_evaluation(
        self, round: int, summaries: dict[str, np.ndarray], metrics: ClientMetrics
    ) -> None:
        """Records an evaluation: summaries ``[seeds]`` and ``[seeds, clients or classes]``."""
        self._evaluated.append(round)
        self._summaries.append(summaries)
        self._metrics.append({name: getattr(metrics, name) for name in RECORDED})

    def add_rounds(self, info: RoundInfo) -> None:
        """Records a chunk of rounds: leaves ``[seeds, rounds, cohort]`` or ``[seeds, rounds]``."""
        self._rounds.append({name: getattr(info, name) for name in _PER_SLOT})
        self._selection.append({name: np.asarray(value) for name, value in info.selector.items()})
        self._aggregation.append(
            {name: np.asarray(value) for name, value in info.aggregator.items()}
        )

    def arrays(self) -> dict[str, Any]:
        """Everything as arrays: ``[seeds, evaluations, ...]`` and ``[seeds, rounds, ...]``."""
        return {
            "evaluated": np.asarray(self._evaluated, np.int64),
            "summaries": _join(self._summaries, np.stack),
            "metrics": _join(self._metrics, np.stack),
            "rounds": _join(self._rounds, np.concatenate),
            "selection": _join(self._selection, np.concatenate),
            "aggregation": _join(self._aggregation, np.concatenate),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> History:
        """Rebuilds a history from what ``arrays`` returned."""
        history = cls()
        history._evaluated = [int(round) for round in arrays["evaluated"]]
        history._summaries = _split(arrays["summaries"], len(history._evaluated))
        history._metrics = _split(arrays["metrics"], len(history._evaluated))
        history._rounds = [arrays["rounds"]] if arrays["rounds"] else []
        history._selection = [arrays["selection"]] if arrays["rounds"] else []
        history._aggregation = [arrays["aggregation"]] if arrays["rounds"] else []
        return history


def _join(records: list[dict[str, np.ndarray]], along_time) -> dict[str, np.ndarray]:
    names = records[0] if records else ()
    return {name: along_time([record[name] for record in records], axis=1) for name in names}


def _split(joined: dict[str, np.ndarray], count: int) -> list[dict[str, np.ndarray]]:
    return [{name: values[:, i] for name, values in joined.items()} for i in range(count)]


def to_dataset(
    history: History, seeds: tuple[int, ...], data: FederatedData, variables: Variables
) -> xr.Dataset:
    """Turns what a run recorded into a Dataset.

    Args:
        history: What was recorded.
        seeds: The seeds, in the order of the history's leading axes.
        data: The federation.
        variables: Variables of one model, or their shapes, for the bytes that a round moves.

    Returns:
        The Dataset described at the top of this module.
    """
    import xarray as xr

    recorded = history.arrays()
    columns: dict[str, Any] = {}
    for name, (dim, long_name, unit) in RECORDED.items():
        described = {"long_name": long_name, "units": unit}
        columns[name] = (("seed", "round", dim), recorded["metrics"][name], described)
    for metric in metrics.SUMMARIES + metrics.GROUP_SUMMARIES:
        if metric.name not in recorded["summaries"]:
            continue
        described = {
            "long_name": metric.description,
            "units": metric.unit,
            "population": metric.population,
            "weighting": metric.weighting,
        }
        columns[metric.name] = (("seed", "round"), recorded["summaries"][metric.name], described)
    for name, values in recorded["rounds"].items():
        long_name, unit = _PER_SLOT[name]
        described = {"long_name": long_name, "units": unit}
        columns[f"cohort_{name}"] = (("seed", "training_round", "slot"), values, described)
    for role in ("selection", "aggregation"):
        for name, values in recorded[role].items():
            described = {"long_name": f"{role.capitalize()}: {name.replace('_', ' ')}"}
            dims = ("seed", "training_round", "slot")[: values.ndim]
            columns[f"{role}_{name}"] = (dims, values, described)
    columns |= _communication(recorded["metrics"]["participation"], variables)
    columns |= _ownership(data)
    columns |= _of_groups(recorded["metrics"], data)
    coordinates = {"seed": np.asarray(seeds, np.int64), "round": recorded["evaluated"]}
    if recorded["rounds"]:
        _, rounds, slots = recorded["rounds"]["clients"].shape
        coordinates |= {"training_round": np.arange(rounds), "slot": np.arange(slots)}
    return xr.Dataset(
        columns, coords=coordinates, attrs={"data": data.name, "label_skew": int(data.label_skew)}
    )


def _of_groups(clients: dict[str, np.ndarray], data: FederatedData) -> dict[str, Any]:
    """Mean test accuracy and loss of each planted group."""
    if data.groups is None:
        return {}
    groups = np.asarray(data.groups)
    per_run = groups if groups.ndim == 2 else [groups] * len(clients["test_loss"])
    num_groups = int(groups.max()) + 1
    columns = {}
    for name, unit in {"accuracy": "1", "loss": "nat"}.items():
        values = [
            [_group_means(evaluated, own, num_groups) for evaluated in run]
            for run, own in zip(clients[f"test_{name}"], per_run, strict=True)
        ]
        described = {"long_name": f"Test {name}, mean over the clients of a group", "units": unit}
        columns[f"group_{name}"] = (("seed", "round", "planted_group"), values, described)
    return columns


def _group_means(values: np.ndarray, groups: np.ndarray, num_groups: int) -> np.ndarray:
    known = ~np.isnan(values)
    total, count = (
        np.bincount(groups[known], weights, num_groups) for weights in (values[known], None)
    )
    return np.divide(total, count, out=np.full(num_groups, np.nan), where=count > 0)


def _communication(participation: np.ndarray, variables: Variables) -> dict[str, Any]:
    """Traffic up to every evaluation: a client moves one model each way in a round it trains in."""
    moved = bytes_per_round(variables, cohort_size=1)
    rounds = participation.sum(axis=-1, dtype=np.int64)
    attributes = {"units": "byte", "population": "all clients", "weighting": "sum"}
    up = {"long_name": "Sent by clients so far", **attributes}
    down = {"long_name": "Sent to clients so far", **attributes}
    return {
        "bytes_up": (("seed", "round"), rounds * moved, up),
        "bytes_down": (("seed", "round"), rounds * moved, down),
    }


def _ownership(data: FederatedData) -> dict[str, Any]:
    """Examples of every client and class, and the planted groups."""
    columns: dict[str, Any] = {}
    run = () if data.num_partitions is None else ("seed",)
    for name, examples in {"train": data.train, "test": data.test}.items():
        described = {"long_name": f"Examples for {name}ing", "units": "examples"}
        counts = _class_counts(examples, data.num_classes)
        columns[f"{name}_examples"] = ((*run, "client", "class"), counts, described)
    if data.groups is not None:
        groups = np.asarray(data.groups)
        columns["group"] = ((*run, "client"), groups, {"long_name": "Planted group"})
    return columns


def _class_counts(examples: ClientExamples, num_classes: int) -> np.ndarray:
    """Examples of each client and class; targets, which have no class, are all of one."""
    labels, orders, sizes = map(np.asarray, (examples.labels, examples.order, examples.sizes))
    if np.issubdtype(labels.dtype, np.floating):
        return sizes[..., None]

    def count(order, sizes):
        owners = np.repeat(np.arange(sizes.size), sizes)
        cells = owners * num_classes + labels[order[: owners.size]]
        return np.bincount(cells, minlength=sizes.size * num_classes).reshape(-1, num_classes)

    if sizes.ndim == 1:
        return count(orders, sizes)
    return np.stack([count(*run) for run in zip(orders, sizes, strict=True)])


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


def save(dataset: xr.Dataset, path: str | Path) -> None:
    """Writes a Dataset as NetCDF; a reader never sees half a file."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    dataset.to_netcdf(partial, engine="h5netcdf")
    partial.replace(path)


def open(path: str | Path) -> xr.Dataset:
    """Reads results.

    Args:
        path: A run folder, or a ``results.nc``.

    Returns:
        The Dataset, in memory.

    Raises:
        ValueError: If there are no results.
    """
    import xarray as xr

    path = Path(path)
    file = path / "results.nc" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"path={str(path)!r}: expected a run folder or a results.nc file.")
    # How numbers were stored says nothing about what they may become, such as NaN.
    return xr.load_dataset(file, engine="h5netcdf").drop_encoding()
