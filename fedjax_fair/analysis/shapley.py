"""Values of players of a game whose coalitions all have a known utility.

Coalition ``c`` of ``n`` players has player ``i`` if bit ``i`` of ``c`` is 1, so that 0 is the empty
and ``2**n - 1`` the grand coalition.
"""

from __future__ import annotations

from math import factorial

import numpy as np
from jaxtyping import Bool, Float

__all__ = ["coalition_members", "leave_one_out", "shapley_matrix"]


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
