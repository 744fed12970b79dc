r"""Thresholds for each client and sensitive group, with bounded local and global gaps.

A model can treat groups equally over all people (global) and not at a client (local), and the other
way round. For each client k and group a, the highest number of correct predictions
:math:`C_{ka}(r)` at a rate r is the upper hull of `fedjax_fair.metrics.thresholds`. A linear
program maximizes :math:`\sum C_{ka}(r_{ka})` such that the rates of two groups differ by at most
:math:`\delta_l` at each client, and by at most :math:`\delta_g` among all people. The solution is
exact and has no learning rate. Clients send numbers of people once; the methods of the references
exchange multipliers for several rounds.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fedjax_fair.metrics.thresholds import Constraint, as_codes, mix, reach, select, upper_hull

__all__ = ["ClientThresholds", "fit_local_global_thresholds"]


@dataclasses.dataclass(frozen=True)
class ClientThresholds:
    """Fitted thresholds of clients and groups, as indices of intervals of scores.

    Attributes:
        bins: Number of intervals of equal width in ``[0, 1]``.
        high: Index of the first interval with prediction 1; ``bins`` for none.
        low: The same of the second threshold, at most ``high``.
        low_share: Share of predictions by ``low``; the others are by ``high``.
        rates: Rates on the fitted examples; NaN without people that the rate counts. Their
            threshold is 1/2.
        accuracy: Expected accuracy on the fitted examples.
        global_gap: Largest difference of two groups' rates among all people; NaN for one group.
        local_gaps: Largest difference of two groups' rates at each client; NaN for one group.
    """

    bins: int
    high: Int[np.ndarray, "clients groups"]
    low: Int[np.ndarray, "clients groups"]
    low_share: Float[np.ndarray, "clients groups"]
    rates: Float[np.ndarray, "clients groups"]
    accuracy: float
    global_gap: float
    local_gaps: Float[np.ndarray, " clients"]

    def probabilities(
        self, scores: Any, groups: Any, clients: Any
    ) -> Float[np.ndarray, " examples"]:
        """Returns the probability that class 1 is predicted.

        Args:
            scores: Probabilities of class 1 by the model, ``[examples]``.
            groups: Group of each example, ``[examples]``.
            clients: Client of each example, ``[examples]``.

        Raises:
            ValueError: If scores are not in ``[0, 1]``, or groups or clients are unknown.
        """
        num_clients, num_groups = self.high.shape
        cells = as_codes("clients", clients, num_clients), as_codes("groups", groups, num_groups)
        return mix(scores, self.bins, self.high[cells], self.low[cells], self.low_share[cells])

    def predict(
        self, scores: Any, groups: Any, clients: Any, seed: int = 0
    ) -> Int[np.ndarray, " examples"]:
        """Draws predictions with these `probabilities`."""
        draws = np.random.default_rng(seed).random(np.shape(scores))
        return (draws < self.probabilities(scores, groups, clients)).astype(np.int32)


def fit_local_global_thresholds(
    counts: Any,
    constraint: Constraint = "demographic_parity",
    max_global_gap: float = np.inf,
    max_local_gap: float = np.inf,
) -> ClientThresholds:
    """Fits the thresholds with the highest accuracy under two constraints.

    Both can always be met, by equal rates. A lower bound never increases the accuracy. With
    ``max_local_gap=0`` alone, each client has `fit_thresholds` of its own; of a single client,
    ``max_global_gap=0`` is `fit_thresholds`. Different rates can have the same accuracy.

    Args:
        counts: Numbers by `fedjax_fair.metrics.thresholds.count_scores` of held-out examples, such
            as validation examples, ``[clients, groups, 2, bins]``. A client may lack groups.
        constraint: The rate: of prediction 1 among all people (``"demographic_parity"``), or among
            people with label 1 (``"equal_opportunity"``).
        max_global_gap: Largest difference of the groups' rates among the people of all clients,
            from 0; infinite for no constraint.
        max_local_gap: Largest difference of the groups' rates at each client.

    Raises:
        ValueError: If bounds are negative, or a group has no people that the rate counts.

    References:
        LoGoFair: Zhang et al., 2025, https://arxiv.org/abs/2503.17231. FedFACT, 2025,
        https://arxiv.org/abs/2506.03777. Thresholds of each client:
        https://arxiv.org/abs/2501.15318

    Examples:
        >>> from fedjax_fair.metrics.thresholds import count_scores
        >>> scores, labels, groups = np.arange(8) / 8, [0, 0, 1, 1, 0, 1, 1, 1], [0, 1] * 4
        >>> counts = np.stack([count_scores(scores, labels, groups, 2, bins=8)] * 3)
        >>> fitted = fit_local_global_thresholds(counts, max_local_gap=0)
        >>> fitted.local_gaps.round(6).tolist(), round(fitted.accuracy, 3)
        ([0.0, 0.0, 0.0], 0.875)
    """
    from scipy.optimize import linprog

    for name, bound in (("max_global_gap", max_global_gap), ("max_local_gap", max_local_gap)):
        if not bound >= 0:
            raise ValueError(f"{name}={bound!r}: expected a number >= 0, infinite for no bound.")
    selected, correct = select(counts, constraint, by_client=True)
    people = selected[..., 0]  # Of each client and group that the rate counts.
    rates = selected / np.maximum(people, 1)[..., None]
    cells = [(int(client), int(group)) for client, group in np.argwhere(people)]
    hulls = {cell: upper_hull(rates[cell], correct[cell]) for cell in cells}
    place = {cell: index for index, cell in enumerate(cells)}
    size = len(cells)  # Variable i is a rate, size + i the number of correct predictions.
    rows, limits = [], []

    def add(coefficients: dict[int, float], limit: float) -> None:
        row = np.zeros(2 * size)
        row[list(coefficients)] = list(coefficients.values())
        rows.append(row)
        limits.append(limit)

    for cell, hull in hulls.items():
        x, y = rates[cell], correct[cell]
        for start, end in itertools.pairwise(hull):
            slope = (y[end] - y[start]) / (x[end] - x[start])
            add({size + place[cell]: 1, place[cell]: -slope}, y[start] - slope * x[start])
    shares = people / people.sum(axis=0)
    num_clients, num_groups, num_thresholds = rates.shape
    bins = num_thresholds - 1
    for one, other in itertools.permutations(range(num_groups), 2):
        if np.isfinite(max_local_gap):
            for client in range(num_clients):
                if people[client, one] and people[client, other]:
                    add({place[client, one]: 1, place[client, other]: -1}, max_local_gap)
        if np.isfinite(max_global_gap):
            signs = {one: 1, other: -1}
            chosen = {
                place[cell]: signs[cell[1]] * shares[cell] for cell in cells if cell[1] in signs
            }
            add(chosen, max_global_gap)
    solution = linprog(
        np.repeat([0.0, -1.0], size),
        np.array(rows),
        np.array(limits),
        bounds=[(0, 1)] * size + [(None, None)] * size,
        method="highs",
    )
    if solution.status != 0:
        raise RuntimeError(f"linprog: {solution.message}")

    shape = num_clients, num_groups
    high, low = (np.full(shape, -(-bins // 2)) for _ in range(2))
    low_share, found = np.zeros(shape), np.full(shape, np.nan)
    for cell, rate in zip(cells, np.clip(solution.x[:size], 0, 1), strict=True):
        high[cell], low[cell], low_share[cell] = reach(rate, rates[cell], hulls[cell])
        found[cell] = rate
    by_threshold = [
        np.take_along_axis(correct, each[..., None], axis=-1)[..., 0] for each in (high, low)
    ]
    num_correct = (1 - low_share) * by_threshold[0] + low_share * by_threshold[1]
    overall = np.nansum(shares * found, axis=0)
    return ClientThresholds(
        bins,
        high,
        low,
        low_share,
        found,
        float(num_correct.sum() / np.sum(counts)),
        float(_range(overall)),
        _range(found),
    )


def _range(rates: Float[np.ndarray, "*batch groups"]) -> Float[np.ndarray, "*batch"]:
    """Returns the largest less the smallest rate; NaN with fewer than two."""
    is_known = ~np.isnan(rates)
    ends = np.where(is_known, rates, -np.inf).max(-1) - np.where(is_known, rates, np.inf).min(-1)
    return np.where(is_known.sum(axis=-1) > 1, ends, np.nan)
