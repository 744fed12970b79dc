"""Rankings of methods, with groups of methods that are not separated statistically."""

from __future__ import annotations

import itertools
import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.benchmark import measure_table, statistics
from fedjax_fair.benchmark.fairer import OVERALL
from fedjax_fair.metrics import paired

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["groups", "ranking"]


def ranking(
    measures: pd.DataFrame,
    measure: str,
    criterion: str,
    *,
    baseline: str = "fedavg",
    constants: Mapping[tuple[str, str], float] | None = None,
) -> pd.DataFrame:
    """Ranks methods overall and per federation.

    Two methods are separated if the paired t test by seed is significant after adjustment for all
    pairs of methods of the scope (Holm).

    Args:
        measures: Table of measures.
        measure: A measure of the table.
        criterion: Criterion that selected the settings.
        baseline: Method that scales a federation by its standard deviation over seeds, and that
            the differences are taken to.
        constants: Values of the constant predictor by federation and measure, which replace
            those of diverged runs.

    Returns:
        A row per scope (``overall`` or a federation) and method, the best first: ``rank`` from 1;
        ``mean`` over seeds, NaN overall; ``scaled_difference``, the mean difference to the
        baseline in its standard deviations; ``group``, letters of the groups: methods that have a
        letter in common are not separated; and ``federations``, the number of federations. Overall,
        only methods that ran wherever the baseline did are ranked; the others come last, with rank
        NaN and no group.

    Raises:
        ValueError: For an unknown measure, baseline or criterion, and fewer than two seeds.
    """
    import pandas as pd

    runs = measure_table.select(measures, measure, criterion, constants)
    measure_table.check_method("baseline", baseline, runs)
    sign = measure_table.direction(measure)
    with_baseline = {k: v for k, v in runs.values.items() if baseline in v.index}
    whole = runs._replace(values=with_baseline)
    tables = [_scope(whole, OVERALL, baseline, sign)]
    tables += [
        _scope(runs._replace(values={k: v}), k, baseline, sign) for k, v in runs.values.items()
    ]
    return pd.concat(tables, ignore_index=True)


def _scope(runs: measure_table.Runs, scope: str, baseline: str, sign: int) -> pd.DataFrame:
    import pandas as pd

    scaled = {name: _scaled(runs, name, baseline) for name in runs.methods}
    required = _scaled(runs, baseline, baseline).federations
    means = dict.fromkeys(runs.methods, np.nan)
    if scope == OVERALL:
        order_by = {name: _mean(found.gaps) for name, found in scaled.items()}
    else:
        means = {name: float(row.mean()) for name, row in runs.values[scope].iterrows()}
        order_by, required = means, ()
    complete = [
        name
        for name in runs.methods
        if set(required) <= set(scaled[name].federations) and not np.isnan(order_by[name])
    ]
    complete.sort(key=lambda name: -sign * order_by[name])
    letters = groups(complete, _separated(runs, complete, baseline, scope == OVERALL))
    others = [name for name in runs.methods if name not in complete]
    return pd.DataFrame(
        {
            "scope": scope,
            "method": name,
            "rank": float(complete.index(name) + 1) if name in complete else np.nan,
            "mean": means[name],
            "scaled_difference": _mean(scaled[name].gaps),
            "group": letters.get(name, ""),
            "federations": len(scaled[name].federations),
        }
        for name in [*complete, *others]
    )


def _scaled(runs: measure_table.Runs, method: str, baseline: str) -> statistics.Paired:
    return statistics.paired_by_seed(runs, method, baseline, baseline)


def _mean(gaps: np.ndarray) -> float:
    return float(np.mean(statistics.seed_means(gaps))) if gaps.size else np.nan


def _separated(
    runs: measure_table.Runs, methods: Sequence[str], baseline: str, is_scaled: bool
) -> set[frozenset[str]]:
    """Returns the pairs of methods that are separated."""
    pairs = list(itertools.combinations(methods, 2))
    p_values, counts = [], []
    for first, second in pairs:
        gaps = statistics.paired_by_seed(runs, first, second, baseline, is_scaled=is_scaled).gaps
        p_values.append(paired.interval(statistics.seed_means(gaps)).p)
        counts.append(gaps.shape[1])
    adjusted = paired.holm(p_values, len(pairs))
    return {
        frozenset(pair)
        for pair, p, count in zip(pairs, adjusted, counts, strict=True)
        if p < statistics.LEVEL and count >= statistics.MIN_SEEDS
    }


def groups(methods: Sequence[str], separated: set[frozenset[str]]) -> dict[str, str]:
    """Assigns letters so that two methods share one exactly if they are not separated.

    A letter is a maximal set of methods without a separated pair (compact letter display).

    Args:
        methods: Methods, the best first.
        separated: Pairs of methods that are separated.

    Returns:
        Letters by method; the letters of the best method come first. After ``z`` follow ``A``
        to ``Z``, and then ``a1``.

    Examples:
        >>> groups(["ditto", "divfl", "fedavg"], {frozenset(["ditto", "fedavg"])})
        {'ditto': 'a', 'divfl': 'ab', 'fedavg': 'b'}
    """
    neighbors = {
        name: {o for o in methods if o != name and frozenset((name, o)) not in separated}
        for name in methods
    }
    rank = {name: position for position, name in enumerate(methods)}
    cliques = sorted(sorted(rank[name] for name in one) for one in _cliques(neighbors))
    letters = dict.fromkeys(methods, "")
    for index, clique in enumerate(cliques):
        repeat, position = divmod(index, len(string.ascii_letters))
        letter = string.ascii_letters[position] + (str(repeat) if repeat else "")
        for position in clique:
            letters[methods[position]] += letter
    return letters


def _cliques(neighbors: dict[str, set[str]]) -> list[set[str]]:
    """Finds all maximal cliques (Bron and Kerbosch, 1973, with pivots)."""
    found = []

    def extend(clique: set[str], candidates: set[str], excluded: set[str]) -> None:
        if not candidates and not excluded:
            found.append(clique)
            return
        pivot = max(candidates | excluded, key=lambda name: len(neighbors[name] & candidates))
        for name in candidates - neighbors[pivot]:
            near = neighbors[name]
            extend(clique | {name}, candidates & near, excluded & near)
            candidates, excluded = candidates - {name}, excluded | {name}

    if neighbors:
        extend(set(), set(neighbors), set())
    return found
