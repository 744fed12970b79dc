"""Rankings of methods, with groups of methods that are not separated statistically."""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.benchmark import statistics
from fedjax_fair.benchmark.statistics import OVERALL, differences, seed_means
from fedjax_fair.metrics import paired
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["groups", "ranking"]


def ranking(
    measures: pd.DataFrame, measure: str, criterion: str, *, baseline: str = "fedavg"
) -> pd.DataFrame:
    """Ranks methods overall and per federation.

    Two methods are separated if the paired t test by seed is significant after adjustment for all
    pairs of methods of the scope (Holm).

    Args:
        measures: Table of measures.
        measure: A measure of the table.
        criterion: Criterion that selected the settings.
        baseline: Method that scales a federation by its standard deviation over seeds.

    Returns:
        A row per scope (``overall`` or a federation) and method, the best first: ``rank`` from 1;
        and ``letters`` of the groups: methods that have a letter in common are not separated.
        Overall, only methods that ran wherever the baseline did are ranked; the others come last,
        with rank NaN and no letters.

    Raises:
        ValueError: For an unknown measure, baseline or criterion, and fewer than two seeds.
    """
    import pandas as pd

    runs: Any = statistics.select(measures, measure, criterion)
    methods = statistics.methods_of(runs)
    checks.one_of("baseline", baseline, methods)
    sign = statistics.direction(measure)
    scales = statistics.scales_of(runs, baseline)
    gaps = {name: differences(runs, name, baseline, scales) for name in methods}
    with_baseline = {federation for federation, method in runs.index if method == baseline}
    whole = runs[runs.index.get_level_values("federation").isin(with_baseline)]
    means = {
        name: sign * float(np.mean(seed_means(gaps[name]))) if gaps[name].size else np.nan
        for name in statistics.methods_of(whole)
    }
    complete = {
        name: mean for name, mean in means.items() if set(gaps[baseline]) <= set(gaps[name])
    }
    tables = [_scope(whole, OVERALL, complete, scales)]
    for federation, own in runs.groupby(level="federation", sort=False):
        means = {method: sign * float(values.mean()) for (_, method), values in own.iterrows()}
        tables.append(_scope(own, federation, means, None))
    return pd.concat(tables, ignore_index=True)


def _scope(runs: Any, scope: str, means: dict[str, float], scales: Any) -> Any:
    """Ranks the methods that have a mean."""
    import pandas as pd

    ranked = [name for name, mean in means.items() if not np.isnan(mean)]
    ranked.sort(key=lambda name: -means[name])
    letters = groups(ranked, _separated(runs, ranked, scales))
    others = [name for name in statistics.methods_of(runs) if name not in ranked]
    return pd.DataFrame(
        {
            "scope": scope,
            "method": [*ranked, *others],
            "rank": [*range(1, len(ranked) + 1), *[np.nan] * len(others)],
            "letters": [letters.get(name, "") for name in (*ranked, *others)],
        }
    ).astype({"rank": float})


def _separated(runs: Any, methods: Sequence[str], scales: Any) -> set[frozenset[str]]:
    """Returns the pairs of methods that are separated."""
    pairs = list(itertools.combinations(methods, 2))
    gaps = [seed_means(differences(runs, *pair, scales)) for pair in pairs]
    adjusted = paired.holm([paired.interval(one).p for one in gaps], len(pairs))
    return {
        frozenset(pair)
        for pair, p, one in zip(pairs, adjusted, gaps, strict=True)
        if p < statistics.LEVEL and len(one) >= statistics.MIN_SEEDS
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
