r"""Accuracies of clients computed from accuracies of classes, where clients differ only in labels.

The expected accuracy of a client with label shares :math:`\pi_c` is :math:`\sum_c \pi_c a_c`, where
:math:`a_c` is the accuracy on all test examples of class :math:`c`. The measured accuracy has the
same mean but much more binomial noise, which inflates measures of spread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.metrics.summaries import accuracy_summaries
from fedjax_fair.numerics.products import product
from fedjax_fair.utils.xla_options import brief_jit

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["class_based_accuracy", "standard_error", "summarize"]

_SUMMARIES = (
    "accuracy_mean_clients",
    "accuracy_worst_10pct",
    "accuracy_standard_deviation",
    "sigma_acc",
    "client_dissimilarity",
)


# Computed after a run from the accuracies per class: recording them per client would add a fifth to
# the largest part of the results.
def class_based_accuracy(
    class_accuracy: Float[Array, " classes"], examples: Int[Array, "clients classes"]
) -> Float[Array, " clients"]:
    """Computes the expected accuracy of every client.

    Args:
        class_accuracy: Accuracy on all examples of each class; NaN for a class without examples.
        examples: Test examples of every client and class.

    Returns:
        Means over the labels of each client; NaN for a client without test examples.

    Examples:
        >>> examples = jnp.array([[3, 1], [0, 2], [0, 0]])
        >>> class_based_accuracy(jnp.array([1.0, 0.5]), examples).tolist()
        [0.875, 0.5, nan]
    """
    known = jnp.where(jnp.isnan(class_accuracy), 0.0, class_accuracy)
    totals = jnp.sum(examples, axis=1)
    shares = examples.astype(known.dtype) / jnp.maximum(totals, 1).astype(known.dtype)[:, None]
    return jnp.where(totals > 0, product(shares, known), jnp.nan)


def standard_error(
    summary: Callable[[Float[Array, " clients"]], Float[Array, "..."]],
    class_accuracy: Float[Array, " classes"],
    examples: Int[Array, "clients classes"],
) -> Float[Array, "..."]:
    """Computes the standard error of a function of class-based accuracies by the delta method.

    It is ``sqrt(sum_c (d summary / d a_c)^2 a_c (1 - a_c) / (n_c - 1))``.

    Args:
        summary: Function of the result of `class_based_accuracy`.
        class_accuracy: As for it.
        examples: As for it.

    Returns:
        Standard errors, shaped like the summary; NaN where it is NaN or has no derivative, such as
        a standard deviation of 0. A class with a single example contributes 0.

    Examples:
        >>> examples = jnp.array([[3, 0], [0, 101]])
        >>> standard_error(lambda values: values[1], jnp.array([1.0, 0.5]), examples).item()
        0.05000000074505806
    """
    known = jnp.where(jnp.isnan(class_accuracy), 0.0, class_accuracy)
    others = jnp.maximum(jnp.sum(examples, axis=0) - 1, 1).astype(known.dtype)

    def value(accuracy: Array) -> Array:
        return summary(class_based_accuracy(accuracy, examples))

    errors = jnp.sqrt(product(jax.jacobian(value)(known) ** 2, known * (1 - known) / others))
    return jnp.where(jnp.isnan(value(known)), jnp.nan, errors)


def summarize(
    class_accuracy: xr.DataArray, examples: xr.DataArray
) -> dict[str, tuple[xr.DataArray, xr.DataArray]]:
    """Computes class-based accuracies and their summaries for every run and evaluation.

    Args:
        class_accuracy: With dimension ``class`` and any others; NaN for all classes where nothing
            is evaluated.
        examples: With dimensions ``client`` and ``class``, and any of the others.

    Returns:
        Values and standard errors, by their names in `fedjax_fair.results.class_based`; NaN where
        nothing is evaluated.
    """
    import xarray as xr

    with jax.numpy_rank_promotion("allow"):  # xarray aligns dimensions by name.
        values, errors, summaries, summary_errors = xr.apply_ufunc(
            lambda *arrays: jax.device_get(_measure(*arrays)),
            class_accuracy.astype("float32"),
            examples.astype("int32"),
            input_core_dims=[["class"], ["client", "class"]],
            output_core_dims=[["client"], ["client"], ["summary"], ["summary"]],
        )
    measured = {"test_accuracy_class_based": (values, errors)}
    for index, name in enumerate(_SUMMARIES):
        measured[f"{name}_class_based"] = (summaries[..., index], summary_errors[..., index])
    is_evaluated = class_accuracy.notnull().any("class")
    return {
        name: (values.where(is_evaluated), errors.where(is_evaluated))
        for name, (values, errors) in measured.items()
    }


@brief_jit
@partial(jnp.vectorize, signature="(c),(k,c)->(k),(k),(s),(s)")
def _measure(class_accuracy: Array, examples: Array):
    """Returns accuracies, their errors, summaries, and their errors."""
    sizes = jnp.sum(examples, axis=1)
    values = class_based_accuracy(class_accuracy, examples)

    def error(summary: Callable[[Array], Array]) -> Array:
        return standard_error(summary, class_accuracy, examples)

    # Separately, because one summary without a derivative makes derivatives of all of them NaN.
    summary_errors = [
        error(lambda values, name=name: accuracy_summaries([name], values, sizes)[0])
        for name in _SUMMARIES
    ]
    summaries = accuracy_summaries(_SUMMARIES, values, sizes)
    return values, error(lambda values: values), jnp.stack(summaries), jnp.stack(summary_errors)
