"""Networks for regression and multi-label classification."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Shaped

from fedjax_fair.models.wrappers import Wrapper, functions_of
from fedjax_fair.roles import LABEL_UNIT, Model
from fedjax_fair.roles.model import apply_masked
from fedjax_fair.utils import checks

__all__ = ["as_multi_label", "as_regression"]

Outputs = Float[Array, "batch outputs"]
Targets = Shaped[Array, "batch ..."]
PerExample = Float[Array, " batch"]


def as_regression(
    model: Model, loss: Literal["squared", "absolute"] = "squared", standardize: Any = None
) -> Model:
    """Returns the same network for regression.

    Labels are floats, ``[total, outputs]``. Accuracies are NaN; use metrics of losses.

    Args:
        model: A network with as many outputs as targets.
        loss: Mean squared or mean absolute error of an example.
        standardize: Labels of training, ``[total, outputs]``, such as ``data.train.labels``. The
            network then predicts standardized labels, and the loss is that of them, so that
            learning rates do not depend on the unit. Outputs, predictions and metrics of errors
            are in the unit of the labels. None for neither.

    Returns:
        The model, without probabilities.

    Raises:
        ValueError: If ``loss`` is another string, or ``standardize`` no such array; while tracing,
            if outputs and targets differ in shape.

    Examples:
        >>> import numpy as np
        >>> import fedjax_fair as ff
        >>> x = np.random.default_rng(0).normal(size=(60, 3))
        >>> data = ff.data.from_arrays(x, x.sum(axis=1, keepdims=True), np.split(np.arange(60), 6))
        >>> method = ff.Round(
        ...     as_regression(ff.models.logistic(1)), ff.selectors.Uniform(3),
        ...     ff.solvers.SGD(0.1, 4, steps=5), ff.aggregators.Mean(),
        ... )
        >>> fitted = ff.fit(
        ...     method, data, rounds=20, metrics=[ff.metrics.predictions.mean_absolute_error()]
        ... )
        >>> bool((fitted.dataset.test_mean_absolute_error[0, -1] < 0.2).all())
        True
    """
    checks.one_of("loss", loss, ("squared", "absolute"))
    if standardize is not None:
        return _standardized(as_regression(model, loss), standardize)
    return model.replace(
        loss=squared_errors if loss == "squared" else absolute_errors,
        accuracy=no_accuracy,
        predict=as_targets,
        probabilities=None,
        task="regression",
        loss_unit=f"({LABEL_UNIT})^2" if loss == "squared" else LABEL_UNIT,
    )


def _standardized(model: Model, labels: Any) -> Model:
    labels = np.asarray(labels)
    if labels.ndim != 2 or not labels.size or labels.dtype.kind != "f":
        raise ValueError(
            f"standardize of {labels.dtype} and shape {labels.shape}: expected the labels of "
            "training, floats [total, outputs], such as data.train.labels."
        )
    values = labels.astype(np.float64)
    mean, scale = values.mean(axis=0), values.std(axis=0)
    scale = np.where(scale <= 1e-12 * np.abs(mean), 1.0, scale)  # Constant up to rounding.
    scale = np.where(scale == 0, 1.0, scale)
    settings: dict[str, Any] = functions_of(model)
    settings |= {"loss": _Scaled(model.loss, tuple(scale.tolist())), "loss_unit": "1"}
    return Rescaled(model, tuple(mean.tolist()), tuple(scale.tolist()), **settings)


class _Scaled(NamedTuple):
    """A loss of targets in units of their standard deviations."""

    loss: Any
    scale: tuple[float, ...]

    def __call__(self, outputs: Outputs, targets: Targets) -> PerExample:
        _check_shapes(outputs, targets)
        scale = jnp.array([self.scale], outputs.dtype)
        return self.loss(outputs / scale, targets / scale)


class Rescaled(Wrapper):
    """A network whose outputs are standardized labels, from `as_regression`.

    Args:
        model: The network.
        mean: Mean of the labels, for each output.
        scale: Standard deviation of the labels; 1 for constant ones.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def apply(self, params, state, x, *, train, key, example_mask=None):
        outputs, state = apply_masked(self.model.apply, params, state, x, train, key, example_mask)
        scale, mean = (jnp.array([each], outputs.dtype) for each in (self.scale, self.mean))
        if outputs.shape[1:] != scale.shape[1:]:
            raise ValueError(
                f"model with {outputs.shape[-1]} outputs: expected {scale.size}, one for each "
                "target of standardize; give the last layer as many outputs."
            )
        return outputs * scale + mean, state


def as_multi_label(model: Model) -> Model:
    """Returns the same network for multi-label classification.

    Labels are floats, 0 or 1, ``[total, outputs]``. The loss is `binary_cross_entropies`; the
    accuracy is the fraction of correct labels.

    Args:
        model: A network with an output for each label.

    Returns:
        The model. ``Model.predict`` returns booleans, and one probability for each label.

    Raises:
        ValueError: While tracing, if outputs and labels differ in shape.

    Examples:
        >>> import numpy as np
        >>> import fedjax_fair as ff
        >>> x = np.random.default_rng(0).normal(size=(60, 3))
        >>> data = ff.data.from_arrays(x, (x > 0).astype(float), np.split(np.arange(60), 6))
        >>> method = ff.Round(
        ...     as_multi_label(ff.models.logistic(3)), ff.selectors.Uniform(3),
        ...     ff.solvers.SGD(0.5, 4, steps=5), ff.aggregators.Mean(),
        ... )
        >>> fitted = ff.fit(method, data, rounds=20)
        >>> fitted.predict(np.array([[1.0, -1.0, 1.0]])).tolist()
        [[[True, False, True]]]
    """
    return model.replace(
        loss=binary_cross_entropies,
        accuracy=fraction_correct,
        predict=is_positive,
        probabilities=label_probabilities,
        task="multi_label",
    )


def squared_errors(outputs: Outputs, targets: Targets) -> PerExample:
    """Computes the mean squared error of each example."""
    _check_shapes(outputs, targets)
    return jnp.mean(jnp.square(outputs - targets), axis=-1)


def absolute_errors(outputs: Outputs, targets: Targets) -> PerExample:
    """Computes the mean absolute error of each example."""
    _check_shapes(outputs, targets)
    return jnp.mean(jnp.abs(outputs - targets), axis=-1)


def no_accuracy(outputs: Outputs, targets: Targets) -> PerExample:
    """Returns NaN for every example."""
    return jnp.full(outputs.shape[:1], jnp.nan, outputs.dtype)


def as_targets(outputs: Outputs) -> Outputs:
    """Returns the outputs themselves."""
    return outputs


def binary_cross_entropies(outputs: Outputs, labels: Targets) -> PerExample:
    """Computes the mean binary cross-entropy of each example's labels, in nats."""
    _check_shapes(outputs, labels)
    return jnp.mean(optax.sigmoid_binary_cross_entropy(outputs, labels), axis=-1)


def fraction_correct(outputs: Outputs, labels: Targets) -> PerExample:
    """Computes the fraction of correct labels of each example."""
    return jnp.mean(((outputs > 0) == (labels > 0.5)).astype(outputs.dtype), axis=-1)


def is_positive(outputs: Outputs) -> Bool[Array, "batch outputs"]:
    """Returns whether each output is above zero."""
    return outputs > 0


def label_probabilities(outputs: Outputs) -> Outputs:
    """Returns the probability of each label."""
    # `jax.nn.sigmoid` itself cannot be pickled.
    return jax.nn.sigmoid(outputs)


def _check_shapes(outputs: Outputs, targets: Targets) -> None:
    if outputs.shape != targets.shape:
        raise ValueError(
            f"model with outputs {list(outputs.shape[1:])}: expected the labels' shape, "
            f"{list(targets.shape[1:])}; give the last layer as many outputs as an example has "
            "targets."
        )
