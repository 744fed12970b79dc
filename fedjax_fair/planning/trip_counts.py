"""How often loops go round whose length depends on the data, on average."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int
from scipy.special import gammaln

from fedjax_fair.client_evaluation import chunk_of_clients
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.numerics.target import tracing_for
from fedjax_fair.parallel.collectives import AXIS
from fedjax_fair.parallel.mesh import assign_clients, is_run_on_one_device, num_run_groups
from fedjax_fair.planning.machines import Machine
from fedjax_fair.solvers.sgd import PLANNED

__all__ = ["TripCounts", "expected_maximum"]

_SCOPE = re.compile(r"(\w+)\)*/while$")
_CLIENTS = re.compile("clients_([0-9]+)_by_([0-9]+)")


_DRAWS = 200  # The mean of whole numbers that differ by a few: known to a few percent.


class TripCounts:
    """What is known of the loops of a round that programs do not say the length of.

    Cohorts are taken as drawn uniformly; other selectors may prefer larger clients.

    Args:
        machine: From ``machines.find``.
        data: The federation.
        cohort_size: Participants of a cohort.
        runs: Runs side by side.
        local_steps: From sizes of clients to their local steps.
        mesh: Devices that clients are assigned to, or None for one.
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
        # Where devices share a run, runs follow each other.
        side_by_side = -(-runs // num_run_groups(mesh)) if is_run_on_one_device(mesh) else 1
        self._cohort_size, self._runs = cohort_size, side_by_side
        self._devices = 1 if mesh is None else mesh.shape[AXIS]
        train = data.partition(0).train  # Others are of the same kind.
        self._sizes = np.asarray(train.sizes)
        self._steps = local_steps(self._sizes)
        with tracing_for(machine.platform):
            self._chunk = chunk_of_clients(train)

    def trip_count(self, origin: str) -> float | None:
        """How often a loop goes round, on average.

        Args:
            origin: What it was traced from, as compiled programs say it.
        """
        scope = _SCOPE.search(origin)
        if scope is None:
            return None
        if scope[1] in ("local_steps", "step_blocks"):
            # Side by side all participants wait for the one with most steps.
            together = self._cohort_size if re.search(r"vmap\(step_blocks\)", origin) else 1
            steps = expected_maximum(self._steps, together, self._runs)
            blocks = -(-steps // PLANNED)
            return blocks if scope[1] == "step_blocks" else steps / blocks
        if scope[1] == "client_chunks":
            return float(np.mean(-(-self._sizes // self._chunk)))
        if clients := _CLIENTS.fullmatch(scope[1]):
            participants, side_by_side = map(int, clients.groups())
            return float(np.mean(-(-self._busiest(participants) // side_by_side)))
        # Greedy ends before only where nothing else may be chosen.
        selections = re.fullmatch("selections_([0-9]+)", scope[1])
        return float(selections[1]) if selections else None

    def _busiest(self, participants: int) -> Int[np.ndarray, " draws"]:
        """Participants on the device that has most of them, in some cohorts drawn uniformly."""
        devices, rng = assign_clients(self._sizes, self._devices), np.random.default_rng(0)
        if participants >= len(devices):
            return np.bincount(devices, minlength=1).max(keepdims=True)
        draws = (rng.choice(devices, participants, replace=False) for _ in range(_DRAWS))
        return np.array([np.bincount(drawn).max() for drawn in draws])


def expected_maximum(
    values: Int[np.ndarray, " clients"] | Float[np.ndarray, " clients"],
    participants: int,
    runs: int = 1,
) -> float:
    """The mean of the largest value among participants of cohorts that are drawn uniformly.

    Args:
        values: Of every client.
        participants: Different clients in a cohort.
        runs: Cohorts, drawn independently.

    Examples:
        >>> round(expected_maximum(np.array([1, 2, 3]), 2), 3)
        2.667
    """
    ascending = np.sort(np.asarray(values, np.float64))
    clients = len(ascending)
    below = np.arange(clients + 1)
    possible = below >= participants
    # The share of cohorts within the smallest clients: a quotient of binomial coefficients.
    logs = _log_choose(np.where(possible, below, participants), participants)
    share = np.where(possible, np.exp(logs - logs[-1]), 0.0) ** runs
    return float(np.sum(ascending * np.diff(share)))


def _log_choose(n: Int[np.ndarray, " n"], k: int) -> Float[np.ndarray, " n"]:
    return gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
