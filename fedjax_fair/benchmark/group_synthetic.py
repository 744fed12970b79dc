"""Synthetic data with two sensitive groups, whose clients differ in their shares (FedFB)."""

from __future__ import annotations

import numpy as np

from fedjax_fair.data.partitions.partitioner import Partition, generator, make_partition

__all__ = ["POPULATIONS", "make", "split"]

POPULATIONS = {1: (0.5, 0.3, 0.2), 0: (0.2, 0.4, 0.4)}
"""Shares of the three populations among examples of each group ``z``."""

_MEANS = {0: (-2.0, -2.0), 1: (2.0, 2.0)}
_COVARIANCES = {0: ((10.0, 1.0), (1.0, 3.0)), 1: ((5.0, 1.0), (1.0, 5.0))}
_LABEL_SHARE = 0.6


def make(num_examples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Draws features, labels and sensitive groups.

    .. math::

        y \sim B(0.6), \quad x | y \sim N(\mu_y, \Sigma_y), \quad
        z \sim B(p_1(x') / (p_0(x') + p_1(x'))),

    where :math:`x'` is :math:`x` rotated by 45 degrees and :math:`p_y` the density of ``x`` given
    ``y``.

    Args:
        num_examples: Number of examples.
        seed: Seed.

    Returns:
        Features ``[examples, 2]`` (float32), labels and groups ``[examples]`` (int32, 0 or 1).

    References:
        Zeng et al., Improving Fairness via Federated Learning, 2021, https://arxiv.org/abs/2110.15545

    Examples:
        >>> features, labels, groups = make(1000)
        >>> features.shape, bool(0.5 < labels.mean() < 0.7)
        ((1000, 2), True)
    """
    rng = generator(seed, 0)
    labels = (rng.random(num_examples) < _LABEL_SHARE).astype(np.int32)
    normal = rng.standard_normal((num_examples, 2))
    features = np.empty((num_examples, 2))
    for y in (0, 1):
        root = np.linalg.cholesky(np.array(_COVARIANCES[y]))
        features[labels == y] = normal[labels == y] @ root.T + np.array(_MEANS[y])
    angle = np.pi / 4
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    log_densities = [_log_density(features @ rotation.T, y) for y in (0, 1)]
    share = 1 / (1 + np.exp(log_densities[0] - log_densities[1]))
    groups = (rng.random(num_examples) < share).astype(np.int32)
    return features.astype(np.float32), labels, groups


def _log_density(x: np.ndarray, y: int) -> np.ndarray:
    covariance = np.array(_COVARIANCES[y])
    centered = x - np.array(_MEANS[y])
    distances = np.einsum("ni,ij,nj->n", centered, np.linalg.inv(covariance), centered)
    return -0.5 * (distances + np.log(np.linalg.det(covariance)))


def split(groups: np.ndarray, clients_per_population: int, seed: int) -> Partition:
    """Splits examples over three populations by group, and each over as many equal clients.

    Args:
        groups: Sensitive group of each example, 0 or 1.
        clients_per_population: Number of clients of a population.
        seed: Seed.
    """
    rng = generator(seed, 1)
    population = np.empty(len(groups), np.int64)
    for z, shares in POPULATIONS.items():
        members = rng.permutation(np.flatnonzero(groups == z))
        ends = np.rint(np.cumsum(shares) * len(members)).astype(int)
        for p, indices in enumerate(np.split(members, ends[:-1])):
            population[indices] = p
    parts: list[np.ndarray] = []
    for p in range(3):
        members = rng.permutation(np.flatnonzero(population == p))
        parts += np.array_split(members, clients_per_population)
    sizes = [len(part) for part in parts]
    return make_partition(np.concatenate(parts), sizes, len(groups))
