"""Metrics of what a model predicts for the examples of each client.

They are measured on request alone: ``fit(..., metrics=[metrics.predictions.macro_f1(10)])``.
Each is a `ClientMetric`, whose function sees the outputs for all examples at once and returns a
number for each client; `Predictions.mean` makes one of any number per example.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair import checks
from fedjax_fair.base import ClientMetric, Predictions
from fedjax_fair.tree import Tree

__all__ = [
    "auc",
    "calibration_error",
    "macro_f1",
    "mean_absolute_error",
    "mean_squared_error",
    "worst_class_recall",
]


def worst_class_recall(num_classes: int) -> ClientMetric:
    """Recall of the class that is recognized worst, of those that a client has examples of.

    Shows a client whose accuracy hides that one of its classes is missed; with few examples of a
    class it is mostly noise.

    Args:
        num_classes: Number of classes.

    Returns:
        The metric ``worst_class_recall``, in ``[0, 1]``.

    Raises:
        ValueError: If ``num_classes`` is not a positive integer.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> method = ff.Round(
        ...     ff.models.logistic(10), ff.selectors.Uniform(10), ff.solvers.SGD(0.1, 10, steps=5),
        ...     ff.aggregators.Mean(),
        ... )
        >>> run = ff.fit(method, data, rounds=2, metrics=[worst_class_recall(10)])
        >>> bool((run.test_worst_class_recall <= run.test_accuracy).all())
        True
    """
    return ClientMetric(
        "worst_class_recall", "Recall of the worst class", "1", WorstClassRecall(num_classes)
    )


def macro_f1(num_classes: int) -> ClientMetric:
    """F1 scores of classes, averaged over those that a client has or is predicted to have.

    Every class counts the same, however many examples it has.

    Args:
        num_classes: Number of classes.

    Returns:
        The metric ``macro_f1``, in ``[0, 1]``.

    Raises:
        ValueError: If ``num_classes`` is not a positive integer.

    Examples:
        >>> macro_f1(10).name
        'macro_f1'
    """
    return ClientMetric("macro_f1", "F1 score, mean over classes", "1", MacroF1(num_classes))


def calibration_error(bins: int = 15) -> ClientMetric:
    """Expected calibration error: how far confidence is from accuracy, over bins of confidence.

    With bins ``B`` of equal width, ``sum_B |B| / n * |accuracy(B) - confidence(B)|``, where the
    confidence is the largest probability. It has a bias upwards for clients with few examples.

    Args:
        bins: Number of bins.

    Returns:
        The metric ``calibration_error``, in ``[0, 1]``, for models with probabilities of classes.

    Raises:
        ValueError: If ``bins`` is not a positive integer.

    References:
        Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017,
        https://arxiv.org/abs/1706.04599

    Examples:
        >>> calibration_error().description
        'Expected calibration error, 15 bins'
    """
    described = f"Expected calibration error, {bins} bins"
    return ClientMetric("calibration_error", described, "1", CalibrationError(bins))


def auc(num_classes: int) -> ClientMetric:
    """Area under the ROC curve of each class against the others, mean over classes.

    The probability that an example of the class gets a higher probability of it than one of another
    class; ties count half. Only classes count of which a client has examples and others. With two
    classes it is the usual area.

    Args:
        num_classes: Number of classes.

    Returns:
        The metric ``auc``, in ``[0, 1]``; NaN for a client with examples of a single class.

    Raises:
        ValueError: If ``num_classes`` is not a positive integer.

    References:
        Hand, Till, "A Simple Generalisation of the Area Under the ROC Curve for Multiple Class
        Classification Problems", Machine Learning 45, 2001,
        https://doi.org/10.1023/A:1010920819831 (one class against the others: Provost, Domingos,
        2001).

    Examples:
        >>> auc(10).unit
        '1'
    """
    described = "Area under the ROC curve, mean over classes"
    return ClientMetric("auc", described, "1", AUC(num_classes))


def mean_squared_error() -> ClientMetric:
    """Mean squared error of a regression, over a client's examples and outputs.

    Returns:
        The metric ``mean_squared_error``, at least 0, in the squared unit of targets.

    Examples:
        >>> mean_squared_error().name
        'mean_squared_error'
    """
    return ClientMetric(
        "mean_squared_error",
        "Mean squared error",
        "1",
        _mean_squared_error,
    )


def mean_absolute_error() -> ClientMetric:
    """Mean absolute error of a regression, over a client's examples and outputs.

    Returns:
        The metric ``mean_absolute_error``, at least 0, in the unit of targets.

    Examples:
        >>> mean_absolute_error().name
        'mean_absolute_error'
    """
    return ClientMetric(
        "mean_absolute_error",
        "Mean absolute error",
        "1",
        _mean_absolute_error,
    )


class WorstClassRecall(Tree):
    """Function of `worst_class_recall`."""

    num_classes: int

    def __post_init__(self):
        checks.positive_int("num_classes", self.num_classes)

    def __call__(self, predictions: Predictions) -> Float[Array, " clients"]:
        right = predictions.predicted == predictions.labels
        found = _by_class(predictions, predictions.labels, right, self.num_classes)
        present = _by_class(predictions, predictions.labels, jnp.ones_like(right), self.num_classes)
        recall = jnp.where(present > 0, found / present, jnp.inf)
        return jnp.min(recall, axis=1)


class MacroF1(Tree):
    """Function of `macro_f1`."""

    num_classes: int

    def __post_init__(self):
        checks.positive_int("num_classes", self.num_classes)

    def __call__(self, predictions: Predictions) -> Float[Array, " clients"]:
        labels, predicted = predictions.labels, predictions.predicted
        each = jnp.ones(labels.shape, bool)
        right = _by_class(predictions, labels, predicted == labels, self.num_classes)
        both = _by_class(predictions, labels, each, self.num_classes)
        both = both + _by_class(predictions, predicted, each, self.num_classes)
        f1 = jnp.where(both > 0, 2 * right / jnp.maximum(both, 1), 0)
        return jnp.sum(f1, axis=1) / jnp.sum(both > 0, axis=1).astype(f1.dtype)


class CalibrationError(Tree):
    """Function of `calibration_error`."""

    bins: int

    def __post_init__(self):
        checks.positive_int("bins", self.bins)

    def __call__(self, predictions: Predictions) -> Float[Array, " clients"]:
        confidence = jnp.max(predictions.probabilities, axis=-1)
        right = (predictions.predicted == predictions.labels).astype(confidence.dtype)
        # Bins are open below and closed above, as in the paper.
        place = jnp.ceil(confidence * self.bins).astype(jnp.int32) - 1
        place = jnp.clip(place, 0, self.bins - 1)
        gaps = _by_class(predictions, place, right - confidence, self.bins)
        return jnp.sum(jnp.abs(gaps), axis=1) / predictions.sum(jnp.ones_like(confidence))


class AUC(Tree):
    """Function of `auc`."""

    num_classes: int

    def __post_init__(self):
        checks.positive_int("num_classes", self.num_classes)

    def __call__(self, predictions: Predictions) -> Float[Array, " clients"]:
        classes = jnp.arange(self.num_classes, dtype=predictions.labels.dtype)
        areas = jax.lax.map(
            lambda own: _area(predictions, own[1], predictions.labels == own[0]),
            (classes, predictions.probabilities.T[: self.num_classes]),
        )
        return jnp.nanmean(areas, axis=0)


def _mean_squared_error(predictions: Predictions) -> Float[Array, " clients"]:
    errors = jnp.square(predictions.outputs - predictions.labels)
    return predictions.mean(_of_each(errors))


def _mean_absolute_error(predictions: Predictions) -> Float[Array, " clients"]:
    errors = jnp.abs(predictions.outputs - predictions.labels)
    return predictions.mean(_of_each(errors))


def _of_each(errors: Float[Array, "examples ..."]) -> Float[Array, " examples"]:
    return jnp.mean(errors.reshape(errors.shape[0], -1), axis=1)


def _by_class(
    predictions: Predictions,
    classes: Int[Array, " examples"],
    values: Float[Array, " examples"] | Bool[Array, " examples"],
    num_classes: int,
) -> Float[Array, "clients classes"]:
    """Sums over the examples of each client and class."""
    cells = predictions.num_clients * num_classes
    # What no client owns is in none of the cells, and neither is a class that is not counted.
    owners, classes = predictions.owners, classes.astype(jnp.int32)
    counted = (owners < predictions.num_clients) & (classes < num_classes)
    cell = jnp.where(counted, owners * num_classes + classes, cells)
    sums = jax.ops.segment_sum(values.astype(jnp.float32), cell, cells)
    return sums.reshape(-1, num_classes)


def _area(
    predictions: Predictions, score: Float[Array, " examples"], positive: Bool[Array, " examples"]
) -> Float[Array, " clients"]:
    """Area under the ROC curve of every client, by ranks; NaN without both kinds of examples."""
    num_clients, total = predictions.num_clients, score.shape[0]
    order = jnp.lexsort((score, predictions.owners))
    owners, score, positive = predictions.owners[order], score[order], positive[order]
    negative = (~positive).astype(jnp.int32)
    before = jnp.cumsum(negative) - negative
    changes = (jnp.diff(owners) != 0) | (jnp.diff(score) != 0)
    tie = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(changes, dtype=jnp.int32)])
    tied = jax.ops.segment_sum(negative, tie, total)[tie]
    lower = jax.ops.segment_min(before, tie, total)[tie]
    lower -= jax.ops.segment_min(before, owners, num_clients)[owners]
    wins = jnp.where(positive, lower.astype(score.dtype) + tied.astype(score.dtype) / 2, 0)

    def sums(values):
        return jax.ops.segment_sum(values.astype(score.dtype), owners, num_clients)

    pairs = sums(positive) * sums(negative)
    return jnp.where(pairs > 0, sums(wins) / pairs, jnp.nan)
