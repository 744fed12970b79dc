"""What the host notices about a run: cohorts that cannot be meant, models that do not learn."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Bool, Float, Int, Shaped

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.results import History
from fedjax_fair.simulate import RoundInfo

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "TrainingMonitor",
    "check_participants",
    "is_constant",
    "warn_of_clients",
    "warn_of_divergence",
]

# Heterogeneous clients make losses jump, but not to where the right class has, in the geometric
# mean, the tenth power of the probability that guessing gives it.
_EXPLODED = 10

# A shorter run may end before it has learned anything.
_LONG = 20


def is_constant(traced: Any, info: RoundInfo) -> bool:
    """Whether the clients of a traced chunk of rounds depend on nothing that goes into it.

    A selector that draws with NumPy draws once, while it is traced, and the cohort is a constant of
    the program.

    Args:
        traced: ``jax.jit(...).trace(...)`` of a function that returns a state and a ``RoundInfo``.
        info: Anything of the structure of that ``RoundInfo``.
    """
    state, _ = traced.out_info
    wanted = jax.tree.map(lambda _: False, (state, info))
    wanted = jax.tree.leaves((wanted[0], wanted[1]._replace(clients=True)))
    _, used = dce_jaxpr(traced.jaxpr.jaxpr, wanted)
    return not any(used)


def check_participants(
    clients: Int[np.ndarray, "seeds rounds cohort"],
    num_clients: int,
    done: int,
    seeds: tuple[int, ...],
) -> None:
    """Requires cohorts of clients that exist; inside a program an id out of range is clamped.

    Raises:
        ValueError: If there is another id; it names the first round with one.
    """
    outside = (clients < 0) | (clients >= num_clients)
    if not outside.any():
        return
    late = int(np.argmax(outside.any(axis=(0, 2))))
    run, slot = np.argwhere(outside[:, late])[0]
    raise ValueError(
        f"selector: the cohort of round {done + late}, seed {seeds[run]}, names client "
        f"{clients[run, late, slot]}: expected ids in [0, {num_clients})."
    )


def warn_of_clients(
    info: dict[str, Shaped[np.ndarray, "seeds rounds"]], done: int, seeds: tuple[int, ...]
) -> None:
    """Names the first client that a selector could not judge, if there was one."""
    if "first_nonfinite_client" not in info or (info["first_nonfinite_client"] < 0).all():
        return
    run, late = np.argwhere(info["first_nonfinite_client"] >= 0)[0]
    warnings.warn(
        f"round {done + late}, seed {seeds[run]}: the loss or gradient of "
        f"{info['num_nonfinite'][run, late]} clients is not finite, first of client "
        f"{info['first_nonfinite_client'][run, late]}; they are chosen last.",
        stacklevel=3,
    )


def warn_of_divergence(dataset: xr.Dataset) -> None:
    """Counts the updates of the model that were not finite, and names the first run with one."""
    runs = np.flatnonzero(dataset["diverged"] >= 0)
    if not runs.size:
        return
    first = dataset.isel(seed=runs[0])
    times, rounds = int(first["update_nonfinite"].sum()), first.sizes["training_round"]
    others = f", and one or more in {len(runs) - 1} other runs" if len(runs) > 1 else ""
    warnings.warn(
        f"round {int(first['diverged'])}, seed {int(first['seed'])}: the update is not finite; "
        f"{times} of {rounds} rounds left the model as it was{others}.",
        stacklevel=3,
    )


class TrainingMonitor:
    """Warns, once for each reason, of runs whose numbers say that they do not learn.

    The reasons: a client's test loss that is not finite; a mean test loss more than ten times that
    of the untrained model or of guessing, whichever is higher; and, once half of 20 or more rounds
    are done, not one evaluation with an accuracy above that of always guessing the most frequent
    class.

    Args:
        data: The federation.
        rounds: Rounds of the whole run.
        seeds: The seeds.
    """

    def __init__(self, data: FederatedData, rounds: int, seeds: tuple[int, ...]) -> None:
        self._rounds, self._seeds = rounds, seeds
        classes = np.issubdtype(data.test.labels.dtype, np.integer)
        guessing = math.log(data.num_classes) if classes else 0.0
        self._usual_loss = np.full(len(seeds), guessing)
        self._guessed = np.full(len(seeds), -np.inf)
        if classes:
            self._guessed[:] = [_most_frequent(data.partition(run)) for run in range(len(seeds))]
        # Rounding is far from half an example.
        self._half = 0.5 / np.sum(data.test.sizes, axis=-1)
        self._best = np.full(len(seeds), -np.inf)
        self._tested = np.asarray(data.test.sizes) > 0
        self._said: set[str] = set()

    def replay(self, history: History) -> None:
        """Looks at the evaluations before a run was interrupted."""
        kept = history.arrays()
        for i, done in enumerate(kept["evaluated"]):
            summaries = {name: values[:, i] for name, values in kept["summaries"].items()}
            self.update(int(done), summaries, kept["metrics"]["test_loss"][:, i])

    def update(
        self,
        done: int,
        summaries: dict[str, np.ndarray],
        losses: Float[np.ndarray, "seeds clients"],
    ) -> None:
        """Looks at the evaluation after ``done`` rounds, with the test losses of all clients."""
        loss, accuracy = summaries["test_loss_mean_examples"], summaries["accuracy_mean_examples"]
        broken = np.sum(~np.isfinite(losses) & self._tested, axis=1)
        self._warn(
            done,
            broken > 0,
            "loss",
            lambda run: f"the test loss of {broken[run]} clients is not finite.",
        )
        if done == 0:
            self._usual_loss = np.fmax(self._usual_loss, loss)
            return
        exploded = (loss > _EXPLODED * self._usual_loss) & (self._usual_loss > 0)
        self._warn(
            done,
            exploded,
            "loss",
            lambda run: (
                f"the test loss is {loss[run]:.4g}, of the untrained model or of guessing "
                f"{self._usual_loss[run]:.4g}; a smaller learning rate may help."
            ),
        )
        self._best = np.fmax(self._best, accuracy)
        late = self._rounds >= _LONG and 2 * done >= self._rounds
        self._warn(
            done,
            late & np.isfinite(self._best) & (self._best < self._guessed + self._half),
            "accuracy",
            lambda run: (
                f"no test accuracy so far is above {self._guessed[run]:.4g}, that of guessing the "
                "most frequent class."
            ),
        )

    def _warn(
        self, done: int, doubtful: Bool[np.ndarray, " seeds"], reason: str, message: Any
    ) -> None:
        if reason in self._said or not doubtful.any():
            return
        self._said.add(reason)
        run = int(np.argmax(doubtful))
        warnings.warn(f"round {done}, seed {self._seeds[run]}: {message(run)}", stacklevel=4)


def _most_frequent(data: FederatedData) -> float:
    """Share of the most frequent class among the test examples that clients own."""
    owned = np.asarray(data.test.order)[: int(np.sum(data.test.sizes))]
    return float(np.bincount(np.asarray(data.test.labels)[owned]).max() / len(owned))
