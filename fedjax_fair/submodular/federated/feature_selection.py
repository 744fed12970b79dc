"""Feature selection by mutual information of features and label under each client's model.

Mutual information is submodular if features are independent given the label, as in the clients'
models, smoothed naive Bayes. An estimate for many features is so only up to its errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.checked_arrays import as_host
from fedjax_fair.submodular.federated.custom import (
    MAX_ENUMERATED_ITEMS,
    SampledProblem,
    tabulate,
)
from fedjax_fair.submodular.federated.problem import Problem
from fedjax_fair.submodular.federated.sparse_scores import check_integers
from fedjax_fair.utils import checks

__all__ = ["FeatureSelection", "feature_selection"]

# If all features have more configurations than this, a sample replaces their enumeration.
_MAX_CONFIGURATIONS = 2**12
# Probabilities are tabulated for all values and labels.
_MAX_VALUES = 2**16


class _Model(NamedTuple):
    """Examples of a client's model, with their probabilities.

    Attributes:
        prior: Log probability of each label, ``[labels]``.
        likelihood: Log probability of features given labels, ``[examples, features, labels]``.
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
    r"""Creates the problem of ``f_i(S) = I(X_S; Y)``, in nats, under *i*'s naive Bayes model.

    :math:`H(Y) - E[H(Y \mid X_S)]` is exact for at most 4,096 configurations of the features, and
    otherwise estimated from a fixed sample.

    Args:
        features: Each client's examples, ``[examples, features]``, integers in ``[0,
            num_values)``.
        labels: Each client's labels, ``[examples]``, integers from 0.
        num_values: Number of values of a feature.
        smoothing: Added to every count (Laplace), > 0.
        samples: Random sets for estimating the multilinear extension of more than 10 features.
        num_examples: Examples sampled from each model.
        seed: Seed of these samples.

    References:
        Krause, Guestrin, *Near-optimal Nonmyopic Value of Information in Graphical Models*, UAI
        2005

    Examples:
        >>> label, noise = np.tile([0, 1], 20), np.repeat([0, 1], 20)
        >>> problem = feature_selection([np.stack([label, noise], axis=1)], [label])
        >>> [f"{problem.value(jnp.array(mask)):.2f}" for mask in ([True, False], [False, True])]
        ['0.51', '0.00']
    """
    checks.positive_int("num_values", num_values, at_most=_MAX_VALUES)
    checks.positive("smoothing", smoothing)
    checks.positive_int("samples", samples)
    checks.positive_int("num_examples", num_examples)
    checks.non_negative_int("seed", seed)
    features = [as_host(f"features[{i}]", rows) for i, rows in enumerate(features)]
    labels = [as_host(f"labels[{i}]", classes) for i, classes in enumerate(labels)]
    _check_examples(features, labels, num_values)
    size, num_labels = features[0].shape[-1], 1 + max(int(np.max(classes)) for classes in labels)
    rng = np.random.default_rng(seed)
    models = []
    for rows, classes in zip(features, labels, strict=True):
        prior, table = _fit(rows, classes, num_values, num_labels, smoothing)
        models.append(_with_examples(rng, prior, table, num_examples))
    data = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves), jnp.float32), *models)
    problem = FeatureSelection(data, size, samples)
    return tabulate(problem) if size <= MAX_ENUMERATED_ITEMS else problem


class FeatureSelection(SampledProblem):
    """Mutual information of many features; use ``feature_selection``."""

    name = "feature_selection"

    def value_of(self, data: _Model, mask: Bool[Array, " size"]) -> Float[Array, ""]:
        return _information(data, _joint(data, mask))

    def gains_of(self, data: _Model, mask: Bool[Array, " size"]) -> Float[Array, " size"]:
        joint = _joint(data, mask)

        def gain(pair):
            likelihood, is_member = pair
            rest = joint - jnp.where(is_member, likelihood, 0)
            return _information(data, rest + likelihood) - _information(data, rest)

        return jax.lax.map(gain, (jnp.moveaxis(data.likelihood, 1, 0), mask))


def _joint(model: _Model, mask: Bool[Array, " features"]) -> Float[Array, "examples labels"]:
    """Computes log joint probabilities of the features in a set and each label."""
    chosen = mask.astype(model.likelihood.dtype)
    return model.prior[None] + product(chosen, model.likelihood)


def _information(model: _Model, joint: Float[Array, "examples labels"]) -> Float[Array, ""]:
    """Computes mutual information from log joint probabilities."""
    # The difference is inside of the mean, so that it is exactly 0 without features.
    return product(model.weights, _entropy(model.prior) - jax.vmap(_entropy)(joint))


def _entropy(logits: Float[Array, " labels"]) -> Float[Array, ""]:
    log_probabilities = jax.nn.log_softmax(logits)
    return -product(jnp.exp(log_probabilities), log_probabilities)


def _fit(features, labels, num_values, num_labels, smoothing) -> tuple[np.ndarray, np.ndarray]:
    """Estimates probabilities of labels, and of each feature's values given the label."""
    is_label = labels[:, None] == np.arange(num_labels)
    is_value = features[:, :, None] == np.arange(num_values)
    prior = is_label.sum(axis=0) + smoothing
    counts = np.einsum("el,efv->fvl", is_label * 1.0, is_value * 1.0) + smoothing
    return prior / prior.sum(), counts / counts.sum(axis=1, keepdims=True)


def _with_examples(rng, prior, table, num_examples) -> _Model:
    """Returns the model with all configurations and their probabilities, or with a sample."""
    size, num_values, num_labels = table.shape
    if num_values**size <= _MAX_CONFIGURATIONS:
        configurations = np.array(list(itertools.product(range(num_values), repeat=size)))
        logs = np.log(table)[np.arange(size), configurations]
        weights = np.exp(logs.sum(axis=1) + np.log(prior)).sum(axis=1)
    else:
        classes = rng.choice(num_labels, num_examples, p=prior)
        below = table.cumsum(axis=1)[:, :, classes]
        configurations = (rng.random((size, 1, num_examples)) > below[:, :-1]).sum(axis=1).T
        logs = np.log(table)[np.arange(size), configurations]
        weights = np.full(num_examples, 1 / num_examples)
    return _Model(np.log(prior), logs, weights)  # pyright: ignore


def _check_examples(features, labels, num_values) -> None:
    if len(features) != len(labels) or not features:
        raise ValueError(
            f"features and labels: got {len(features)} and {len(labels)} clients, expected as "
            "many; pass one array of each per client."
        )
    size = features[0].shape[-1] if features[0].ndim == 2 else 0
    for client, (rows, classes) in enumerate(zip(features, labels, strict=True)):
        if rows.ndim != 2 or not rows.size or rows.shape != (*classes.shape, size):
            raise ValueError(
                f"client {client}: got shapes {rows.shape} and {classes.shape}, expected features "
                f"[examples, {size or 'features'}] and labels [examples], at least one; remove "
                "clients without examples."
            )
        check_integers(f"features[{client}]", rows, num_values)
        check_integers(f"labels[{client}]", classes, _MAX_VALUES)
