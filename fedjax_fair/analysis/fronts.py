"""Pareto fronts: settings that no other one surpasses in accuracy and in fairness."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from fedjax_fair.results.comparison import with_client_summaries
from fedjax_fair.results.datasets import configurations_as_methods, final_metrics
from fedjax_fair.results.formats import Table, format_mean, format_number
from fedjax_fair.results.task_metrics import better, primary, scale
from fedjax_fair.utils import checks
from fedjax_fair.utils.terminal import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Dominance", "dominance", "front", "front_table"]

_MAX_ROWS = 20


class Dominance(NamedTuple):
    """Test of one method as fairer than another and not less accurate, over paired seeds.

    Attributes:
        p: P value of both together, the larger one (intersection-union test).
        p_accuracy: That accuracy is not inferior by the margin, one-sided.
        p_unfairness: That unfairness is lower, one-sided.
    """

    p: float
    p_accuracy: float
    p_unfairness: float


def front(
    results: xr.Dataset,
    accuracy: str | None = None,
    unfairness: str | None = None,
    *,
    reference: tuple[float, float] | None = None,
) -> xr.Dataset:
    """Returns the Pareto front of methods, or of the settings of a sweep, for each seed.

    A point dominates another one if it is not worse in both measures and better in one. Choose
    settings by metrics of validation examples, such as ``"validation_accuracy_mean_clients"``: the
    best points on test examples are so by chance.

    Args:
        results: Results of one or several methods, or of a sweep, after the last evaluation.
        accuracy: Metric of performance, as for `results.compare`; by default the mean of what
            clients are measured by.
        unfairness: Metric of which less is fairer, such as ``"test_loss_gini"``; by default the
            dissimilarity of clients.
        reference: Accuracy and unfairness of the point up to which the hypervolume counts; by
            default the worst of all methods and seeds.

    Returns:
        ``accuracy`` and ``unfairness`` of each ``algorithm`` and ``seed``; ``is_front``;
        ``hypervolume`` of each seed, the area that the front dominates within the reference;
        ``attainment`` of each seed and ``level``, the best accuracy with at most this unfairness,
        NaN without such a point; and ``share``, the share of seeds in which a method is on the
        front. Points that are not finite are on no front.

    Raises:
        ValueError: If a metric is missing, has no direction, or more of the second one is better.

    Examples:
        >>> import xarray as xr
        >>> dims = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {
        ...         "accuracy_mean_clients": (dims, [[[0.84]], [[0.83]], [[0.82]]]),
        ...         "client_dissimilarity": (dims, [[[0.18]], [[0.1]], [[0.2]]]),
        ...     },
        ...     {"algorithm": ["fedavg", "ditto", "local"], "seed": [0]},
        ... )
        >>> found = front(runs)
        >>> found.is_front.values.ravel().tolist(), float(found.hypervolume[0].round(4))
        ([True, True, False], 0.0012)
    """
    import xarray as xr

    quantity = primary(results)
    names = accuracy or quantity.mean, unfairness or quantity.dissimilarity
    results = with_client_summaries(results, *names)
    sign, _ = (_direction(results, name) for name in names)
    if _direction(results, names[1]) != -1:
        raise ValueError(
            f"unfairness={names[1]!r}: expected a metric of which less is better; choose one such "
            f"as {quantity.spread!r}."
        )
    needed = [*dict.fromkeys([*names, quantity.mean])]
    finals = final_metrics(configurations_as_methods(results[needed]))
    level, gap = (
        finals[name].transpose("algorithm", "seed").values.astype(float) for name in names
    )
    level = sign * level
    is_known = np.isfinite(level) & np.isfinite(gap)
    level, gap = np.where(is_known, level, -np.inf), np.where(is_known, gap, np.inf)
    if reference is None:
        worst = np.min(level[is_known], initial=np.inf), np.max(gap[is_known], initial=-np.inf)
    else:
        worst = sign * reference[0], reference[1]
    by_seed = list(zip(level.T, gap.T, strict=True))
    is_front = is_known & np.stack([_is_front(*points) for points in by_seed], axis=1)
    levels = np.unique([*gap[is_front], np.max(gap[is_known], initial=0.0)])
    attained = np.where(gap[..., None] <= levels, level[..., None], -np.inf).max(axis=0)
    dims = ("algorithm", "seed")
    return xr.Dataset(
        {
            "accuracy": (
                dims, np.where(is_known, sign * level, np.nan),
                {"metric": names[0], "sign": sign, "scale": scale(results, names[0])},
            ),
            "unfairness": (
                dims, np.where(is_known, gap, np.nan),
                {"metric": names[1], "scale": scale(results, names[1])},
            ),
            "is_front": (dims, is_front),
            "share": ("algorithm", is_front.mean(axis=1)),
            "hypervolume": ("seed", [_area(*points, worst) for points in by_seed]),
            "attainment": (
                ("seed", "level"), np.where(np.isfinite(attained), sign * attained, np.nan)
            ),
        },
        {"algorithm": finals["algorithm"], "seed": finals["seed"], "level": levels},
        {"reference": [float(sign * worst[0]), float(worst[1])]},
    )  # fmt: skip


def dominance(points: xr.Dataset, method: str, other: str, margin: float = 0.0) -> Dominance:
    """Tests whether a method is fairer than another one and not less accurate, over paired seeds.

    Choose both beforehand: p values of points that were chosen on the same seeds are too small.

    Args:
        points: Result of `front`.
        method: One of its methods.
        other: Another one.
        margin: Accuracy is not inferior if it is at most this much worse.

    Raises:
        ValueError: If a method is unknown, the margin is negative or there is one seed only.

    Examples:
        >>> import xarray as xr
        >>> dims, one, other = ("algorithm", "seed", "round"), [[0.8], [0.81]], [[0.81], [0.82]]
        >>> runs = xr.Dataset(
        ...     {
        ...         "accuracy_mean_clients": (dims, [one, other]),
        ...         "client_dissimilarity": (dims, [[[0.2], [0.3]], [[0.1], [0.1]]]),
        ...     },
        ...     {"algorithm": ["fedavg", "ditto"], "seed": [0, 1]},
        ... )
        >>> round(dominance(front(runs), "ditto", "fedavg").p_unfairness, 3)
        0.102
    """
    from scipy import stats

    checks.non_negative("margin", margin)
    if points.sizes["seed"] < 2:
        raise ValueError("points with one seed: expected two or more; run several seeds.")
    names = [str(name) for name in points["algorithm"].values]
    for argument, name in (("method", method), ("other", other)):
        checks.one_of(argument, name, tuple(names))
    chosen = points.isel(algorithm=[names.index(name) for name in (method, other)])
    gains = (
        points["accuracy"].attrs["sign"] * (chosen["accuracy"][0] - chosen["accuracy"][1]).values
        + margin
    )
    drops = (chosen["unfairness"][1] - chosen["unfairness"][0]).values
    tests: Any = [stats.ttest_1samp(each, 0, alternative="greater") for each in (gains, drops)]
    p_values = [float(test.pvalue) for test in tests]
    return Dominance(max(p_values), *p_values)


def front_table(points: xr.Dataset) -> Table:
    """Returns a table of methods or settings, those on the front of most seeds first.

    Args:
        points: Result of `front`.
    """
    order = np.lexsort((points["unfairness"].mean("seed").values, -points["share"].values))
    shown = points.isel(algorithm=order[:_MAX_ROWS])
    columns = [shown[name] for name in ("accuracy", "unfairness")]
    factors = [column.attrs["scale"] for column in columns]
    rows = [
        (
            escape_control_chars(str(name)),
            *(
                format_mean(factor * column.values[place], 1 if factor == 100 else 3)
                for factor, column in zip(factors, columns, strict=True)
            ),
            f"{100 * float(shown['share'][place]):.0f}%",
        )
        for place, name in enumerate(shown["algorithm"].values)
    ]
    names = [column.attrs["metric"] for column in columns]
    headings = [
        f"{name}{', %' if factor == 100 else ''}"
        for name, factor in zip(names, factors, strict=True)
    ]
    level, gap = (format_number(value, ".3g") for value in points.attrs["reference"])
    note = (
        f"Mean ± half of the 95% CI over {points.sizes['seed']} seeds, after the last round. A "
        "method is on the front of a seed if no other one is at least as good in both and better "
        "in one. "
        f"Hypervolume up to {names[0]} {level} and {names[1]} {gap}: "
        f"{format_mean(points['hypervolume'].values, 5)}."
    )
    total = points.sizes["algorithm"]
    title = f"Front of {total} methods or settings"
    title += f", the first {_MAX_ROWS}" if total > _MAX_ROWS else ""
    return Table(title, ("method", *headings, "on the front"), rows, note)


def _direction(results: xr.Dataset, name: str) -> int:
    """Returns 1 if more of a metric is better, else -1."""
    if name not in results:
        close = difflib.get_close_matches(name, map(str, results), n=1, cutoff=0.5)
        raise ValueError(
            f"metric={name!r}: expected a variable of the results; choose one of them, such as "
            f"{(close or [primary(results).mean])[0]!r}."
        )
    direction = better(results, name)
    if direction not in ("higher", "lower"):
        raise ValueError(f"metric={name!r}: expected one of which more or less is better.")
    return 1 if direction == "higher" else -1


def _is_front(
    level: Float[np.ndarray, " points"], gap: Float[np.ndarray, " points"]
) -> Bool[np.ndarray, " points"]:
    """Returns which points no other one dominates, of levels (more is better) and gaps."""
    at_least = (level[:, None] >= level) & (gap[:, None] <= gap)
    is_better = (level[:, None] > level) | (gap[:, None] < gap)
    return np.logical_not(np.any(at_least & is_better, axis=0, keepdims=True))[0]


def _area(level: Any, gap: Any, worst: tuple[float, float]) -> float:
    """Returns the area that points dominate within the worst point."""
    area, best = 0.0, worst[0]
    for place in np.argsort(gap, kind="stable"):
        if level[place] > best and gap[place] < worst[1]:
            area += (level[place] - best) * (worst[1] - gap[place])
            best = level[place]
    return float(area)
