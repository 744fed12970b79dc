"""Metrics of a model's predictions for the examples of each client, computed on request.

They are arguments of ``fit``, as in ``fit(..., metrics=[metrics.predictions.macro_f1(10)])``.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.roles import LABEL_UNIT, ClientMetric, Predictions
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Tree

__all__ = [
    "auc",
    "balanced_accuracy",
    "bias",
    "calibration_error",
    "label_accuracy",
    "label_f1",
    "macro_f1",
    "mean_absolute_error",
    "mean_squared_error",
    "perplexity",
    "r2",
    "root_mean_squared_error",
    "worst_class_recall",
]


def worst_class_recall(num_classes: int) -> ClientMetric:
    """Creates the metric of the lowest recall among the classes of a client's examples.

    Use: classes that are not recognized. Limitation: mostly noise with few examples of a class.

    Returns:
        The metric ``worst_class_recall``, in ``[0, 1]``; NaN for a client without examples of these
        classes.

    Examples:
        >>> worst_class_recall(10).description
        'Recall of the worst class'
    """
    return _sized("worst_class_recall", "Recall of the worst class", _worst_recall, num_classes)


def balanced_accuracy(num_classes: int) -> ClientMetric:
    """Creates the metric of the recall, averaged over the classes of a client's examples.

    All classes count equally, unlike in the accuracy, by which another group can be the worst.

    Returns:
        The metric ``balanced_accuracy``, in ``[0, 1]``.

    Examples:
        >>> balanced_accuracy(10).description
        'Recall, mean over classes'
    """
    about = "Recall, mean over classes"
    return _sized("balanced_accuracy", about, _balanced_accuracy, num_classes)


def macro_f1(num_classes: int) -> ClientMetric:
    """Creates the metric of the F1 score, averaged over the labels and predictions of a client.

    All classes count equally.

    Returns:
        The metric ``macro_f1``, in ``[0, 1]``.

    Examples:
        >>> macro_f1(10).name
        'macro_f1'
    """
    return _sized("macro_f1", "F1 score, mean over classes", _macro_f1, num_classes)


def calibration_error(bins: int = 15) -> ClientMetric:
    """Creates the metric of the expected calibration error.

    With bins ``B`` of equal width it is ``sum_B |B| / n * |accuracy(B) - confidence(B)|``, where
    the confidence is the largest probability. It is biased upwards for clients with few examples.

    Returns:
        The metric ``calibration_error``, in ``[0, 1]``, for models with class probabilities.

    References:
        Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017,
        https://arxiv.org/abs/1706.04599

    Examples:
        >>> calibration_error().description
        'Expected calibration error, 15 bins'
    """
    about = f"Expected calibration error, {bins} bins"
    return _sized("calibration_error", about, _calibration_error, bins).replace(better="lower")


def auc(num_classes: int) -> ClientMetric:
    """Creates the metric of the area under the ROC curve, one class against the rest.

    Ties count half. The mean is over classes for which a client has positive and negative examples;
    with two classes it is the usual area. Scores of different personalized models are not compared.

    Args:
        num_classes: Number of classes, at most the number of the model's outputs.

    Returns:
        The metric ``auc``, in ``[0, 1]``; NaN for a client with examples of a single class, or with
        a probability of NaN.

    References:
        Hand, Till, "A Simple Generalisation of the Area Under the ROC Curve for Multiple Class
        Classification Problems", Machine Learning 45, 2001,
        https://doi.org/10.1023/A:1010920819831 (one class against the rest: Provost, Domingos,
        2001).

    Examples:
        >>> auc(10).unit
        '1'
    """
    about = "Area under the ROC curve, mean over classes"
    return _sized("auc", about, _mean_area, num_classes).replace(ranks_examples=True)


def mean_squared_error() -> ClientMetric:
    """Creates the metric of the mean squared error over a client's examples and outputs.

    For classes, the error is the difference of the indices of the predicted class and the label,
    as for `mean_absolute_error`.

    Examples:
        >>> mean_squared_error().name
        'mean_squared_error'
    """
    function, about, unit = _mean_squared_error, "Mean squared error", f"({LABEL_UNIT})^2"
    return ClientMetric("mean_squared_error", about, unit, function, "lower", "MSE", scale="ratio")


def root_mean_squared_error() -> ClientMetric:
    """Creates the metric of the square root of `mean_squared_error`.

    Examples:
        >>> root_mean_squared_error().heading
        'RMSE'
    """
    function, about = _root_mean_squared_error, "Root mean squared error"
    return ClientMetric(
        "root_mean_squared_error", about, LABEL_UNIT, function, "lower", "RMSE", scale="ratio"
    )


def r2() -> ClientMetric:
    """Creates the metric of the coefficient of determination, ``1 - sum e^2 / sum (y - mean)^2``.

    The mean is over the targets ``y`` of the same examples: 0 is as good as predicting it. Several
    targets count equally. A client whose targets are all equal, such as one example, has NaN.

    Examples:
        >>> r2().better
        'higher'
    """
    return ClientMetric("r2", "Coefficient of determination R^2", "1", _r2, heading="R2")


def label_f1() -> ClientMetric:
    """Creates the metric of the F1 score of each of several labels, mean over labels.

    A label that a client's examples neither have nor are predicted to have does not count. Models
    are those of `models.as_multi_label`.

    Examples:
        >>> label_f1().heading
        'F1'
    """
    about = "F1 score, mean over labels"
    return ClientMetric("label_f1", about, "1", _label_f1, heading="F1", scale="ratio")


def label_accuracy() -> ClientMetric:
    """Creates the metric of the fraction of correct labels, of several labels of each example.

    Examples:
        >>> label_accuracy().name
        'label_accuracy'
    """
    function, about = _label_accuracy, "Fraction of correct labels"
    return ClientMetric(
        "label_accuracy", about, "1", function, heading="accuracy of labels", scale="ratio"
    )


def mean_absolute_error() -> ClientMetric:
    """Creates the metric of the mean absolute error over a client's examples and outputs.

    For classes, the error is the number of classes between the predicted one and the label, which
    takes classes as ordered and equally far apart. `from_table` orders them by an ordered
    ``pandas.Categorical``. The predicted class is from ``Model.predict``, usually the most
    probable one.

    References:
        Baccianella, Esuli, Sebastiani, "Evaluation Measures for Ordinal Regression", ISDA 2009,
        https://doi.org/10.1109/ISDA.2009.230

    Examples:
        >>> mean_absolute_error().name
        'mean_absolute_error'
    """
    function, about = _mean_absolute_error, "Mean absolute error"
    return ClientMetric(
        "mean_absolute_error", about, LABEL_UNIT, function, "lower", "MAE", scale="ratio"
    )


def bias() -> ClientMetric:
    """Creates the metric of the mean signed error, predictions less labels, over all outputs.

    Use: clients for which a model predicts too much or too little. Limitation: errors of both
    signs cancel. Its `worst_10pct` is the mean of the largest absolute values, and its spread and
    parity difference compare signed values.

    Examples:
        >>> bias().better
        'zero'
    """
    return ClientMetric("bias", "Mean signed error", LABEL_UNIT, _bias, "zero")


def perplexity() -> ClientMetric:
    """Creates the metric of the exponential of the mean loss over a client's labels.

    For text, the number of equally likely characters that the model hesitates between.

    Returns:
        The metric ``perplexity``, at least 1 for cross-entropies.

    Examples:
        >>> perplexity().name
        'perplexity'
    """
    return ClientMetric("perplexity", "Perplexity", "1", _perplexity, "lower", scale="ratio")


class _SizedFunction(Tree):
    """Function of predictions and a size, comparable so that equal metrics share a compilation."""

    function: Callable[[Predictions, int], Array]
    size: int

    def __post_init__(self):
        name = "bins" if self.function is _calibration_error else "num_classes"
        checks.positive_int(name, self.size)

    def __call__(self, predictions: Predictions) -> Float[Array, " clients"]:
        return self.function(predictions, self.size)


def _sized(name: str, description: str, function: Callable[..., Array], size: int) -> ClientMetric:
    return ClientMetric(name, description, "1", _SizedFunction(function, size), scale="ratio")


def _recalls(predictions: Predictions, num_classes: int) -> Float[Array, "clients classes"]:
    """Returns the recall of each class; NaN for a class without examples."""
    right = predictions.predicted == predictions.labels
    recognized = _by_class(predictions, predictions.labels, right, num_classes)
    present = _by_class(predictions, predictions.labels, jnp.ones_like(right), num_classes)
    return jnp.where(present > 0, recognized / present, jnp.nan)


def _worst_recall(predictions: Predictions, num_classes: int) -> Array:
    return jnp.nanmin(_recalls(predictions, num_classes), axis=1)


def _balanced_accuracy(predictions: Predictions, num_classes: int) -> Array:
    return jnp.nanmean(_recalls(predictions, num_classes), axis=1)


def _macro_f1(predictions: Predictions, num_classes: int) -> Array:
    labels, predicted = predictions.labels, predictions.predicted
    ones = jnp.ones(labels.shape, bool)
    right = _by_class(predictions, labels, predicted == labels, num_classes)
    both = _by_class(predictions, labels, ones, num_classes)
    both = both + _by_class(predictions, predicted, ones, num_classes)
    f1 = jnp.where(both > 0, 2 * right / jnp.maximum(both, 1), 0)
    return jnp.sum(f1, axis=1) / jnp.sum(both > 0, axis=1).astype(f1.dtype)


def _calibration_error(predictions: Predictions, bins: int) -> Array:
    confidence = jnp.max(predictions.probabilities, axis=-1)
    right = (predictions.predicted == predictions.labels).astype(confidence.dtype)
    # Bins are open below and closed above, as in the paper.
    bin_ids = jnp.clip(jnp.ceil(confidence * bins).astype(jnp.int32) - 1, 0, bins - 1)
    gaps = _by_class(predictions, bin_ids, right - confidence, bins)
    return jnp.sum(jnp.abs(gaps), axis=1) / predictions.sum(jnp.ones_like(confidence))


# AUC needs all examples of a client together. Padding clients to the largest would be expensive, so
# it is computed from sums over segments.
def _mean_area(predictions: Predictions, num_classes: int) -> Array:
    scores = predictions.probabilities.T[:num_classes]
    if (num_outputs := scores.shape[0]) < num_classes:
        raise ValueError(
            f"{num_classes=}: expected at most {num_outputs}, the number of the model's outputs; "
            "lower num_classes, or use a model with more outputs."
        )
    classes = jnp.arange(num_classes, dtype=predictions.labels.dtype)
    areas = jax.lax.map(
        lambda scored: _area(predictions, scored[1], predictions.labels == scored[0]),
        (classes, scores),
    )
    return jnp.nanmean(areas, axis=0)


def _mean_squared_error(predictions: Predictions) -> Array:
    return predictions.mean(_per_example(jnp.square(_errors(predictions))))


def _root_mean_squared_error(predictions: Predictions) -> Array:
    return jnp.sqrt(_mean_squared_error(predictions))


def _r2(predictions: Predictions) -> Array:
    labels = predictions.labels.reshape(len(predictions.labels), -1).astype(jnp.float32)
    errors = _errors(predictions).reshape(labels.shape)
    ones = jnp.ones(len(labels))

    def of_target(target):
        targets, error = target
        means = predictions.sum(targets) / predictions.sum(ones)
        # Centered first, because differences of large sums lose digits.
        owners = jnp.minimum(predictions.owners, predictions.num_clients - 1)
        total = predictions.sum(jnp.square(targets - means[owners]))
        residual = predictions.sum(jnp.square(error))
        return jnp.where(total > 0, 1 - residual / jnp.where(total > 0, total, 1), jnp.nan)

    return jnp.nanmean(jax.lax.map(of_target, (labels.T, errors.T)), axis=0)


def _label_f1(predictions: Predictions) -> Array:
    def of_label(label):
        is_true, is_predicted = label
        right = predictions.sum((is_true & is_predicted).astype(jnp.float32))
        both = predictions.sum(is_true.astype(jnp.float32) + is_predicted.astype(jnp.float32))
        return jnp.where(both > 0, 2 * right / jnp.maximum(both, 1), jnp.nan)

    is_true, is_predicted = predictions.labels > 0.5, predictions.predicted.astype(bool)
    return jnp.nanmean(jax.lax.map(of_label, (is_true.T, is_predicted.T)), axis=0)


def _label_accuracy(predictions: Predictions) -> Array:
    is_right = predictions.predicted.astype(bool) == (predictions.labels > 0.5)
    return predictions.mean(_per_example(is_right.astype(jnp.float32)))


def _mean_absolute_error(predictions: Predictions) -> Array:
    return predictions.mean(_per_example(jnp.abs(_errors(predictions))))


def _bias(predictions: Predictions) -> Array:
    return predictions.mean(_per_example(_errors(predictions)))


def _errors(predictions: Predictions) -> Float[Array, "examples ..."]:
    """Returns outputs less targets, or for classes, predicted minus true index."""
    if jnp.issubdtype(predictions.labels.dtype, jnp.integer):
        predicted = predictions.predicted.astype(jnp.int32)
        return (predicted - predictions.labels.astype(jnp.int32)).astype(jnp.float32)
    return predictions.outputs - predictions.labels


def _perplexity(predictions: Predictions) -> Array:
    losses = predictions.model.loss(predictions.outputs, predictions.labels)
    return jnp.exp(predictions.mean(losses))


def _per_example(errors: Float[Array, "examples ..."]) -> Float[Array, " examples"]:
    return jnp.mean(errors.reshape(errors.shape[0], -1), axis=1)


def _by_class(
    predictions: Predictions,
    classes: Int[Array, " examples"],
    values: Float[Array, " examples"] | Bool[Array, " examples"],
    num_classes: int,
) -> Float[Array, "clients classes"]:
    """Sums values over the examples of each client and class."""
    cells = predictions.num_clients * num_classes
    # Examples without an owner or of an uncounted class are dropped, in a cell beyond the last.
    owners, classes = predictions.owners, classes.astype(jnp.int32)
    counted = (owners < predictions.num_clients) & (classes < num_classes)
    cell = jnp.where(counted, owners * num_classes + classes, cells)
    sums = jax.ops.segment_sum(values.astype(jnp.float32), cell, cells)
    return sums.reshape(-1, num_classes)


def _area(
    predictions: Predictions, score: Float[Array, " examples"], positive: Bool[Array, " examples"]
) -> Float[Array, " clients"]:
    """Computes each client's area under the ROC curve from ranks; NaN without both labels."""
    num_clients, total = predictions.num_clients, score.shape[0]
    order = jnp.lexsort((score, predictions.owners))
    owners, score, positive = predictions.owners[order], score[order], positive[order]
    negative = (~positive).astype(jnp.int32)
    before = jnp.cumsum(negative) - negative
    changes = (jnp.diff(owners) != 0) | (jnp.diff(score) != 0)
    tie = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(changes, dtype=jnp.int32)])[:total]
    tied = jax.ops.segment_sum(negative, tie, total)[tie]
    lower = jax.ops.segment_min(before, tie, total)[tie]
    lower -= jax.ops.segment_min(before, owners, num_clients)[owners]
    wins = jnp.where(positive, lower.astype(score.dtype) + tied.astype(score.dtype) / 2, 0)

    def sums(values):
        return jax.ops.segment_sum(values.astype(score.dtype), owners, num_clients)

    pairs = sums(positive) * sums(negative)
    is_defined = (pairs > 0) & (sums(jnp.isnan(score)) == 0)
    return jnp.where(is_defined, sums(wins) / pairs, jnp.nan)
