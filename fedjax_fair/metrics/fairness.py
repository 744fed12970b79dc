"""Metrics of how evenly accuracies, losses or participation are distributed over clients.

All functions take one value per client, ignore NaN (a client without test examples) and return NaN
if no client is left. ``sizes`` are the clients' numbers of test examples. Standard deviations and
differences are >= 0, in the unit of the values. `gini`, `jain_index` and `entropy` take values
>= 0, and are NaN for an infinite mean. Functions work under ``jit`` and ``vmap``; means over pairs
take ``O(n log n)``.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float, Int

from fedjax_fair.metrics.performance import mean_over_examples
from fedjax_fair.numerics.inequality import gini, mean_difference, mean_or_one

__all__ = [
    "client_disagreement",
    "client_dissimilarity",
    "collaborative_fairness",
    "dissimilarity_noise",
    "entropy",
    "gini",
    "jain_index",
    "loss_angle",
    "sigma_acc",
    "standard_deviation",
]


def standard_deviation(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Computes the standard deviation over clients (divided by ``n``).

    Use: spread in the unit of the values. Limitation: includes the noise of finite test sets.

    Examples:
        >>> standard_deviation(jnp.array([0.25, 0.75, jnp.nan])).item()
        0.25
    """
    return jnp.nanstd(values)


def sigma_acc(
    accuracy: Float[Array, " clients"], sizes: Int[Array, " clients"]
) -> Float[Array, ""]:
    """Computes the root mean square distance of clients from the accuracy on the pooled examples.

    ``sqrt(mean_i (accuracy_i - pooled)^2)`` is at least `standard_deviation`, which it equals for
    test sets of equal size. Use: spread and the shift of small clients. Limitation: does not
    separate them.

    References:
        "Equitable Federated Learning with Activation Clustering", sigma_Acc.

    Examples:
        >>> sigma_acc(jnp.array([1.0, 0.5]), jnp.array([10, 10])).item()
        0.25
    """
    measured = ~jnp.isnan(accuracy)
    # NaN is replaced before squaring, whose derivative would be NaN.
    distances = jnp.where(measured, accuracy - mean_over_examples(accuracy, sizes), 0)
    return jnp.sqrt(jnp.mean(distances**2, where=measured))


def client_dissimilarity(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Computes the mean absolute difference over all pairs of different clients.

    Use: the expected gap between two random clients; about 1.128 standard deviations of normal
    values. Limitation: includes the noise of finite test sets (see `dissimilarity_noise`).

    Returns:
        The mean difference; NaN with fewer than two clients.

    References:
        Castillo, Kaya, Ye, Hashemi, "Submodular Maximization Approaches for Equitable Client
        Selection in Federated Learning" (client dissimilarity, read as a mean over pairs).

    Examples:
        >>> values = jnp.array([0.0, 1.0, 2.0, jnp.nan])
        >>> print(f"{client_dissimilarity(values):.4f}")  # of 1, 2 and 1
        1.3333
    """
    num_clients = jnp.sum(~jnp.isnan(values)).astype(values.dtype)
    different = num_clients / (num_clients - 1.0)
    return jnp.where(num_clients > 1, mean_difference(values) * different, jnp.nan)


def dissimilarity_noise(
    accuracy: Float[Array, " clients"], sizes: Int[Array, " clients"]
) -> Float[Array, ""]:
    r"""Estimates the `client_dissimilarity` that the sampling noise of finite test sets produces.

    With the variance ``v = a (1 - a) / (n - 1)`` of an accuracy ``a`` on ``n`` examples it is

    .. math:: 2 \sqrt{\operatorname{mean}_i(v_i) / \pi},

    exact for normal noise of equal variances, otherwise an upper bound: 3 % too large if half of
    the clients have four times the variance of the others, 4 % with ten examples per client. Use: a
    lower limit for measured dissimilarity. Limitation: must not be subtracted from it.

    Returns:
        The noise floor; NaN with fewer than two clients that have two or more test examples.

    Examples:
        >>> floor = dissimilarity_noise(jnp.full(100, 0.83), jnp.full(100, 100))
        >>> print(f"{floor:.4f}")  # 1.128 standard deviations of 0.0378
        0.0426
    """
    variances = accuracy * (1.0 - accuracy) / (sizes.astype(accuracy.dtype) - 1.0)
    variances = jnp.where(sizes > 1, variances, jnp.nan)
    floor = 2.0 * jnp.sqrt(jnp.nanmean(variances) / math.pi)
    return jnp.where(jnp.sum(~jnp.isnan(variances)) > 1, floor, jnp.nan)


def client_disagreement(
    loss: Float[Array, " clients"], cohort: Int[Array, " cohort"]
) -> Float[Array, ""]:
    """Computes the mean absolute difference of test loss over pairs of participants.

    Use: how unequally the new model serves its participants. Limitation: ignores all other clients.

    Args:
        loss: Test loss of every client.
        cohort: Ids of the participants, -1 for an empty slot. A client in two slots counts twice.

    Returns:
        The mean difference; NaN with fewer than two participants.

    References:
        "Equitable Federated Learning with Activation Clustering", half of eq. 9, as in its text.

    Examples:
        >>> loss = jnp.array([0.5, 9.0, 1.0, 2.0])
        >>> disagreement = client_disagreement(loss, jnp.array([0, 2, 3]))
        >>> print(f"{disagreement:.4f}")  # of 0.5, 1 and 1.5
        1.0000
    """
    return client_dissimilarity(jnp.where(cohort >= 0, loss[cohort], jnp.nan))


def jain_index(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Computes Jain's fairness index, ``(sum x)^2 / (n sum x^2)``.

    Use: the effective share of clients served. Limitation: ignores the level; close to 1 for
    moderate spread.

    Returns:
        The index, in ``[1 / n, 1]``: 1 for equal values (also all zero), ``1 / n`` if one client
        has everything.

    References:
        Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource
        Allocation in Shared Computer Systems", DEC-TR-301, 1984,
        https://arxiv.org/abs/cs/9809099

    Examples:
        >>> jain_index(jnp.array([0.0, 0.0, 0.0, 1.0])).item()
        0.25
    """
    # The same fraction by the coefficient of variation, which keeps its digits near 1.
    return 1.0 / (1.0 + (jnp.nanstd(values) / mean_or_one(values)) ** 2)


def entropy(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Computes the Shannon entropy of the clients' shares ``x_i / sum x``.

    Use: evenness, with emphasis on values near zero. Limitation: ignores the level; comparable only
    for equal numbers of clients.

    Returns:
        Nats, in ``[0, log n]``: ``log n`` for equal values (also all zero), 0 if one client has
        everything.

    References:
        Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning",
        ICLR 2020, https://arxiv.org/abs/1905.10497

    Examples:
        >>> print(f"{entropy(jnp.array([1.0, 1.0, 0.0])):.4f}")  # log 2
        0.6931
    """
    relative = values / mean_or_one(values)
    num_clients = jnp.sum(~jnp.isnan(values)).astype(values.dtype)
    # The deficit from log n is summed, because a sum of a million small shares loses digits.
    return jnp.log(num_clients) - jnp.nanmean(xlogy(relative, relative))


def loss_angle(loss: Float[Array, " clients"]) -> Float[Array, ""]:
    """Computes the angle in degrees between the losses, which are >= 0, and equal ones.

    Its tangent is the standard deviation over the mean, and its squared cosine is `jain_index`.
    Use: the measure that FedMDFG and FedLF reduce. Limitation: a constant added to all losses
    reduces it.

    References:
        Pan et al., *FedMDFG: Federated Learning with Multi-Gradient Descent and Fair Guidance*,
        2023, https://doi.org/10.1609/aaai.v37i8.26122

    Examples:
        >>> round(loss_angle(jnp.array([1.0, 3.0])).item(), 4)
        26.5651
    """
    return jnp.degrees(jnp.arctan2(jnp.nanstd(loss), jnp.nanmean(loss)))


def collaborative_fairness(
    alone: Float[Array, " clients"], received: Float[Array, " clients"]
) -> Float[Array, ""]:
    """Computes the correlation of the accuracies that clients reach alone and those they receive.

    NaN if either is constant. Use: whether clients that contribute more receive more. Limitation:
    1 also where all lose.

    Args:
        alone: Accuracy of each client's model that was trained alone.
        received: Accuracy of the model that it receives.

    References:
        Tastan et al., *Redefining Contributions: Shapley-Driven Federated Learning*, 2024,
        https://arxiv.org/abs/2406.00569

    Examples:
        >>> alone = jnp.array([75.2, 68.8, 66.8, 69.0])
        >>> round(collaborative_fairness(alone, jnp.array([79.8, 75.4, 69.0, 75.0])).item(), 3)
        0.901
    """
    is_known = ~jnp.isnan(alone) & ~jnp.isnan(received)
    centered = [
        jnp.where(is_known, values - jnp.mean(values, where=is_known), 0)
        for values in (alone, received)
    ]
    norms = [jnp.linalg.norm(values) for values in centered]
    return jnp.sum(centered[0] * centered[1]) / (norms[0] * norms[1])
