"""A threshold for each sensitive group, fitted after training on the scores of held-out examples.

A model with two classes predicts class 1 if its probability, the score, reaches a threshold. A
threshold for each group makes a rate equal between groups, at the highest accuracy (Hardt, Price,
Srebro, 2016, https://arxiv.org/abs/1610.02413). To reach a rate exactly, a group mixes two
thresholds at random. Only numbers of people by group, label and interval of scores are needed,
which clients count and a server adds. Predictions need the group of a person.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int, Shaped

from fedjax_fair.utils import checks

__all__ = ["Constraint", "GroupThresholds", "count_scores", "fit_thresholds"]

Constraint = Literal["demographic_parity", "equal_opportunity"]
COUNTED: dict[Constraint, str] = {
    "demographic_parity": "people",
    "equal_opportunity": "people with label 1",
}
"""The people that the rate of a constraint counts."""


@dataclasses.dataclass(frozen=True)
class GroupThresholds:
    """Fitted thresholds, as indices of intervals of scores.

    Attributes:
        bins: Number of intervals of equal width in ``[0, 1]``.
        high: Index of the first interval with prediction 1, by group; ``bins`` for none.
        low: The same of the second threshold, at most ``high``.
        low_share: Share of predictions by ``low``, by group; the others are by ``high``.
        rate: Rate of all groups on the fitted examples.
    """

    bins: int
    high: Int[np.ndarray, " groups"]
    low: Int[np.ndarray, " groups"]
    low_share: Float[np.ndarray, " groups"]
    rate: float

    def probabilities(self, scores: Any, groups: Any) -> Float[np.ndarray, " examples"]:
        """Returns the probability that class 1 is predicted.

        Args:
            scores: Probabilities of class 1 by the model, ``[examples]``.
            groups: Group of each example, ``[examples]``.

        Raises:
            ValueError: If scores are not in ``[0, 1]`` or groups are unknown.
        """
        groups = as_codes("groups", groups, len(self.high))
        return mix(scores, self.bins, self.high[groups], self.low[groups], self.low_share[groups])

    def predict(self, scores: Any, groups: Any, seed: int = 0) -> Int[np.ndarray, " examples"]:
        """Draws predictions with these `probabilities`."""
        draws = np.random.default_rng(seed).random(np.shape(scores))
        return (draws < self.probabilities(scores, groups)).astype(np.int32)


def count_scores(
    scores: Any, labels: Any, groups: Any, num_groups: int, bins: int = 1000
) -> Int[np.ndarray, "groups 2 bins"]:
    """Counts examples by group, label and interval of the score; counts of clients can be added.

    Args:
        scores: Probabilities of class 1, ``[examples]``.
        labels: Labels 0 and 1, ``[examples]``.
        groups: Group of each example, from 0, ``[examples]``.
        num_groups: Number of groups.
        bins: Number of intervals of equal width in ``[0, 1]``.

    Raises:
        ValueError: If values are out of range.

    Examples:
        >>> count_scores([0.1, 0.9, 0.8], [0, 1, 0], [0, 0, 1], num_groups=2, bins=2).tolist()
        [[[1, 0], [0, 1]], [[0, 1], [0, 0]]]
    """
    checks.positive_int("num_groups", num_groups)
    checks.positive_int("bins", bins)
    bin_ids = _bin(scores, bins)
    index = as_codes("groups", groups, num_groups), as_codes("labels", labels, 2), bin_ids
    if len({len(values) for values in index}) > 1:
        raise ValueError(
            f"scores, labels and groups of {len(bin_ids)}, {len(index[1])} and {len(index[0])} "
            "examples: expected equal numbers; pass one of each per example."
        )
    counts = np.zeros((num_groups, 2, bins), np.int64)
    np.add.at(counts, index, 1)
    return counts


def fit_thresholds(
    counts: Any, constraint: Constraint = "demographic_parity", grid: int = 1000
) -> GroupThresholds:
    """Fits the thresholds with the highest accuracy at equal rates of all groups.

    Args:
        counts: Numbers by `count_scores` of held-out examples, such as validation examples.
        constraint: The rate that is equal: of prediction 1 among all people
            (``"demographic_parity"``), or among people with label 1 (``"equal_opportunity"``).
        grid: Number of steps between the compared rates 0 and 1.

    Raises:
        ValueError: If a group has no people that the rate counts.

    Examples:
        >>> scores, labels = np.arange(8) / 8, [0, 0, 1, 1, 0, 0, 1, 1]
        >>> fitted = fit_thresholds(count_scores(scores, labels, [0] * 4 + [1] * 4, 2, bins=8))
        >>> fitted.predict(scores, [0] * 4 + [1] * 4).tolist()
        [0, 0, 1, 1, 0, 0, 1, 1]
    """
    checks.positive_int("grid", grid)
    selected, correct = select(counts, constraint)
    rates = selected / selected[:, :1]
    hulls = [upper_hull(x, y) for x, y in zip(rates, correct, strict=True)]
    steps = np.linspace(0, 1, grid + 1)
    total = sum(
        np.interp(steps, x[hull], y[hull]) for x, y, hull in zip(rates, correct, hulls, strict=True)
    )
    rate = float(steps[np.argmax(total)])
    mixtures = [reach(rate, x, hull) for x, hull in zip(rates, hulls, strict=True)]
    high, low, low_share = map(np.array, zip(*mixtures, strict=True))
    return GroupThresholds(rates.shape[1] - 1, high, low, low_share, rate)


def select(
    counts: Any, constraint: Constraint, *, by_client: bool = False
) -> tuple[Int[np.ndarray, "*clients groups cuts"], Int[np.ndarray, "*clients groups cuts"]]:
    """Counts people for each threshold, the index of the first interval with prediction 1.

    Args:
        counts: Numbers by `count_scores`, of each client or of all.
        constraint: As for `fit_thresholds`.
        by_client: Whether the first axis is of clients.

    Returns:
        People with prediction 1, among those that the rate counts; and correct predictions.

    Raises:
        ValueError: If an argument is invalid, or a group has no people that the rate counts.
    """
    checks.one_of("constraint", constraint, get_args(Constraint))
    counts = np.asarray(counts)
    ndim = 4 if by_client else 3
    if counts.ndim != ndim or counts.shape[-2] != 2 or not counts.size or (counts < 0).any():
        expected = "[groups, 2, bins]; pass the result of count_scores"
        if by_client:
            expected = (
                "[clients, groups, 2, bins]; stack the results of count_scores of the clients"
            )
        raise ValueError(f"counts of shape {counts.shape}: expected {expected}.")
    above = np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1]
    above = np.concatenate([above, np.zeros_like(above[..., :1])], axis=-1)
    correct = above[..., 1, :] + above[..., 0, :1] - above[..., 0, :]
    selected = sum_counted(above, constraint)
    people = selected[..., 0].sum(axis=0) if by_client else selected[..., 0]
    if len(empty := np.flatnonzero(people == 0)):
        who, where = COUNTED[constraint], " at any client" if by_client else ""
        raise ValueError(
            f"counts: {len(empty)} groups have no {who}{where}, first {empty[:5].tolist()}; "
            f"expected {who} in each group, for example by fewer sensitive features."
        )
    return selected, correct


def sum_counted(
    values: Shaped[np.ndarray, "*cells 2 columns"], constraint: Constraint
) -> Shaped[np.ndarray, "*cells columns"]:
    """Sums values by label over the labels that the rate of a constraint counts."""
    return values.sum(axis=-2) if constraint == "demographic_parity" else values[..., 1, :]


def reach(
    rate: float, x: Float[np.ndarray, " points"], hull: Int[np.ndarray, " vertices"]
) -> tuple[int, int, float]:
    """Returns the two thresholds that are mixed to reach a rate, and the share of the lower one."""
    place = max(int(np.searchsorted(x[hull], rate)), 1)
    start, end = x[hull[place - 1]], x[hull[place]]
    return int(hull[place - 1]), int(hull[place]), float((rate - start) / (end - start))


def mix(
    scores: Any,
    bins: int,
    high: Int[np.ndarray, " examples"],
    low: Int[np.ndarray, " examples"],
    low_share: Float[np.ndarray, " examples"],
) -> Float[np.ndarray, " examples"]:
    """Returns the probability of prediction 1 by two thresholds for each example."""
    bin_ids = _bin(scores, bins)
    return np.where(bin_ids >= high, 1 - low_share, 0.0) + np.where(bin_ids >= low, low_share, 0.0)


def upper_hull(
    x: Float[np.ndarray, " points"], y: Int[np.ndarray, " points"]
) -> Int[np.ndarray, " vertices"]:
    """Returns the vertices of the upper convex hull of points, by ascending x."""
    order = np.lexsort((y, x))
    order = order[np.append(np.diff(x[order]) > 0, True)]  # The highest of each x.
    hull: list[int] = []
    for point in order:
        while len(hull) > 1:
            first, last = hull[-2:]
            if (y[last] - y[first]) * (x[point] - x[first]) > (y[point] - y[first]) * (
                x[last] - x[first]
            ):
                break
            hull.pop()
        hull.append(int(point))
    return np.array(hull)


def _bin(scores: Any, bins: int) -> Int[np.ndarray, " examples"]:
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 1 or not ((scores >= 0) & (scores <= 1)).all():
        raise ValueError(
            f"scores of shape {scores.shape}: expected a probability of class 1 in [0, 1] for each "
            "example; pass one seed's, such as predict_proba(features)[seed, :, 1]."
        )
    return np.minimum((scores * bins).astype(np.int64), bins - 1)


def as_codes(name: str, values: Any, size: int) -> Int[np.ndarray, " examples"]:
    codes = np.asarray(values)
    if codes.ndim != 1 or codes.dtype.kind not in "biu" or not np.isin(codes, range(size)).all():
        raise ValueError(
            f"{name} of {codes.dtype} and shape {codes.shape}: expected an integer in [0, "
            f"{size - 1}] for each example; encode the values, for example by numpy.unique(values, "
            "return_inverse=True)."
        )
    return codes.astype(np.int64)
