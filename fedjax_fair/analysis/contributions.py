"""Contributions of clients to a model: exact Shapley values, and leave-one-out.

A coalition trains as a federation in which only its members are ever available. Coalitions and
seeds are a batch axis of one compiled function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from fedjax_fair.analysis.shapley import coalition_members, leave_one_out, shapley_matrix
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.faults import Trace
from fedjax_fair.metrics import quantities
from fedjax_fair.numerics.labels import are_sequences
from fedjax_fair.results import task_metrics
from fedjax_fair.results.formats import Interval, format_mean, student
from fedjax_fair.results.history import client_coordinate
from fedjax_fair.roles import ClientMetric, Metric
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.round import Round
from fedjax_fair.training.fit import fit
from fedjax_fair.training.jitted import summary_metrics
from fedjax_fair.utils import checks
from fedjax_fair.utils.terminal import align_rows, escape_control_chars

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Contributions", "check_contributions", "contributions"]

_MAX_CLIENTS = 12
"""Twelve clients have 4,096 coalitions."""


class Contributions(NamedTuple):
    """Contributions of clients to the utility of the trained model, in the unit of its metric.

    The utility is the metric, or the negative metric if lower values are better. A positive
    contribution is an improvement.

    Attributes:
        values: Shapley values, whose sum is the utility of all clients minus that of none.
        leave_one_out: Utility of all clients minus that of all others.
        utilities: Utility of every coalition; bit ``i`` of its index is 1 if it has client ``i``.
        dataset: The three as ``shapley_value``, ``leave_one_out`` and ``utility``, with ``member``
            over ``coalition`` and ``client``, and the clients' ``train_examples``.
    """

    values: Float[np.ndarray, "seeds clients"]
    leave_one_out: Float[np.ndarray, "seeds clients"]
    utilities: Float[np.ndarray, "seeds coalitions"]
    dataset: xr.Dataset

    @property
    def interval(self) -> Interval:
        """Means of the Shapley values over seeds, and their 95% confidence intervals."""
        return student(self.values.T)

    def __repr__(self) -> str:
        """Returns a table of the clients."""
        dataset, metric = self.dataset, self.dataset.attrs["metric"]
        shown = dataset.rename(shapley_value=metric)
        factor, digits = (f(shown, metric) for f in (task_metrics.scale, task_metrics.digits))
        unit = task_metrics.unit(shown, metric)
        sizes = dataset["train_examples"].values
        rows: list[tuple[str, ...]] = [("client", "examples", "Shapley value", "leave-one-out")]
        for place, client in enumerate(dataset["client"].values):
            parts = (factor * each[:, place] for each in (self.values, self.leave_one_out))
            size = "varies" if sizes.ndim > 1 else f"{sizes[place]:,}"
            rows.append(
                (escape_control_chars(client), size, *(format_mean(part, digits) for part in parts))
            )
        ends = (self.utilities[:, -1] - self.utilities[:, 0], self.utilities[:, -1])
        gain, all_clients = (format_mean(factor * end, digits) for end in ends)
        seeds = len(self.values)
        about = f"{len(self.utilities[0]):,} coalitions, {seeds} seed{'s' * (seeds > 1)}"
        about += ", ±: half of the 95% CI" if seeds > 1 else ""
        return "\n".join(
            [
                f"Contributions to {metric}{f' ({unit})' * bool(unit)}: {about}",
                *align_rows(rows),
                f"utility of all clients: {all_clients}, minus that of none: {gain}",
            ]
        )


def contributions(
    method: Round,
    data: FederatedData,
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    metric: str | None = None,
    metrics: Sequence[Metric | ClientMetric] = (),
    runs_per_batch: int = 256,
    folder: str | Path | None = None,
    show: Callable[[str], None] = lambda step: None,
    mesh: Mesh | None = None,
) -> Contributions:
    """Computes the contribution of every client, by training with every coalition of clients.

    A coalition trains as if only its members were ever available; other clients never respond.
    All coalitions of a seed have the same initial model and random numbers. The test examples of
    all clients measure every model. Aggregators that measure clients outside of the cohort, such
    as by ``context.losses``, also measure clients outside of the coalition.

    Args:
        method: A method that selects clients uniformly at random, or all of them.
        data: The federated dataset, of 2 to 12 clients. With partitions from ``data.stack``, one
            for each seed.
        rounds: Rounds of each training.
        seeds: Seeds. Each takes 2 to the power of the number of clients trainings.
        metric: The summary metric after the last round that is the utility; by default the value
            on pooled test examples of the task's first quantity, such as
            ``"accuracy_mean_examples"``.
        metrics: Additional metrics, as of ``fit``.
        runs_per_batch: Most trainings that are compiled together; all batches share this function.
        folder: Folder of checkpoints, from which a second call continues.
        show: Called with a description of every batch before it runs.
        mesh: Devices, as of ``fit``.

    Raises:
        ValueError: If there are too many clients or only one, selection depends on the clients'
            data or on earlier rounds, the metric is unknown or not finite, or another argument is
            invalid.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits", ff.data.dirichlet(3, alpha=0.3))
        >>> fedavg = ff.Round(ff.models.logistic(10), ff.selectors.Full(),
        ...                   ff.solvers.SGD(0.1, 10, epochs=1), ff.aggregators.Mean())
        >>> found = ff.analysis.contributions(fedavg, data, rounds=2, seeds=(0, 1))
        >>> found.values.shape, found.utilities.shape
        ((2, 3), (2, 8))
        >>> gain = found.utilities[:, -1] - found.utilities[:, 0]
        >>> bool(abs(found.values.sum(axis=1) - gain).max() < 1e-6)
        True
    """
    checks.positive_int("rounds", rounds)
    checks.seeds("seeds", seeds)
    checks.positive_int("runs_per_batch", runs_per_batch)
    utility = check_contributions(method, data, seeds, metric, metrics)
    members = coalition_members(data.num_clients)
    faults: Any = method.faults  # A tuple since the constructor.
    methods = [method.replace(faults=(*faults, Trace(each[None]))) for each in members]
    runs = [(seed, coalition) for seed in range(len(seeds)) for coalition in range(len(members))]
    num_batches = -(-len(runs) // runs_per_batch)
    size = -(-len(runs) // num_batches)
    measured = []
    for start in range(0, len(runs), size):
        show(f"trainings {start + 1:,} to {min(start + size, len(runs)):,} of {len(runs):,}")
        # The last batch repeats its last run, because one of another size would compile again.
        batch = (runs[start : start + size] + [runs[-1]] * size)[:size]
        part = fit(
            [methods[coalition] for _, coalition in batch],
            data if data.num_partitions is None else data.partitions([seed for seed, _ in batch]),
            rounds=rounds,
            seeds=[seeds[seed] for seed, _ in batch],
            eval_every=rounds,
            train_loss=False,
            metrics=metrics,
            checkpoints=None if folder is None else Path(folder) / f"batch-{start:06d}",
            mesh=mesh,
        ).dataset[utility.name]
        measured.append(part.isel(round=-1).values)
    sign = 1 if utility.better == "higher" else -1
    utilities = sign * np.concatenate(measured)[: len(runs)].astype(np.float64)
    utilities = utilities.reshape(len(seeds), len(members))
    if not np.isfinite(utilities).all():
        seed, coalition = (int(place[0]) for place in np.nonzero(~np.isfinite(utilities)))
        clients = np.flatnonzero(members[coalition]).tolist()
        raise ValueError(
            f"metric={utility.name!r} is {utilities[seed, coalition]} for seed {seeds[seed]} and "
            f"clients {clients}: expected a finite number for every coalition; choose another "
            "metric, or a smaller learning rate if training diverges."
        )
    values, left_out = utilities @ shapley_matrix(data.num_clients).T, leave_one_out(utilities)
    dataset = _dataset(values, left_out, utilities, members, data, seeds, part.attrs)
    attrs = {"data": data.name, "metric": utility.name, "rounds": rounds}
    return Contributions(values, left_out, utilities, dataset.assign_attrs(attrs))


def check_contributions(
    method: BaseRound,
    data: FederatedData,
    seeds: Sequence[int],
    metric: str | None,
    metrics: Sequence[Metric | ClientMetric],
) -> Metric:
    """Returns the metric that is the utility, and checks the other arguments of `contributions`.

    Raises:
        ValueError: As `contributions`.
    """
    checks.instance("method", method, Round, "Round(model, selector, solver, aggregator)")
    assert isinstance(method, Round)
    num_clients = data.num_clients
    if not 2 <= num_clients <= _MAX_CLIENTS:
        needed = f", with 2**{num_clients} coalitions" * (num_clients > 1)
        if _MAX_CLIENTS < num_clients < 64:
            needed = f", which need {len(seeds) * 2**num_clients:,} trainings"
        raise ValueError(
            f"data of {num_clients} clients{needed}: expected 2 to {_MAX_CLIENTS} clients; "
            "partition the examples over another number of clients."
        )
    if data.num_partitions not in (None, len(seeds)):
        raise ValueError(
            f"seeds={tuple(seeds)}: expected {data.num_partitions}, one for each partition; pass "
            "that many seeds."
        )
    sampling = method.selector.sampling
    if sampling is None or sampling.kind == "round_robin":
        raise ValueError(
            f"method.selector={method.selector!r}: expected a selector that depends on neither the "
            "clients' data nor earlier rounds, because it has to select within each coalition; use "
            "selectors.Full() or selectors.Uniform."
        )
    if metric is None:
        sequences = are_sequences(data.test.labels)
        metric = quantities.quantities_of(method.model.task, metrics, sequences=sequences)[0].pooled
    summaries = summary_metrics(method.model, data, metrics)
    ranked = {each.name: each for each in summaries if each.better in ("higher", "lower")}
    checks.one_of("metric", metric, tuple(ranked))
    return ranked[metric]


def _dataset(
    values: np.ndarray,
    left_out: np.ndarray,
    utilities: np.ndarray,
    members: np.ndarray,
    data: FederatedData,
    seeds: Sequence[int],
    of_metric: Mapping[Any, Any],
) -> xr.Dataset:
    """Combines all values in a dataset; ``of_metric`` are the attributes of the metric."""
    import xarray as xr

    about = {"long_name": of_metric["long_name"], "units": of_metric["units"]}
    by_client = ("seed", "client")
    gain = "utility of all clients minus that of all others"
    sizes = np.asarray(data.train.sizes)
    return xr.Dataset(
        {
            "shapley_value": (by_client, values, about | {"long_name": "Shapley value"}),
            "leave_one_out": (by_client, left_out, about | {"long_name": gain}),
            "utility": (("seed", "coalition"), utilities, about),
            "member": (("coalition", "client"), members),
            "train_examples": (by_client[-sizes.ndim :], sizes),
        },
        {"seed": list(seeds)} | client_coordinate(data),
    )
