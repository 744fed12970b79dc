"""Checks for invalid or constant cohorts, divergence, and models that do not learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Bool, Float, Int, Shaped

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.numerics.labels import MASKED_LABEL, are_sequences
from fedjax_fair.results import History
from fedjax_fair.roles import PERSONALIZED
from fedjax_fair.roles.checked_calls import MAX_WEIGHT_ERROR
from fedjax_fair.rounds.round_state import RoundInfo
from fedjax_fair.utils.warning import warn

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "TrainingMonitor",
    "check_participants",
    "is_constant",
    "warn_of_clients",
    "warn_of_divergence",
    "warn_of_reference_error",
    "warn_of_repeated_clients",
]

# Losses of heterogeneous clients jump, but not to ten times the loss of guessing: there the
# geometric mean of the probability of the right class is the tenth power of the probability of
# guessing.
_DIVERGED_LOSS_FACTOR = 10

# A shorter run may end before it has learned anything.
_MIN_ROUNDS_TO_LEARN = 20

_MAX_REFERENCE_ERROR = 0.1
"""Standard deviation of errors of lowest losses, over that of loss gaps, that changes no result."""

_MIN_REPEATS = 8
"""Repeated slots of a run. Of two clients, the same is drawn so often in one of 256 runs."""


def is_constant(traced: Any, info: RoundInfo) -> bool:
    """Returns whether the cohorts of a traced chunk of rounds depend on none of its inputs.

    ``info`` has the structure of the chunk's ``RoundInfo``.
    """
    state, _ = traced.out_info
    no_output = jax.tree.map(lambda _: False, (state, info))
    clients_only = (no_output[0], no_output[1]._replace(clients=True))
    _, used_inputs = dce_jaxpr(traced.jaxpr.jaxpr, jax.tree.leaves(clients_only))
    return not any(used_inputs)


def check_participants(
    clients: Int[np.ndarray, "seeds rounds cohort"],
    num_clients: int,
    first_round: int,
    seeds: tuple[int, ...],
) -> None:
    """Checks the client ids of cohorts, which compiled functions clamp to the valid range.

    Raises:
        ValueError: If an id is out of range; it names the first such round.
    """
    invalid = (clients < 0) | (clients >= num_clients)
    if not invalid.any():
        return
    round = int(np.argmax(invalid.any(axis=(0, 2))))
    run, slot = np.argwhere(invalid[:, round])[0]
    raise ValueError(
        f"selector: the cohort of round {first_round + round}, seed {seeds[run]}, names client "
        f"{clients[run, round, slot]}: expected ids in [0, {num_clients}); return ids below "
        "context.num_clients from select."
    )


def warn_of_clients(
    info: dict[str, Shaped[np.ndarray, "seeds rounds"]],
    first_round: int,
    seeds: tuple[int, ...],
    data: FederatedData,
) -> None:
    """Warns of the first client whose loss or gradient was not finite during selection."""
    if "first_nonfinite_client" not in info or (info["first_nonfinite_client"] < 0).all():
        return
    run, round = np.argwhere(info["first_nonfinite_client"] >= 0)[0]
    (first,) = data.label_clients([int(info["first_nonfinite_client"][run, round])])
    warn(
        f"round {first_round + round}, seed {seeds[run]}: the loss or gradient of "
        f"{info['num_nonfinite'][run, round]} clients is not finite, first of client "
        f"{first}; they are chosen last."
    )


def warn_of_divergence(dataset: xr.Dataset) -> None:
    """Warns of rounds that were skipped because the update was not finite."""
    runs = np.flatnonzero(dataset["diverged"] >= 0)
    if not runs.size:
        return
    first = dataset.isel(seed=runs[0])
    skipped, rounds = int(first["update_nonfinite"].sum()), first.sizes["training_round"]
    others = f", and one or more in {len(runs) - 1} other runs" if len(runs) > 1 else ""
    warn(
        f"round {int(first['diverged'])}, seed {int(first['seed'])}: the update is not finite; "
        f"{skipped} of {rounds} rounds were skipped{others}."
    )


def warn_of_reference_error(dataset: xr.Dataset) -> None:
    """Warns if the lowest losses of clients are too inaccurate for their loss gaps."""
    if "aggregation_reference_error" not in dataset:
        return
    errors = dataset["aggregation_reference_error"].isel(training_round=-1).values
    run = int(np.argmax(errors))
    if errors[run] > _MAX_REFERENCE_ERROR:
        warn(
            f"seed {int(dataset['seed'][run])}: the lowest losses of clients are inaccurate by "
            f"{errors[run]:.2g} of the standard deviation of the loss gaps, which hides "
            "unfairness; set more iterations of LossGap."
        )


def warn_of_repeated_clients(dataset: xr.Dataset) -> None:
    """Warns if every cohort of a run is one client, in all slots.

    Cohorts may repeat clients, because some selectors draw with replacement, but not by chance in
    every slot of many.
    """
    clients = dataset["cohort_clients"].transpose("seed", "training_round", "slot").values
    is_repeated = np.all((clients == clients[..., :1]) & (clients >= 0), axis=(1, 2))
    if clients.shape[1] * (clients.shape[2] - 1) < _MIN_REPEATS or not is_repeated.any():
        return
    warn(
        f"selector: every cohort of seed {int(dataset['seed'][np.argmax(is_repeated)])} is one "
        f"client in all {clients.shape[2]} slots, which trains as often: expected several clients; "
        "return different ids from select, or a cohort of size 1."
    )


class TrainingMonitor:
    """Warns once of each sign that a run does not learn, and of invalid weights and states.

    The signs are: a test loss that is not finite; a mean test loss of more than ten times that of
    the untrained model or of guessing; after half of 20 or more rounds, no accuracy above that
    of guessing the most frequent class; and ``uint8`` images that all get the same class, as if the
    module divided them by 255 once more. They are those of personalized models if there is no
    global model, except the last one.
    """

    def __init__(
        self,
        data: FederatedData,
        rounds: int,
        seeds: tuple[int, ...],
        has_global_model: bool = True,
    ) -> None:
        self._rounds, self._seeds = rounds, seeds
        self._prefix = "" if has_global_model else PERSONALIZED
        is_classification = np.issubdtype(data.test.labels.dtype, np.integer)
        guessing_loss = math.log(data.num_classes) if is_classification else 0.0
        self._start_loss = np.full(len(seeds), guessing_loss)
        self._guessing_accuracy = np.full(len(seeds), -np.inf)
        num_labels = np.sum(data.test.sizes, axis=-1)
        if is_classification:
            labels = [_test_labels(data.partition(run)) for run in range(len(seeds))]
            num_labels = np.array([len(classes) for classes in labels])
            # The share of the most frequent class.
            self._guessing_accuracy[:] = [np.bincount(classes).max() for classes in labels]
            self._guessing_accuracy /= num_labels
        # Half of a label is far more than rounding errors.
        self._tolerance = 0.5 / num_labels
        self._best_accuracy = np.full(len(seeds), -np.inf)
        self._has_test_examples = np.asarray(data.test.sizes) > 0
        self._has_images = data.train.features.dtype == np.uint8
        self._was_constant = np.zeros(len(seeds), bool)
        self._warned: set[str] = set()

    def check_rounds(self, info: RoundInfo, first_round: int) -> None:
        """Warns once of invalid weights of applied updates, and of states that are not finite.

        Weights ``[seeds, rounds, cohort]`` are also invalid if all are zero although clients
        responded.
        """
        weights = np.asarray(info.weights, np.float64)
        total = np.sum(weights, axis=2)
        is_zero = np.all(weights == 0, axis=2)
        # A sum of NaN is not near 1 either.
        is_sum_wrong = ~(np.abs(total - 1) <= MAX_WEIGHT_ERROR) & ~is_zero
        is_negative = np.min(weights, axis=2) < -MAX_WEIGHT_ERROR
        is_applied = np.asarray(info.finite)
        responded = np.asarray(info.responded)
        missing = np.any(~responded & (weights != 0), axis=2) & is_applied
        states = 0 if info.state_nonfinite is None else info.state_nonfinite
        count = np.sum(np.broadcast_to(states, weights.shape), axis=2)
        signs: tuple[tuple[str, Bool[np.ndarray, "seeds rounds"], Callable[..., str]], ...] = (
            (
                "missing",
                missing,
                lambda run, round: (
                    "results that did not arrive have weights, and count as zeros: expected an "
                    "aggregator that calls cohort.renormalize_weights."
                ),
            ),
            (
                "weights",
                is_applied & (is_sum_wrong | is_negative),
                lambda run, round: (
                    f"the weights of the cohort are {np.round(weights[run, round], 4).tolist()}: "
                    "expected numbers >= 0 that sum to 1, from the selector and the aggregator."
                ),
            ),
            (
                "zeros",
                is_applied & is_zero & np.any(responded, axis=2),
                lambda run, round: (
                    "all weights of the cohort are 0, so that no client changes the model: "
                    "expected numbers >= 0 that sum to 1, from the selector and the aggregator."
                ),
            ),
            (
                "state",
                count > 0,
                lambda run, round: (
                    f"the new states of {count[run, round]} clients are not finite and were not "
                    "stored; a smaller learning rate may help."
                ),
            ),
        )
        for metric, affected, message in signs:
            round = int(np.argmax(affected.any(axis=0)))
            self._warn(
                first_round + round, metric, affected[:, round], partial(message, round=round)
            )

    def replay(self, history: History) -> None:
        """Applies ``update`` to the evaluations of a resumed run."""
        arrays = history.arrays()
        for i, round in enumerate(arrays["evaluated"]):
            summaries = {name: values[:, i] for name, values in arrays["summaries"].items()}
            losses = arrays["metrics"][f"{self._prefix}test_loss"][:, i]
            class_accuracy = arrays["metrics"]["class_accuracy"][:, i]
            self.update(int(round), summaries, losses, class_accuracy)

    def update(
        self,
        round: int,
        summaries: dict[str, np.ndarray],
        losses: Float[np.ndarray, "seeds clients"],
        class_accuracy: Float[np.ndarray, "seeds classes"],
    ) -> None:
        """Checks the evaluation after a round.

        Args:
            round: Number of rounds.
            summaries: Summary metrics ``[seeds]`` by name.
            losses: Test losses of clients.
            class_accuracy: Accuracy of the global model on the test examples of each class; NaN for
                a class without.
        """
        loss = summaries[f"{self._prefix}test_loss_mean_examples"]
        # A regression has no accuracy.
        accuracy = summaries.get(
            f"{self._prefix}accuracy_mean_examples", np.full_like(loss, np.nan)
        )
        num_nonfinite = np.sum(~np.isfinite(losses) & self._has_test_examples, axis=1)
        if round == 0:
            self._start_loss = np.fmax(self._start_loss, loss)
        else:
            self._best_accuracy = np.fmax(self._best_accuracy, accuracy)
        is_late = self._rounds >= _MIN_ROUNDS_TO_LEARN and 2 * round >= self._rounds
        not_learned = self._best_accuracy < self._guessing_accuracy + self._tolerance
        predicted = np.argmax(np.nan_to_num(class_accuracy), axis=1)
        is_constant = (round > 0) & _is_constant(class_accuracy)
        # Models of clients with one class each predict one class for a while, too.
        is_lasting = round == self._rounds or np.all(is_constant & self._was_constant)
        self._was_constant = is_constant
        signs: tuple[tuple[str, Bool[np.ndarray, " seeds"], Callable[[int], str]], ...] = (
            (
                "loss",
                num_nonfinite > 0,
                lambda run: f"the test loss of {num_nonfinite[run]} clients is not finite.",
            ),
            (
                "loss",
                (loss > _DIVERGED_LOSS_FACTOR * self._start_loss) & (self._start_loss > 0),
                lambda run: (
                    f"the test loss is {loss[run]:.4g}, of the untrained model or of guessing "
                    f"{self._start_loss[run]:.4g}; a smaller learning rate may help."
                ),
            ),
            (
                "accuracy",
                is_late & np.isfinite(self._best_accuracy) & not_learned,
                lambda run: (
                    f"no test accuracy so far is above {self._guessing_accuracy[run]:.4g}, that of "
                    "guessing the most frequent class."
                ),
            ),
            (
                "images",
                is_constant & is_lasting & self._has_images,
                lambda run: (
                    f"the prediction is class {predicted[run]} for all test examples. If the "
                    "module divides images by 255, remove this: uint8 features reach it in [0, 1]."
                ),
            ),
        )
        for sign in signs:
            self._warn(round, *sign)

    def _warn(
        self,
        round: int,
        metric: str,
        affected: Bool[np.ndarray, " seeds"],
        message: Callable[[int], str],
    ) -> None:
        """Warns once of the first affected seed."""
        if metric not in self._warned and affected.any():
            self._warned.add(metric)
            run = int(np.argmax(affected))
            warn(f"round {round}, seed {self._seeds[run]}: {message(run)}")


def _is_constant(class_accuracy: Float[np.ndarray, "seeds classes"]) -> Bool[np.ndarray, " seeds"]:
    """Returns whether one class is predicted for all examples of two or more classes."""
    num_right, num_wrong = (np.sum(class_accuracy == value, axis=1) for value in (1, 0))
    num_classes = np.sum(~np.isnan(class_accuracy), axis=1)
    return (num_right == 1) & (num_wrong == num_classes - 1) & (num_classes > 1)


def _test_labels(data: FederatedData) -> Int[np.ndarray, " labels"]:
    """Returns the classes of all test labels of all clients that are not masked."""
    labels = np.asarray(data.test.labels)
    assigned = labels[np.asarray(data.test.order)[: int(np.sum(data.test.sizes))]]
    return assigned[assigned != MASKED_LABEL] if are_sequences(labels) else assigned
