"""Events of virtual time without training: whose results would arrive, and when.

Durations of tasks do not depend on models. If the selector does not either, neither do arrivals,
and the part of a run on which they depend takes a small fraction of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import PyTree

from fedjax_fair import results
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.results.history import record_timing
from fedjax_fair.rounds.round import Round
from fedjax_fair.rounds.round_state import Traffic
from fedjax_fair.timing.client_times import QUANTITIES
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.jitted import Functions, make_functions
from fedjax_fair.training.loop import check_runs, devices_of
from fedjax_fair.training.stacked import stack_trees
from fedjax_fair.training.train_options import evaluated_rounds
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["expected_parity", "simulate"]

_PARITY = ("participation_parity", "weight_parity")
"""Metrics that are below 1 by chance."""

_MAX_COUNTS = 2_000_000
"""Counts of clients in all simulations, as a bound of memory."""

_MAX_ROUNDS = 100_000
"""Rounds of all simulations, as a bound of time: they take some seconds."""


def simulate(
    round: Round,
    data: FederatedData,
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    eval_every: int = 10,
) -> xr.Dataset:
    """Simulates the events of a method with a schedule, without training.

    Cohorts, arrivals and times are those of `fedjax_fair.fit` with the same arguments, if all
    updates are finite. A simulation chooses concurrency, buffer and deadline before a run.

    Args:
        round: The method.
        data: The federated dataset. With partitions from ``data.stack``, one for each seed.
        rounds: Rounds to simulate.
        seeds: One run for each.
        eval_every: Rounds between the entries of ``round``.

    Returns:
        The results of ``fit`` that do not depend on models, with the metrics of
        `fedjax_fair.metrics.speed`. Without ``cohort_weights``, and metrics that follow from them,
        if the aggregator's weights depend on updates.

    Raises:
        ValueError: If the method has no schedule, its cohorts or times depend on models, such as
            with a selector that reads losses, or an argument is invalid.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits", ff.data.iid(num_clients=10))
        >>> round = ff.Round(
        ...     model=ff.models.logistic(data.num_classes),
        ...     selector=ff.selectors.Full(),
        ...     solver=ff.solvers.SGD(learning_rate=0.1, batch_size=10, steps=5),
        ...     aggregator=ff.aggregators.FedBuff(),
        ...     schedule=ff.schedules.Asynchronous(
        ...         ff.timing.ClientTimes([0.02] * 5 + [0.1] * 5), buffer_size=5
        ...     ),
        ... )
        >>> simulate(round, data, rounds=4).update_time.values.tolist()
        [[1.0, 2.0, 3.0, 4.0]]
    """
    _check(round, rounds, eval_every)
    found = _simulate(round, data, rounds, seeds, eval_every)
    if found is None:
        raise ValueError(
            f"selector: {type(round.selector).__name__} reads models or results of training, so "
            "that cohorts are not known without it; expected a selector such as "
            "selectors.Uniform, or train with fit."
        )
    return found


def _check(round: Round, rounds: int, eval_every: int) -> None:
    checks.instance("round", round, Round, "Round(model, selector, solver, aggregator)")
    checks.positive_int("rounds", rounds)
    checks.positive_int("eval_every", eval_every)
    if round.schedule is None:
        raise ValueError(
            "round.schedule=None: expected a schedule, which has times; pass "
            "schedule=schedules.Synchronous(times) to Round."
        )


def _simulate(
    round: Round, data: FederatedData, rounds: int, seeds: Sequence[int], eval_every: int
) -> xr.Dataset | None:
    """Returns the results of `simulate`; None if events depend on models."""
    method = stack_trees([round])
    check_runs(method, data)
    with RunBatch(data, seeds) as batch:
        run_seeds, _ = batch.place(())
        functions = make_functions(method, train_loss=False)
        arguments = run_seeds, batch.place_shared(method).shared, batch.data
        traffic, known, records_of = _trace(functions, rounds, *arguments)
        if "events" not in known:
            return None
        round.check_tasks(data, traffic)
        records = jax.device_get(jax.jit(records_of)(*arguments))
    history = _history(records, data.num_clients, eval_every)
    devices = devices_of(method)
    found = results.to_dataset(history, batch.seeds, data, traffic, devices=devices)
    unknown = () if "bytes" in known else ("bytes_up", "bytes_down")
    return found.drop_vars(("diverged", "update_nonfinite", *unknown))  # There are no updates.


def _trace(
    functions: Functions, rounds: int, seeds: Any, shared: Any, data: FederatedData
) -> tuple[Traffic, list[str], Callable[..., dict[str, Any]]]:
    """Traces the rounds of a method.

    Returns:
        The bytes of a participant, the names of records that do not depend on models, and a
        function of seeds, shared arrays and data that computes these records, ``[seeds, rounds,
        ...]``, and nothing else.
    """

    def step(state, shared, data):
        _, info = functions.step(state, (), shared, data, rounds)
        return {
            "events": (info.clients, info.responded, info.available, info.timing),
            "weights": (info.weights, info.aggregator.get("scale")),
            "bytes": (info.bytes_up, info.bytes_down),
            "traffic": info.traffic,
        }

    inputs = jax.eval_shape(functions.init, (seeds, ()), shared, data), shared, data
    traced, shapes = jax.make_jaxpr(step, return_shape=True)(*inputs)

    def needed(names):
        """Returns the part of the function that makes some records, and which inputs it has."""
        wanted = {
            name: jax.tree.map(lambda _, is_wanted=name in names: is_wanted, shape)
            for name, shape in shapes.items()
        }
        return dce_jaxpr(traced.jaxpr, jax.tree.leaves(wanted))

    def reads_models(name):
        used: PyTree = jax.tree.unflatten(jax.tree.structure(inputs), needed([name])[1])
        return any(jax.tree.leaves(used[0].variables))

    known = [name for name in shapes if not reads_models(name)]

    def records_of(seeds, shared, data):
        jaxpr, used = needed(known)
        arguments = functions.init((seeds, ()), shared, data), shared, data
        leaves = zip(jax.tree.leaves(arguments), used, strict=True)
        call = jaxpr_as_fun(ClosedJaxpr(jaxpr, traced.consts))
        found = call(*[leaf for leaf, is_used in leaves if is_used])
        names = {name: shapes[name] for name in known}
        return jax.tree.unflatten(jax.tree.structure(names), found)

    return shapes["traffic"], known, records_of


def _history(records: dict[str, Any], num_clients: int, eval_every: int) -> results.History:
    """Returns the records as those of a run."""
    clients, responded, available, timing = records["events"]
    weights, scale = records.get("weights", (None, None))
    bytes_up, bytes_down = records.get("bytes", (None, None))
    rounds: dict[str, Any] = {
        "clients": clients,
        "responded": responded.astype(np.int8),
        "available": available.astype(np.int8),
        "weights": weights,
        "bytes_up": bytes_up,
        "bytes_down": bytes_down,
        "update_nonfinite": np.zeros(clients.shape[:2], np.int8),
        **record_timing(timing),
    }
    num_seeds, num_rounds, _ = clients.shape
    evaluated = evaluated_rounds(num_rounds, eval_every)
    participation = np.zeros((num_seeds, len(evaluated), num_clients), np.int32)
    for place, (start, end) in enumerate(pairwise(evaluated), 1):
        own = slice(start, end)
        participation[:, place] = participation[:, place - 1]
        for run in range(num_seeds):
            trained = clients[run, own][responded[run, own]]
            participation[run, place] += np.bincount(trained, minlength=num_clients)
    arrays = {
        "evaluated": evaluated,
        "summaries": {},
        "metrics": {"participation": participation},
        "rounds": {name: values for name, values in rounds.items() if values is not None},
        "selection": {},
        "aggregation": {} if scale is None else {"scale": scale},
    }
    return results.History.from_arrays(arrays)


def expected_parity(
    round: Round,
    data: FederatedData,
    *,
    rounds: int,
    eval_every: int = 10,
    draws: int = 200,
) -> xr.Dataset:
    """Estimates the parity of device classes if all clients were equally fast.

    A few clients for each class, and few results, have unequal shares by chance. Measured parity
    below this level comes from speeds. Simulations give all clients the median of each quantity
    of their times; classes and availability remain.

    Args:
        round: The method, with a schedule.
        data: The federated dataset.
        rounds: Rounds of each simulation.
        eval_every: Rounds between the entries of ``round``.
        draws: Maximum number of simulations, with seeds from 0. Fewer are used for more than
            10,000 clients or 500 rounds; with partitions from ``data.stack``, one for each.

    Returns:
        Variables ``participation_parity_expected`` and ``weight_parity_expected`` over ``round``,
        means of the metrics of `fedjax_fair.metrics.speed`; NaN if a metric depends on models. Add
        them to the results of a run by ``results.assign(found)``, so that tables show them.

    Raises:
        ValueError: If the method has no schedule, or an argument is invalid.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits", ff.data.iid(num_clients=10))
        >>> speeds = np.repeat([0.02, 0.1], 5)
        >>> times = ff.timing.ClientTimes(
        ...     speeds, device_class=[0] * 5 + [1] * 5, class_names=("fast", "slow")
        ... )
        >>> fedavg = ff.Round(
        ...     model=ff.models.logistic(data.num_classes),
        ...     selector=ff.selectors.Uniform(cohort_size=2),
        ...     solver=ff.solvers.SGD(learning_rate=0.1, batch_size=10, steps=5),
        ...     aggregator=ff.aggregators.Mean(),
        ...     schedule=ff.schedules.Synchronous(times),
        ... )
        >>> found = expected_parity(fedavg, data, rounds=50, eval_every=25)
        >>> found.participation_parity_expected.round(1).values.tolist()
        [nan, 0.9, 0.9]
    """
    import xarray as xr

    _check(round, rounds, eval_every)
    checks.positive_int("draws", draws)
    schedule, size = round.schedule, data.num_clients
    assert schedule is not None
    equal = {name: np.full(size, np.median(getattr(schedule.times, name))) for name in QUANTITIES}
    round = round.replace(schedule=schedule.replace(times=schedule.times.replace(**equal)))
    most = min(_MAX_COUNTS // size, _MAX_ROUNDS // rounds)
    draws = data.num_partitions or max(1, min(draws, most))
    found = _simulate(round, data, rounds, range(draws), eval_every)
    evaluated = evaluated_rounds(rounds, eval_every)
    unknown = xr.DataArray(np.full(len(evaluated), np.nan), {"round": evaluated}, "round")
    means = {} if found is None else found.mean("seed")
    return xr.Dataset({f"{name}_expected": means.get(name, unknown) for name in _PARITY})
