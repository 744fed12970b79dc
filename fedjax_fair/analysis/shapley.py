"""Values of players of a game whose coalitions all have a known utility.

Coalition ``c`` of ``n`` players has player ``i`` if bit ``i`` of ``c`` is 1, so that 0 is the empty
and ``2**n - 1`` the grand coalition.
"""

from __future__ import annotations

from math import factorial

import numpy as np
from jaxtyping import Bool, Float

__all__ = [
    "agreement",
    "coalition_members",
    "gtg_shapley",
    "leave_one_out",
    "shapley_matrix",
]


def coalition_members(num_players: int) -> Bool[np.ndarray, "coalitions players"]:
    """Returns the members of all coalitions.

    Examples:
        >>> coalition_members(2).astype(int).tolist()
        [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    return (np.arange(2**num_players)[:, None] >> np.arange(num_players)) % 2 == 1


def shapley_matrix(num_players: int) -> Float[np.ndarray, "players coalitions"]:
    r"""Returns the matrix whose product with the utilities of all coalitions is the Shapley values.

    .. math:: \phi_i = \sum_{S \not\ni i} \frac{|S|! \, (n - |S| - 1)!}{n!} (U(S \cup i) - U(S))

    References:
        Shapley, *A Value for n-Person Games*, 1953, https://doi.org/10.1515/9781400881970-018

    Examples:
        >>> shapley_matrix(2).tolist()
        [[-0.5, 0.5, -0.5, 0.5], [-0.5, -0.5, 0.5, 0.5]]
    """
    members = coalition_members(num_players)
    sizes = members.sum(axis=1)
    # Weights by the size of the coalition without the player.
    weights = np.array(
        [
            factorial(size) * factorial(num_players - size - 1) / factorial(num_players)
            for size in range(num_players)
        ]
    )
    # The grand coalition has no coalition without a player, the empty one none with a player.
    gained, lost = weights[np.maximum(sizes - 1, 0)], weights[np.minimum(sizes, num_players - 1)]
    return np.where(members.T, gained, -lost)


def leave_one_out(
    utilities: Float[np.ndarray, "*batch coalitions"],
) -> Float[np.ndarray, "*batch players"]:
    """Returns what the utility of all players loses without each of them.

    Examples:
        >>> leave_one_out(np.array([0.0, 1.0, 2.0, 5.0])).tolist()
        [3.0, 4.0]
    """
    grand = utilities.shape[-1] - 1
    without = grand - 2 ** np.arange(grand.bit_length())
    return utilities[..., grand, None] - utilities[..., without]


def gtg_shapley(
    utilities: Float[np.ndarray, " coalitions"],
    rng: np.random.Generator,
    *,
    min_gain: float = 1e-3,
    tolerance: float = 1e-3,
) -> tuple[Float[np.ndarray, " players"], int]:
    """Estimates Shapley values from sampled orders in which players join.

    Each player in turn is the first of an order. The rest of an order adds nothing once the utility
    is within ``tolerance`` of that of all. Sampling ends when the last ten means differ by less
    than 5% from the last one, after more than 30 orders.

    Args:
        utilities: Of all coalitions, of which the sampled ones are read.
        rng: Random numbers.
        min_gain: Values are zero if all players gain at most this.
        tolerance: Difference to the utility of all at which an order ends.

    Returns:
        The values, and the number of different coalitions that were read.

    References:
        Liu, Chen, Yu, Liu, Cui, *GTG-Shapley: Efficient and Accurate Participant Contribution
        Evaluation in Federated Learning*, 2022, https://arxiv.org/abs/2109.02053

    Examples:
        >>> values, _ = gtg_shapley(np.array([0.0, 1.0, 2.0, 3.0]), np.random.default_rng(0))
        >>> values.tolist()
        [1.0, 2.0]
    """
    grand = utilities.size - 1
    num_players = grand.bit_length()
    if abs(utilities[grand] - utilities[0]) <= min_gain:
        return np.zeros(num_players), 2
    read, gains, sums = {0, grand}, [], []
    while not _has_converged(sums, num_players):
        for first in range(num_players):
            others = rng.permutation(np.delete(np.arange(num_players), first))
            gain, coalition = np.zeros(num_players), 0
            for player in (first, *others):
                if abs(utilities[grand] - utilities[coalition]) < tolerance:
                    break
                joined = coalition | 1 << int(player)
                gain[player] = utilities[joined] - utilities[coalition]
                coalition = joined
                read.add(joined)
            gains.append(gain)
            sums.append(gain if not sums else sums[-1] + gain)
    return np.mean(gains, axis=0), len(read)


def _has_converged(sums: list[np.ndarray], num_players: int) -> bool:
    """Returns whether the last ten means of gains are close to the last one."""
    if len(sums) <= max(30, num_players):
        return False
    counts = np.arange(len(sums) - 9, len(sums) + 1)
    means = np.array(sums[-10:]) / counts[:, None]
    errors = np.abs(means - means[-1]) / (np.abs(means[-1]) + 1e-12)
    return float(errors.mean(axis=1).max()) <= 0.05


def agreement(
    estimates: Float[np.ndarray, " players"], values: Float[np.ndarray, " players"]
) -> dict[str, float]:
    """Compares estimated with exact values.

    Returns:
        ``rank_correlation`` (Spearman) and ``correlation`` (Pearson), NaN if either has equal
        values only; ``largest_error``; and ``sign_errors``, the number of players whose estimate
        has another sign.

    Examples:
        >>> scores = agreement(np.array([1.0, 2.0, -9.0]), np.array([1.0, 2.0, 3.0]))
        >>> scores["rank_correlation"], scores["largest_error"], scores["sign_errors"]
        (-0.5, 12.0, 1)
    """
    from scipy.stats import rankdata

    return {
        "rank_correlation": _correlation(rankdata(estimates), rankdata(values)),
        "correlation": _correlation(estimates, values),
        "largest_error": float(np.abs(estimates - values).max()),
        "sign_errors": int(np.sum(np.sign(estimates) != np.sign(values))),
    }


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(), y - y.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / scale) if scale > 0 else float("nan")
