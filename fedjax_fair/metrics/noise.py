r"""What measures of unfairness show where there is none: the noise of finite test sets.

Clients that are all served alike, each example right with the same probability :math:`p`, still
differ in their measured accuracies, of which client :math:`k`'s is a binomial share of its
:math:`n_k` test examples. A measured spread that is not above what this produces shows nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedjax_fair import checks
from fedjax_fair.base import ClientMetrics
from fedjax_fair.metrics.class_based import class_based_accuracy
from fedjax_fair.metrics.summaries import GROUP_SUMMARIES, SUMMARIES

__all__ = ["OF_SPREAD", "expected"]

OF_SPREAD = (
    "accuracy_minimum",
    "accuracy_worst_10pct",
    "accuracy_best_10pct",
    "accuracy_standard_deviation",
    "sigma_acc",
    "client_dissimilarity",
    "accuracy_gini",
    "accuracy_jain_index",
    "accuracy_entropy",
    "group_accuracy_minimum",
    "group_accuracy_gap",
    "group_sigma_acc",
)
"""Summaries that depend on how accuracies differ between clients."""

_FUNCTIONS = {metric.name: metric.function for metric in SUMMARIES + GROUP_SUMMARIES}
_BINOMIALS = 2_000_000  # Drawn at most, which takes a moment.


def expected(
    names: Sequence[str],
    accuracy: float,
    examples: Int[np.ndarray, "clients classes"],
    groups: Int[np.ndarray, " clients"] | None = None,
    draws: int = 200,
) -> dict[str, float]:
    """What summaries are on average where every client is served alike.

    Args:
        names: Of ``OF_SPREAD``; with ``_class_based`` behind for what `results.class_based` makes of them.
        accuracy: That of all clients, in ``[0, 1]``.
        examples: Test examples of every client and class.
        groups: Planted group of each client, which summaries of groups need.
        draws: Test sets to average over, fewer where clients are very many; always the same.

    Returns:
        The means by name; nothing where there are no names.

    Raises:
        ValueError: If a name is none of these, or ``accuracy`` is no probability.

    Examples:
        >>> floors = expected(["client_dissimilarity"], 0.83, np.full((100, 1), 100))
        >>> round(floors["client_dissimilarity"], 3)  # 1.128 standard deviations of 0.0376
        0.042
    """
    checks.probability("accuracy", accuracy)
    for name in names:
        checks.one_of("name", name.removesuffix("_class_based"), OF_SPREAD)
    rng = np.random.default_rng(0)
    sizes = examples.sum(axis=1)
    draws = max(1, min(draws, _BINOMIALS // len(sizes)))
    known: Any = np.zeros(len(sizes), np.int32) if groups is None else groups.astype(np.int32)
    found = {}
    own = tuple(name for name in names if not name.endswith("_class_based"))
    if own:
        shares = _shares(rng, accuracy, sizes, draws)
        found |= dict(zip(own, _averages(own, shares, sizes.astype(np.int32), known), strict=True))
    mixed = tuple(name for name in names if name.endswith("_class_based"))
    if mixed:
        of_classes = _shares(rng, accuracy, examples.sum(axis=0), draws)
        arrays = of_classes, examples.astype(np.int32), known
        found |= dict(zip(mixed, _class_based_averages(mixed, *arrays), strict=True))
    return {name: float(found[name]) for name in names}


def _shares(rng: np.random.Generator, accuracy: float, sizes: np.ndarray, draws: int) -> np.ndarray:
    """Measured accuracies ``[draws, sizes]``; NaN without examples."""
    correct = rng.binomial(sizes, accuracy, (draws, len(sizes)))
    shares = np.full(correct.shape, np.nan, np.float32)
    return np.divide(correct, sizes, out=shares, where=sizes > 0, casting="same_kind")


@partial(jax.jit, static_argnums=0)
def _averages(
    names: tuple[str, ...],
    accuracy: Float[Array, "draws clients"],
    sizes: Int[Array, " clients"],
    groups: Int[Array, " clients"],
) -> list[Float[Array, ""]]:
    nothing, never = jnp.zeros(sizes.shape), jnp.zeros_like(sizes)

    def summarize(accuracy: Float[Array, " clients"]):
        measured = ClientMetrics(accuracy, nothing, nothing, sizes, sizes, never, never[:1], groups)
        return [_FUNCTIONS[name](measured) for name in names]

    return [jnp.mean(values) for values in jax.vmap(summarize)(accuracy)]


@partial(jax.jit, static_argnums=0)
def _class_based_averages(
    names: tuple[str, ...],
    class_accuracy: Float[Array, "draws classes"],
    examples: Int[Array, "clients classes"],
    groups: Int[Array, " clients"],
) -> list[Float[Array, ""]]:
    own = tuple(name.removesuffix("_class_based") for name in names)
    mixed = jax.vmap(class_based_accuracy, (0, None))(class_accuracy, examples)
    return _averages(own, mixed, jnp.sum(examples, axis=1), groups)
