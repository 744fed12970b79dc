"""Expected trip counts of loops whose length depends on the data."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int
from scipy.special import gammaln

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.evaluation.sums import chunk_of_clients
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.parallel.collectives import AXIS
from fedjax_fair.parallel.mesh import assign_clients, is_run_on_one_device, num_run_groups
from fedjax_fair.planning.machines import Machine
from fedjax_fair.solvers.sgd import STEPS_PER_BLOCK

__all__ = ["TripCounts", "expected_maximum"]

_SCOPE = re.compile(r"(\w+)\)*/while$")
_CLIENTS = re.compile("clients_([0-9]+)_by_([0-9]+)")

_NUM_SAMPLES = 200  # Means of integers that differ by a few are then accurate to a few percent.


class TripCounts:
    """Trip counts of the loops of a round, for cohorts drawn uniformly.

    Other selectors may prefer larger clients. ``local_steps`` maps the sizes of clients to their
    local steps.
    """

    def __init__(
        self,
        machine: Machine,
        data: FederatedData,
        cohort_size: int,
        runs: int,
        local_steps: Callable[[Int[np.ndarray, " clients"]], Int[np.ndarray, " clients"]],
        mesh: Mesh | None = None,
    ) -> None:
        self._cohort_size = cohort_size
        # Devices that share a run loop over runs.
        self._parallel_runs = -(-runs // num_run_groups(mesh)) if is_run_on_one_device(mesh) else 1
        self._devices = 1 if mesh is None else mesh.shape[AXIS]
        train = data.partition(0).train  # All partitions are assumed to be similar.
        self._sizes = np.asarray(train.sizes)
        self._steps = local_steps(self._sizes)
        with tracing_for(machine.platform):
            self._chunk = chunk_of_clients(train)

    def trip_count(self, origin: str) -> float | None:
        """Returns the mean trip count of a loop by its origin; None if it is unknown."""
        scope = _SCOPE.search(origin)
        if scope is None:
            return None
        if scope[1] in ("local_steps", "step_blocks"):
            # In a vmap all clients wait for the one with most steps.
            clients = self._cohort_size if re.search(r"vmap\(step_blocks\)", origin) else 1
            steps = expected_maximum(self._steps, clients, self._parallel_runs)
            blocks = -(-steps // STEPS_PER_BLOCK)
            return blocks if scope[1] == "step_blocks" else steps / blocks
        if scope[1] == "client_chunks":
            return float(np.mean(-(-self._sizes // self._chunk)))
        if match := _CLIENTS.fullmatch(scope[1]):
            clients, clients_per_batch = map(int, match.groups())
            return float(np.mean(-(-self._on_busiest_device(clients) // clients_per_batch)))
        # Greedy ends earlier only if no other item is feasible.
        selections = re.fullmatch("selections_([0-9]+)", scope[1])
        return float(selections[1]) if selections else None

    def _on_busiest_device(self, clients: int) -> Int[np.ndarray, " samples"]:
        """Returns the clients on the busiest device, in some cohorts of ``clients``."""
        devices, rng = assign_clients(self._sizes, self._devices), np.random.default_rng(0)
        if clients >= len(devices):
            return np.bincount(devices, minlength=1).max(keepdims=True)
        cohorts = (rng.choice(devices, clients, replace=False) for _ in range(_NUM_SAMPLES))
        return np.array([np.bincount(cohort).max() for cohort in cohorts])


def expected_maximum(
    values: Int[np.ndarray, " clients"] | Float[np.ndarray, " clients"],
    cohort_size: int,
    runs: int = 1,
) -> float:
    """Returns the expected maximum of the clients' values over ``runs`` uniform cohorts.

    Examples:
        >>> round(expected_maximum(np.array([1, 2, 3]), 2), 3)
        2.667
    """
    ascending = np.sort(np.asarray(values, np.float64))
    count = np.arange(len(ascending) + 1)
    possible = count >= cohort_size
    # Probability that a cohort is within the smallest clients: a quotient of binomial coefficients.
    logs = _log_choose(np.where(possible, count, cohort_size), cohort_size)
    probability = np.where(possible, np.exp(logs - logs[-1]), 0.0) ** runs
    return float(np.sum(ascending * np.diff(probability)))


def _log_choose(n: Int[np.ndarray, " n"], k: int) -> Float[np.ndarray, " n"]:
    return gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
