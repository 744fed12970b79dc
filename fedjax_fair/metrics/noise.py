"""Noise floor of fairness metrics: their values where all clients have the same accuracy.

Measured accuracies are then binomial fractions of the clients' test examples, so that they still
differ. A measured spread below this level is not evidence of unfairness.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedjax_fair.metrics.class_based import class_based_accuracy
from fedjax_fair.metrics.summaries import CLIENT_GROUP_SUMMARIES, SUMMARIES, accuracy_summaries
from fedjax_fair.utils import checks
from fedjax_fair.utils.xla_options import brief_jit

__all__ = ["OF_SPREAD", "expected"]

OF_SPREAD = tuple(
    metric.name for metric in SUMMARIES + CLIENT_GROUP_SUMMARIES if metric.has_noise_floor
)
"""Metrics that depend on how accuracies differ between clients."""

_MAX_BINOMIALS = 2_000_000  # Sampled within a second.


def expected(
    names: Sequence[str],
    accuracy: float,
    examples: Int[np.ndarray, "clients classes"],
    groups: Int[np.ndarray, " clients"] | None = None,
    draws: int = 200,
) -> dict[str, float]:
    """Estimates the means of metrics if all clients had the same accuracy.

    Args:
        names: Names from ``OF_SPREAD``, or with the suffix ``_class_based``, metrics of
            `fedjax_fair.results.class_based`.
        accuracy: Accuracy of all clients, in ``[0, 1]``.
        examples: Test examples of every client and class, at least one client.
        groups: Ground-truth group of each client, required by metrics of groups.
        draws: Maximum number of simulated test sets, from a fixed seed. Fewer are used for more
            than 10,000 clients.

    Returns:
        The means by name; NaN where a metric is NaN, such as for a single client.

    Raises:
        ValueError: If an argument is invalid, or ``groups`` is missing.

    Examples:
        >>> floors = expected(["client_dissimilarity"], 0.83, np.full((100, 1), 100))
        >>> round(floors["client_dissimilarity"], 3)  # 1.128 standard deviations of 0.0376
        0.042
    """
    checks.probability("accuracy", accuracy)
    checks.positive_int("draws", draws)
    counts = np.asarray(examples)
    if counts.ndim != 2 or not counts.size or counts.dtype.kind not in "iu" or counts.min() < 0:
        raise ValueError(
            f"examples: expected integers >= 0 of shape [clients, classes], got {counts.dtype} of "
            f"shape {counts.shape}; count each client's test examples by class."
        )
    for name in names:
        checks.one_of("name", name.removesuffix("_class_based"), OF_SPREAD)
        if name.startswith("group_") and groups is None:
            raise ValueError(
                f"groups=None: expected a group of each client, for {name!r}; pass groups, or omit "
                "the names of group metrics."
            )
    draws = max(1, min(draws, _MAX_BINOMIALS // len(counts)))
    group_ids = np.zeros(len(counts)) if groups is None else groups
    means = {}
    for class_based in (False, True):
        selected = [name for name in names if name.endswith("_class_based") == class_based]
        if selected:
            rng = np.random.default_rng(0)  # A metric has the same value whatever else is asked.
            metrics = tuple(name.removesuffix("_class_based") for name in selected)
            accuracies = _simulate(rng, accuracy, counts.sum(axis=int(not class_based)), draws)
            arrays = counts.astype(np.int32), group_ids.astype(np.int32)
            values = _averages(metrics, class_based, accuracies, *arrays)
            means |= dict(zip(selected, map(float, values), strict=True))
    return {name: means[name] for name in names}


def _simulate(
    rng: np.random.Generator, accuracy: float, sizes: np.ndarray, draws: int
) -> np.ndarray:
    """Samples measured accuracies, ``[draws, sizes]``; NaN without examples."""
    correct = rng.binomial(sizes, accuracy, (draws, len(sizes)))
    shares = np.full(correct.shape, np.nan, np.float32)
    return np.divide(correct, sizes, out=shares, where=sizes > 0, casting="same_kind")


@partial(brief_jit, static_argnums=(0, 1))
def _averages(
    names: tuple[str, ...],
    class_based: bool,
    accuracies: Float[Array, "draws _"],
    examples: Int[Array, "clients classes"],
    groups: Int[Array, " clients"],
) -> list[Float[Array, ""]]:
    """Averages metrics over simulated accuracies of clients or of classes."""
    sizes = jnp.sum(examples, axis=1)
    if class_based:
        accuracies = jax.vmap(class_based_accuracy, (0, None))(accuracies, examples)
    values = jax.vmap(lambda accuracy: accuracy_summaries(names, accuracy, sizes, groups))(
        accuracies
    )
    return [jnp.mean(value) for value in values]
