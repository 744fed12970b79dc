"""Accuracy of trained models on clients that never took part in training.

The global model is measured on the test examples of every unseen client, before and after some
local steps of SGD on the client's training examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.evaluation.client_predictions import (
    custom_metrics,
    personalized_outputs,
    shared_outputs,
)
from fedjax_fair.evaluation.clients import client_performance, personalized_performance
from fedjax_fair.metrics.quantities import client_metrics
from fedjax_fair.numerics.labels import are_sequences
from fedjax_fair.results.history import client_coordinate, describe_quantity, units_of
from fedjax_fair.roles import ClientMetric, Model, Variables
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.client_state import make_client
from fedjax_fair.rounds.round_context import make_context
from fedjax_fair.rounds.round_state import Purpose, derive_key
from fedjax_fair.solvers.fine_tuned import fine_tune
from fedjax_fair.solvers.sgd import SGD
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.compiled_runs import check_outputs
from fedjax_fair.training.executable_cache import cache_by_shape, call
from fedjax_fair.training.jitted import over_runs, reuse_if_installed
from fedjax_fair.training.stacked import StackedDef, stack_trees
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["evaluate_unseen", "has_global_model", "undefined_unseen"]

_PLACES = {
    "unseen": "of the global model on unseen clients",
    "adapted": "on unseen clients after local steps",
}


def has_global_model(round: BaseRound) -> bool:
    """Returns whether ``FitResult.variables`` of a method is a model for new clients.

    It is not for ``local``, whose variables stay initial; for ``fedper``, ``fedrep``, ``lg_fedavg``
    and ``fedbn``, which contain initial arrays in place of the clients' personal ones; and for
    ``ifca``, of whose several models they are the first only. `undefined_unseen` stands for the
    metrics of such methods. The global model of ``fedbabu`` has an untrained head: it counts, and
    only its metrics after local steps are meaningful.

    Examples:
        >>> from fedjax_fair import Round, aggregators, models, selectors, solvers
        >>> sgd = solvers.SGD(0.1, 10, epochs=1)
        >>> local = Round(models.logistic(10), selectors.Uniform(5), solvers.Local(sgd),
        ...               aggregators.Mean())
        >>> has_global_model(local), has_global_model(local.replace(solver=sgd))
        (False, True)
    """
    return round.has_global_model


def evaluate_unseen(
    model: Model,
    variables: Variables,
    rates: Sequence[float],
    unseen: FederatedData,
    *,
    seeds: Sequence[int],
    batch_size: int,
    steps: int = 10,
    client_ids: Int[np.ndarray, "*runs clients"] | None = None,
    metrics: Sequence[ClientMetric] = (),
    mesh: Mesh | None = None,
) -> xr.Dataset:
    """Evaluates trained models on clients that never took part, before and after local steps.

    The local steps are as in `solvers.FineTuned` in round 0. Models, rates and data are
    arguments of one compiled function, which all methods of a network and federation share.

    Args:
        model: The network.
        variables: Trained models, arrays ``[runs, ...]``, as in `FitResult`.
        rates: Learning rate of the local steps of each run.
        unseen: The unseen clients (`fedjax_fair.data.hold_out_clients`), whose training examples
            the local steps use. With partitions from ``data.stack``, one for each run.
        seeds: Seed of each run, which may repeat; it determines minibatches.
        batch_size: Maximum number of examples per minibatch.
        steps: Local steps; 0 gives the global model.
        client_ids: Non-negative ids ``[clients]`` or ``[runs, clients]``, which determine the
            minibatches of a client together with the seed; by default 0, 1, and so on.
        metrics: Metrics of the user; those of the task, such as errors of a regression, follow.
        mesh: Devices, as of ``fit``.

    Returns:
        Variables ``unseen_accuracy``, ``unseen_loss``, ``adapted_accuracy`` and ``adapted_loss``,
        and two for each metric, such as ``unseen_mean_absolute_error``, with the dimensions
        ``seed`` and ``client``, NaN for clients without test examples.

    Raises:
        ValueError: If the data or a setting is invalid, or the numbers of runs differ.

    Examples:
        >>> import fedjax_fair as ff
        >>> seen, unseen = ff.data.hold_out_clients(ff.data.load("digits"), fraction=0.2)
        >>> fedavg = ff.Round(ff.models.logistic(10), ff.selectors.Uniform(10),
        ...                   ff.solvers.SGD(0.1, 10, epochs=1), ff.aggregators.Mean())
        >>> fitted = ff.fit(fedavg, seen, rounds=5, seeds=(0, 1))
        >>> metrics = evaluate_unseen(fedavg.model, fitted.variables, [0.1, 0.1], unseen,
        ...                           seeds=(0, 1), batch_size=10)
        >>> dict(metrics.adapted_accuracy.sizes)
        {'seed': 2, 'client': 10}
    """
    checks.positive_int("batch_size", batch_size)
    checks.non_negative_int("steps", steps, at_most=checks.MAX_INT)
    num_runs, model_split = len(seeds), stack_trees([model])
    rate_values = np.asarray(rates, np.float32)
    if rate_values.shape != (num_runs,):
        raise ValueError(
            f"rates={rates}: expected a number for each of {num_runs} seeds; pass one learning "
            "rate per seed."
        )
    checks.non_negative("rates", rate_values, many=True)
    for leaf in jax.tree.leaves(variables):
        if np.shape(leaf)[:1] != (num_runs,):
            raise ValueError(
                f"variables with an array of shape {np.shape(leaf)}: expected a first axis of "
                f"{num_runs}, one model for each seed; pass the variables of FitResult."
            )
    with RunBatch(unseen, seeds, mesh) as batch:
        ids = _check_ids(client_ids, num_runs, unseen.num_clients)
        check_outputs(model, variables, unseen)
        measured = tuple(client_metrics(model.task, metrics))
        measurement = reuse_if_installed(_measurement, (model, measured))(
            model_split.structure, batch.mesh, steps, batch_size, measured
        )
        runs = batch.place((rate_values, variables, ids))
        values = jax.device_get(call(measurement, runs, model_split.shared, batch.data))
    columns = {name: value[:num_runs] for name, value in values.items()}
    return _to_dataset(columns, unseen, seeds, model, metrics)


def undefined_unseen(
    unseen: FederatedData,
    seeds: Sequence[int],
    model: Model | None = None,
    metrics: Sequence[ClientMetric] = (),
) -> xr.Dataset:
    """Returns the dataset of `evaluate_unseen` with NaN, for methods without a global model."""
    nan = np.full((len(seeds), unseen.num_clients), np.nan, np.float32)
    values = dict.fromkeys(_described(unseen, model, metrics), nan)
    return _to_dataset(values, unseen, seeds, model, metrics)


@cache_by_shape
def _measurement(
    structure: StackedDef,
    mesh: Mesh | None,
    steps: int,
    batch_size: int,
    metrics: tuple[ClientMetric, ...],
) -> Any:
    """Returns a jitted function of runs that computes the variables ``[runs, clients]``."""

    def values_of(kind, performance, outputs_fn, model, data):
        custom, _ = custom_metrics(model, outputs_fn, data, metrics)
        values = {f"{kind}_{metric.name}": custom[f"test_{metric.name}"] for metric in metrics}
        if model.task != "regression":
            values[f"{kind}_accuracy"] = performance.accuracy
        return values | {f"{kind}_loss": performance.loss}

    def measure_run(run, shared, data):
        seed, (rate, variables, ids) = run
        model = structure.fill(shared, ())
        key = derive_key(jax.random.key(seed), Purpose.PERSONALIZE, 0)
        solver = SGD(rate, batch_size, steps=max(1, steps))
        context = make_context(model, jnp.int32(0), variables, data)

        def adapted(client):
            participant = make_client(context, client)
            key_client = jax.random.fold_in(key, ids[client])
            return fine_tune(solver, steps, key_client, variables, participant)

        before = client_performance(model, variables, data.test)
        outputs_fn = partial(shared_outputs, model, variables)
        values = values_of("unseen", before, outputs_fn, model, data)
        # After 0 steps the metrics are equal, also in rounding.
        after = before
        if steps:
            (after,) = personalized_performance(model, adapted, [data.test])
            outputs_fn = partial(personalized_outputs, model, adapted)
        return values | values_of("adapted", after, outputs_fn, model, data)

    def measure_runs(runs, shared, data):
        def measure(run, data, store, shared):
            return measure_run(run, shared, data), store

        mapped = over_runs(measure, mesh)
        return mapped(runs, data, shared=shared)[0]

    return jax.jit(measure_runs)


def _check_ids(
    client_ids: Int[np.ndarray, "*runs clients"] | None, num_runs: int, num_clients: int
) -> Int[np.ndarray, "runs clients"]:
    if client_ids is None:
        client_ids = np.arange(num_clients)
    ids = np.asarray(client_ids)
    is_valid = ids.shape in ((num_clients,), (num_runs, num_clients)) and ids.dtype.kind in "iu"
    if not is_valid or ids.min() < 0 or ids.max() >= 2**31:
        raise ValueError(
            f"client_ids of {ids.dtype} and shape {ids.shape}: expected integers in [0, 2**31), "
            f"[{num_clients}] or [{num_runs}, {num_clients}]; pass one id per client."
        )
    return np.array(np.broadcast_to(ids.astype(np.int32), (num_runs, num_clients)))


def _described(
    unseen: FederatedData, model: Model | None, metrics: Sequence[ClientMetric]
) -> dict[str, dict[str, str]]:
    """Returns the attributes of the variables by name."""
    units, found = units_of(unseen, model), {}
    task = "classification" if model is None else model.task
    for kind, place in _PLACES.items():
        of_task = {"accuracy": "1"} if task != "regression" else {}
        for name, unit in (of_task | {"loss": units["loss"]}).items():
            found[f"{kind}_{name}"] = {"long_name": f"Test {name} {place}", "units": unit}
        for metric in client_metrics(task, metrics):
            _, attributes = describe_quantity(metric, units)[f"test_{metric.name}"]
            long_name = f"{metric.description} {place}"
            found[f"{kind}_{metric.name}"] = attributes | {"long_name": long_name}
        if are_sequences(unseen.test.labels):
            about = {"long_name": f"Test perplexity {place}", "units": "1"}
            found.setdefault(f"{kind}_perplexity", about)
    return found


def _to_dataset(
    values: dict[str, np.ndarray],
    unseen: FederatedData,
    seeds: Sequence[int],
    model: Model | None,
    metrics: Sequence[ClientMetric],
) -> xr.Dataset:
    import xarray as xr

    columns = {}
    for name, attributes in _described(unseen, model, metrics).items():
        # The perplexity of sequences is known from losses.
        measured = values.get(name)
        if measured is None:
            measured = np.exp(values[name.replace("perplexity", "loss")])
        columns[name] = (("seed", "client"), measured, attributes)
    coordinates = {"seed": list(seeds)} | client_coordinate(unseen)
    return xr.Dataset(columns, coordinates, {"data": unseen.name})
