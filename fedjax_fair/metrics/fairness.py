"""How evenly clients are served, or how evenly they take part.

Every function takes one number per client and leaves out clients whose number is NaN (those
without test examples); if no client is left the answer is NaN. All are pure and work under ``jit``
and ``vmap``. Those that compare all pairs sort instead, so a million clients are no trouble.
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
    "dissimilarity_noise",
    "entropy",
    "gini",
    "jain_index",
    "sigma_acc",
    "standard_deviation",
]


def standard_deviation(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Root mean square distance of the clients from their own mean (divided by ``n``).

    Shows the spread in the unit of the values; hides which clients are far off and on which side,
    and includes the sampling noise of finite test sets.

    Args:
        values: One number per client, NaN to leave a client out.

    Returns:
        The standard deviation, at least 0; 0 for a single client.

    Examples:
        >>> import jax.numpy as jnp
        >>> standard_deviation(jnp.array([0.25, 0.75, jnp.nan])).item()
        0.25
    """
    return jnp.nanstd(values)


def sigma_acc(
    accuracy: Float[Array, " clients"], sizes: Int[Array, " clients"]
) -> Float[Array, ""]:
    """Root mean square distance of the clients from the accuracy on the pooled test examples.

    ``sqrt(mean_i (accuracy_i - pooled)^2)``: clients count the same, the center is weighted by
    examples. Shows spread and the small clients' shift from the pooled value together; hides
    which of the two it is. Equals `standard_deviation` when test sets are equally large.

    Args:
        accuracy: Test accuracy of each client, NaN to leave a client out.
        sizes: Test examples of each client.

    Returns:
        The distance, at least `standard_deviation`, in the unit of ``accuracy``.

    References:
        "Equitable Federated Learning with Activation Clustering", sigma_Acc.

    Examples:
        >>> import jax.numpy as jnp
        >>> sigma_acc(jnp.array([1.0, 0.5]), jnp.array([10, 10])).item()
        0.25
    """
    return jnp.sqrt(jnp.nanmean((accuracy - mean_over_examples(accuracy, sizes)) ** 2))


def client_dissimilarity(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Mean absolute difference over the unordered pairs of different clients.

    Shows how much better off one of two random clients is than the other; hides direction, and
    contains the noise of finite test sets (see `dissimilarity_noise`). About 1.128 standard
    deviations if the values are normal.

    Args:
        values: One number per client, usually test accuracy; NaN to leave a client out.

    Returns:
        The mean difference, at least 0, in the unit of ``values``; NaN with fewer than two
        clients.

    References:
        Castillo, Kaya, Ye, Hashemi, "Submodular Maximization Approaches for Equitable Client
        Selection in Federated Learning" (client dissimilarity, read as a mean over pairs).

    Examples:
        >>> import jax.numpy as jnp
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
    r"""The `client_dissimilarity` that sampling noise of finite test sets alone would produce.

    A client with ``n`` test examples and accuracy ``a`` measured on them has noise of variance
    ``v = a (1 - a) / (n - 1)`` (unbiased). If noise is normal, a pair differs by
    ``sqrt(2 (v_i + v_j) / pi)`` on average. Taking the mean over pairs inside the root gives

    .. math:: 2 \sqrt{\operatorname{mean}_i(v_i) / \pi},

    exact when all ``v`` are equal (equal sizes at equal accuracies) and otherwise, the root
    being concave, somewhat too large: 3 % if half of the clients have four times the variance
    of the others. So it is with tiny test sets, whose accuracies tie: 4 % with ten examples.
    Shows how small a dissimilarity can be expected to get; hides that noise and real
    differences do not simply add up, so that it must not be subtracted.

    Args:
        accuracy: Test accuracy of each client in ``[0, 1]``, NaN to leave a client out.
        sizes: Test examples of each client. Clients with fewer than two have no estimate of their
            noise and are left out.

    Returns:
        The floor, a fraction like ``accuracy``; NaN with fewer than two clients.

    Examples:
        >>> import jax.numpy as jnp
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
    """Mean absolute difference of test loss over the unordered pairs of a cohort.

    Shows how unequally the new model serves the clients that have just trained it; hides all
    others. The source's equation 9 sums over ordered pairs and divides by the number of unordered
    ones; as printed it is therefore twice this mean, which is what its text describes.

    Args:
        loss: Test loss of every client, NaN to leave a client out.
        cohort: Ids of the clients that have trained, -1 for an empty slot. A client that fills
            two slots counts twice, and does not disagree with itself.

    Returns:
        The mean difference, at least 0, in the unit of ``loss``; NaN with fewer than two
        members.

    References:
        "Equitable Federated Learning with Activation Clustering", eq. 9.

    Examples:
        >>> import jax.numpy as jnp
        >>> loss = jnp.array([0.5, 9.0, 1.0, 2.0])
        >>> disagreement = client_disagreement(loss, jnp.array([0, 2, 3]))
        >>> print(f"{disagreement:.4f}")  # of 0.5, 1 and 1.5
        1.0000
    """
    return client_dissimilarity(jnp.where(cohort >= 0, loss[cohort], jnp.nan))


def jain_index(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Jain's fairness index, ``(sum x)^2 / (n sum x^2)``.

    If ``k`` of ``n`` clients share equally and the others have nothing, it is ``k / n``. Shows
    how many are in effect served; hides the level, and crowds near 1 where the spread is
    moderate.

    Args:
        values: One non-negative number per client, NaN to leave a client out.

    Returns:
        A number in ``[1 / n, 1]``: 1 if all are equal (all zero included), ``1 / n`` if one has
        everything.

    References:
        Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource
        Allocation in Shared Computer Systems", DEC-TR-301, 1984,
        https://arxiv.org/abs/cs/9809099

    Examples:
        >>> import jax.numpy as jnp
        >>> jain_index(jnp.array([0.0, 0.0, 0.0, 1.0])).item()
        0.25
    """
    # The same fraction by the coefficient of variation, which keeps its digits near 1.
    return 1.0 / (1.0 + (jnp.nanstd(values) / mean_or_one(values)) ** 2)


def entropy(values: Float[Array, " clients"]) -> Float[Array, ""]:
    """Shannon entropy of the clients' shares ``x_i / sum x``.

    Shows evenness with an eye for those near zero; hides the level, and can be compared only
    between federations of the same number of clients.

    Args:
        values: One non-negative number per client, NaN to leave a client out.

    Returns:
        Nats, in ``[0, log n]``: ``log n`` if all are equal (all zero included), 0 if one has
        everything.

    References:
        Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning",
        ICLR 2020, https://arxiv.org/abs/1905.10497

    Examples:
        >>> import jax.numpy as jnp
        >>> print(f"{entropy(jnp.array([1.0, 1.0, 0.0])):.4f}")  # log 2
        0.6931
    """
    relative = values / mean_or_one(values)
    num_clients = jnp.sum(~jnp.isnan(values)).astype(values.dtype)
    # log n minus what is missing: summing a million tiny shares instead would lose digits.
    return jnp.log(num_clients) - jnp.nanmean(xlogy(relative, relative))
