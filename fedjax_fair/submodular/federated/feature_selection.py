"""Feature selection: the mutual information of features and label under each client's model.

Mutual information of features and label is monotone, but submodular only where features are
independent given the label, so each client fits such a model to its own examples: naive Bayes with
smoothing. The mutual information under the model is monotone and submodular. Of many features it is
estimated from a sample of the model, which is neither exactly: on two features that say little the
estimate can fall, or gain more from the second than from the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from fedjax_fair import checks
from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.federated.custom import SampledProblem, tabulated
from fedjax_fair.submodular.federated.problem import Problem

__all__ = ["FeatureSelection", "feature_selection"]

# Up to so many configurations of all features are enumerated; of more a sample is drawn.
_MAX_CONFIGURATIONS = 2**12
_FEW_FEATURES = 10


class _Model(NamedTuple):
    """Examples of a client's model, with their probabilities.

    Attributes:
        prior: Logarithm of the probability of each label, ``[labels]``.
        likelihood: Logarithm of the probability of each example's feature given each label,
            ``[examples, features, labels]``.
        weights: Probability of each example, ``[examples]``.
    """

    prior: Float[Array, " labels"]
    likelihood: Float[Array, "examples features labels"]
    weights: Float[Array, " examples"]


def feature_selection(
    features: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    *,
    num_values: int = 2,
    smoothing: float = 1.0,
    samples: int = 100,
    num_examples: int = 2000,
    seed: int = 0,
) -> Problem:
    r"""``f_i(S) = I(X_S; Y)`` in nats under client *i*'s naive Bayes model.

    As :math:`H(Y) - E[H(Y \mid X_S)]`, exact over all configurations of the features up to 4,096;
    of more a fixed sample from the model is used, and guarantees for submodular functions hold only
    up to the errors of this estimate.

    Args:
        features: Each client's examples, ``[examples, features]``, integers in ``[0,
            num_values)``.
        labels: Their labels, ``[examples]``, integers from 0.
        num_values: Values that a feature can take.
        smoothing: Added to every count (Laplace), > 0.
        samples: Random sets by which the multilinear extension is estimated where there are more
            than 10 features.
        num_examples: Examples drawn from each model where they are not enumerated.
        seed: Seed of these draws.

    Raises:
        ValueError: If shapes differ, a value or label is out of range, or a number is not positive.

    References:
        Krause, Guestrin, *Near-optimal Nonmyopic Value of GradientSource in Graphical Models*, UAI
        2005

    Examples:
        >>> label, noise = np.tile([0, 1], 20), np.repeat([0, 1], 20)
        >>> problem = feature_selection([np.stack([label, noise], axis=1)], [label])
        >>> [f"{problem.value(jnp.array(mask)):.2f}" for mask in ([True, False], [False, True])]
        ['0.51', '0.00']
    """
    checks.positive_int("num_values", num_values)
    checks.positive("smoothing", smoothing)
    checks.positive_int("samples", samples)
    checks.positive_int("num_examples", num_examples)
    checks.non_negative_int("seed", seed)
    size, num_labels = _validated(features, labels, num_values)
    rng = np.random.default_rng(seed)
    models = []
    for own, classes in zip(features, labels, strict=True):
        prior, table = _fit(np.asarray(own), np.asarray(classes), num_values, num_labels, smoothing)
        models.append(_with_examples(rng, prior, table, num_examples))
    data = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves), jnp.float32), *models)
    problem = FeatureSelection(data, size, samples)
    return tabulated(problem) if size <= _FEW_FEATURES else problem


class FeatureSelection(SampledProblem):
    """Mutual information of many features; ``feature_selection`` makes it of examples."""

    name = "feature_selection"

    def value_of(self, own: PyTree, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        """Computes the mutual information of the features in a set and the label."""
        return _information_of(own, _joint(own, mask))

    def gains_of(self, own: PyTree, mask: Bool[Array, " size"]) -> Float[Array, " size"]:
        """Computes the gains of all features, which share the joint probabilities."""
        return _gains(own, mask)


def _joint(model: _Model, mask: Bool[Array, " features"]) -> Float[Array, "examples labels"]:
    """Logarithms of the joint probabilities of the features in a set and each label."""
    chosen = mask.astype(model.likelihood.dtype)
    return model.prior[None] + product(chosen, model.likelihood)


def _information_of(model: _Model, joint: Float[Array, "examples labels"]) -> Float[Array, ""]:
    """Mutual information from the logarithms of joint probabilities."""
    # Subtracted within the mean, so that it is exactly 0 without features.
    return product(model.weights, _entropy(model.prior) - jax.vmap(_entropy)(joint))


def _entropy(logits: Float[Array, " labels"]) -> Float[Array, ""]:
    normal = jax.nn.log_softmax(logits)
    return -product(jnp.exp(normal), normal)


def _gains(model: _Model, mask: Bool[Array, " features"]) -> Float[Array, " features"]:
    joint = _joint(model, mask)

    def gain(own, member):
        rest = joint - jnp.where(member, own, 0)
        return _information_of(model, rest + own) - _information_of(model, rest)

    return jax.lax.map(lambda pair: gain(*pair), (jnp.moveaxis(model.likelihood, 1, 0), mask))


def _fit(
    features: np.ndarray, labels: np.ndarray, num_values: int, num_labels: int, smoothing: float
) -> tuple[np.ndarray, np.ndarray]:
    """Smoothed probabilities of labels, and of each feature's values given the label."""
    is_label = labels[:, None] == np.arange(num_labels)
    is_value = features[:, :, None] == np.arange(num_values)
    prior = is_label.sum(axis=0) + smoothing
    counts = np.einsum("el,efv->fvl", is_label * 1.0, is_value * 1.0) + smoothing
    return prior / prior.sum(), counts / counts.sum(axis=1, keepdims=True)


def _with_examples(
    rng: np.random.Generator, prior: np.ndarray, table: np.ndarray, num_examples: int
) -> _Model:
    """The model with all configurations and their probabilities, or with a sample of them."""
    size, num_values, num_labels = table.shape
    every = np.arange(size)
    if num_values**size <= _MAX_CONFIGURATIONS:
        configurations = np.array(list(itertools.product(range(num_values), repeat=size)))
        logs = np.log(table)[every, configurations]
        weights = np.exp(logs.sum(axis=1) + np.log(prior)).sum(axis=1)
        return _Model(np.log(prior), logs, weights)  # pyright: ignore
    classes = rng.choice(num_labels, num_examples, p=prior)
    below = table.cumsum(axis=1)[:, :, classes]
    configurations = (rng.random((size, 1, num_examples)) > below[:, :-1]).sum(axis=1).T
    logs = np.log(table)[every, configurations]
    return _Model(np.log(prior), logs, np.full(num_examples, 1 / num_examples))  # pyright: ignore


def _validated(
    features: Sequence[np.ndarray], labels: Sequence[np.ndarray], num_values: int
) -> tuple[int, int]:
    if len(features) != len(labels) or not len(features):
        raise ValueError(
            f"features and labels: expected as many clients, got {len(features)} and {len(labels)}."
        )
    size = np.asarray(features[0]).shape[-1]
    for client, (own, classes) in enumerate(zip(features, labels, strict=True)):
        own, classes = np.asarray(own), np.asarray(classes)
        if own.ndim != 2 or own.shape != (classes.size, size) or classes.ndim != 1:
            raise ValueError(
                f"client {client}: expected features [examples, {size}] and labels [examples], "
                f"got {own.shape} and {classes.shape}."
            )
        _assert_whole(f"features[{client}]", own)
        _assert_whole(f"labels[{client}]", classes)
        if own.size and not 0 <= own.min() <= own.max() < num_values:
            raise ValueError(
                f"features[{client}]: expected numbers in [0, {num_values}), "
                f"got {own.min()} to {own.max()}."
            )
        if classes.size and classes.min() < 0:
            raise ValueError(f"labels[{client}]: expected numbers >= 0, got {classes.min()}.")
    return size, 1 + max(int(np.max(classes)) for classes in labels)


def _assert_whole(name: str, numbers: np.ndarray) -> None:
    broken = numbers[numbers != np.rint(numbers)]
    if broken.size:
        raise ValueError(f"{name}: expected integers, got {broken[0]}.")
