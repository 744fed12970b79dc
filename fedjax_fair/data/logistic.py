"""Synthetic federated datasets whose heterogeneity is two parameters (Li et al., 2020)."""

from __future__ import annotations

import numpy as np

from fedjax_fair.data.arrays import federate
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.partitioner import Partition, generator, make_partition
from fedjax_fair.data.source import Examples, Splits
from fedjax_fair.utils import checks

__all__ = ["read_synthetic", "synthetic"]

NUM_FEATURES, NUM_CLASSES = 60, 10
BLOCK = 16_384  # Examples made at a time. Another value changes the random stream.


def synthetic(
    alpha: float,
    beta: float,
    num_clients: int,
    *,
    mean_size: int = 50,
    spread: float = 0.0,
    max_size: int = 1000,
    base_size: int = 0,
    independent: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> FederatedData:
    r"""Makes the Synthetic(alpha, beta) data: a logistic model and inputs per client.

    Client ``k`` labels ``x`` with ``argmax(W_k x + b_k)``, where

    .. math::

        W_k, b_k \sim N(u_k, 1), \; u_k \sim N(0, \alpha), \quad
        x \sim N(v_k, \mathrm{diag}(j^{-1.2})), \; v_k \sim N(B_k, 1), \; B_k \sim N(0, \beta),

    with 60 features and 10 classes. (``u_k`` shifts all logits equally, so ``alpha`` changes no
    label; models differ because each is drawn independently.)

    Args:
        alpha: Variance of the models' means, at least 0; see above.
        beta: Variance of the clients' mean inputs, at least 0.
        num_clients: Number of clients.
        mean_size: Mean number of examples of a client, training and test; each has at least 2.
        spread: Standard deviation of the logarithm of the lognormal sizes, at least 0.
        max_size: Maximum number of examples of a client, at least ``mean_size``.
        base_size: Number of examples that every client has in addition to ``mean_size``.
        independent: Whether all clients share one model and ``x ~ N(0, diag(j^-1.2))``.
        test_fraction: Fraction of each client's examples for testing, rounded down, in ``[0, 1)``.
        seed: Seed.

    Returns:
        A federated dataset with float32 features ``[total, 60]``.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Li et al., Federated Optimization in Heterogeneous Networks, 2020, section 5.1,
        https://arxiv.org/abs/1812.06127

    Examples:
        >>> data = synthetic(1.0, 1.0, num_clients=3, mean_size=10)
        >>> data.train.features.shape, data.test.sizes.tolist()
        ((24, 60), [2, 2, 2])
    """
    checks.non_negative("alpha", alpha, at_most=1e9)
    checks.non_negative("beta", beta, at_most=1e9)
    checks.positive_int("num_clients", num_clients)
    checks.positive_int("max_size", max_size)
    checks.positive_int("mean_size", mean_size, at_most=max_size)
    checks.non_negative_int("base_size", base_size, at_most=max_size)
    checks.non_negative("spread", spread, at_most=100)
    checks.unit_interval("test_fraction", test_fraction)
    if num_clients * (mean_size + base_size) >= 2**31:
        raise ValueError(
            f"{num_clients=}, {mean_size=}: expected fewer than 2**31 examples, whose indices have "
            "32 bits."
        )
    rng = generator(seed)
    # exp(spread z - spread^2 / 2) has mean 1.
    sizes = mean_size * np.exp(spread * rng.standard_normal(num_clients) - spread**2 / 2)
    sizes = np.clip(base_size + np.rint(sizes), min(2, max_size), max_size).astype(np.int64)
    test_sizes = np.floor(sizes * test_fraction).astype(np.int64)
    train_sizes = sizes - test_sizes
    shared = _models(rng, np.zeros(1, np.float32)) if independent else None
    # Filled in place: parts joined at the end would take the memory of a million clients twice.
    train, test = (
        (np.empty((total, NUM_FEATURES), np.float32), np.empty(total, np.int32))
        for total in (train_sizes.sum(), test_sizes.sum())
    )
    ends = [0, 0]
    for first, last in _blocks(sizes):
        block_sizes = sizes[first:last]
        x, y = _block(rng, block_sizes, alpha, beta, shared)
        starts = np.cumsum(block_sizes) - block_sizes
        position = np.arange(len(y)) - np.repeat(starts, block_sizes)
        is_test = position < np.repeat(test_sizes[first:last], block_sizes)
        for part, (arrays, chosen) in enumerate(((train, ~is_test), (test, is_test))):
            block = slice(ends[part], ends[part] + chosen.sum())
            arrays[0][block], arrays[1][block] = x[chosen], y[chosen]
            ends[part] = block.stop
    name = f"synthetic({'iid' if independent else f'{alpha}, {beta}'})"
    return federate(
        (*train, _consecutive(train_sizes)),
        (*test, _consecutive(test_sizes)),
        num_classes=NUM_CLASSES,
        name=name,
    )


def read_synthetic(
    alpha: float, beta: float, _location: None = None, *, independent: bool = False
) -> Splits:
    """Makes the 30 devices of FedProx's experiments, of which a tenth of examples are for tests.

    Sizes are ``50 + LogNormal(4, 2)``, at most 1,000. FedProx's have no limit. The column
    ``device`` is the client.

    Args:
        alpha: As in `synthetic`.
        beta: As in `synthetic`.
        independent: As in `synthetic`.
    """
    made = synthetic(
        alpha,
        beta,
        30,
        mean_size=403,  # exp(4 + 2**2 / 2)
        spread=2.0,
        base_size=50,
        independent=independent,
        test_fraction=0.1,
    )
    names = np.array([f"{device:02}" for device in range(30)])
    train, test = (
        Examples(
            np.asarray(part.features),
            np.asarray(part.labels),
            {"device": np.repeat(names, np.asarray(part.sizes))},
        )
        for part in (made.train, made.test)
    )
    return Splits(train, test, NUM_CLASSES)


def _consecutive(sizes: np.ndarray) -> Partition:
    return make_partition(np.arange(sizes.sum()), sizes, int(sizes.sum()))


def _blocks(sizes: np.ndarray):
    """Yields ranges of clients with at most ``BLOCK`` examples, or a single larger client."""
    ends = np.cumsum(sizes)
    first, done = 0, 0
    while first < len(sizes):
        last = max(first + 1, int(np.searchsorted(ends, done + BLOCK, side="right")))
        yield first, last
        first, done = last, ends[last - 1]


def _models(rng, means):
    """Draws weights ``[clients, features, classes]`` and biases."""
    weights = rng.standard_normal((len(means), NUM_FEATURES, NUM_CLASSES), np.float32)
    biases = rng.standard_normal((len(means), NUM_CLASSES), np.float32)
    return weights + means[:, None, None], biases + means[:, None]


def _block(rng, sizes, alpha, beta, shared) -> tuple[np.ndarray, np.ndarray]:
    owners = np.repeat(np.arange(len(sizes)), sizes)
    deviations = np.arange(1, NUM_FEATURES + 1, dtype=np.float32) ** np.float32(-0.6)
    x = rng.standard_normal((len(owners), NUM_FEATURES), np.float32) * deviations
    if shared is not None:
        weights, biases = shared
        return x, np.argmax(x @ weights[0] + biases[0], axis=1)
    centers = rng.standard_normal(len(sizes), np.float32) * np.float32(beta**0.5)
    means = rng.standard_normal((len(sizes), NUM_FEATURES), np.float32) + centers[:, None]
    x += means[owners]
    weights, biases = _models(
        rng, rng.standard_normal(len(sizes), np.float32) * np.float32(alpha**0.5)
    )
    logits = np.matmul(x[:, None, :], weights[owners])[:, 0] + biases[owners]
    return x, np.argmax(logits, axis=1)
