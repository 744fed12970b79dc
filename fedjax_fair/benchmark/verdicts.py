"""Verdicts: in what methods differ from a baseline, and which of them are fairer.

Claims are of three families, each with adjusted p values (`statistics.step_down`):

- F1: ranks over all federations, in accuracy and in spread;
- F2: accuracy and spread of each federation;
- F3: gaps between sensitive groups, of methods of group fairness.

F1 and F2 are repeated with the round of each run chosen on validation examples ("stopped"), so that
claims on accuracy name whether they depend on the rounds. Other measures are described by
intervals, and have no verdict.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.benchmark import ranking, statistics
from fedjax_fair.benchmark.protocol import PARITY, STOPPED
from fedjax_fair.benchmark.ranking import ORDERS
from fedjax_fair.benchmark.statistics import LEVEL, MARGIN, OVERALL, direction
from fedjax_fair.metrics import paired

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "DESCRIBED", "FAMILIES", "NO_VERDICT", "differences", "overall"]
__all__ += ["statements", "undecided", "with_baseline"]

_FAIREST = ORDERS["spread"].criterion
_GAPS = ("demographic_parity_difference", "equal_opportunity_difference")
FAMILIES = {
    "F2": (ORDERS["accuracy"], ORDERS["spread"]),
    STOPPED: (ORDERS[STOPPED], ranking.Order("standard_deviation", STOPPED)),
    "F3": tuple(ranking.Order(measure, PARITY) for measure in _GAPS),
}
"""Measures and criteria of the families of differences; F1 is of ranks in those of F2."""

DESCRIBED = (
    ranking.Order("accuracy", _FAIREST),
    *(ranking.Order(name, _FAIREST) for name in ("worst_10pct", "gini")),
    *(ranking.Order(name, "mean") for name in ("loss", "unseen_accuracy", "unseen_worst_10pct")),
    *(ranking.Order(name, "mean") for name in _GAPS),
    *(ORDERS[name] for name in ranking.UNTESTED),
)
"""Measures and criteria without verdict."""

NO_VERDICT = ""
COLUMNS = {
    "differences": (
        "family", "federation", "method", "measure", "criterion", "blocks", "difference",
        "deviation", "se_blocks", "se_pool", "low_blocks", "high_blocks", "low", "high", "p",
        "p_equivalent", "verdict", "is_noninferior", "blocks_needed",
    ),
    "overall": (
        "order", "method", "rank", "beaten", "blocks", "difference", "deviation", "low", "high",
        "p", "verdict", "blocks_needed", "spread_ratio", "accuracy_difference", "accuracy_low",
        "is_fairer", "is_robust",
    ),
}  # fmt: skip
"""Columns of tables, also where nothing can be compared."""


def differences(
    measures: pd.DataFrame,
    baseline: str,
    *,
    pool_errors: pd.DataFrame | None = None,
    without_spread: Collection[str] = (),
    at_limit: Collection[tuple[str, str]] = (),
) -> pd.DataFrame:
    """Compares all other methods with a baseline on each federation.

    Args:
        measures: Table of measures.
        baseline: A method of the table. In F3 it has the settings of ``mean`` where it has none of
            ``parity``.
        pool_errors: Standard errors ``se`` of differences by the test pool, with the columns
            ``federation``, ``method``, ``criterion`` and ``measure``.
        without_spread: Federations whose spread has no verdict.
        at_limit: Federations and methods whose settings are at the limit of a range.

    Returns:
        A row per family, measure, criterion, federation and method, with the columns of
        `statistics.estimate`; ``p``, adjusted for the family; ``verdict``: "better" or "worse" than
        the baseline (p below 0.05), "equivalent" (``p_equivalent`` below 0.05), "undecided",
        "limit" (worse, with settings at a limit), or none; ``is_noninferior``, whether the 95%
        interval is better than minus the margin; and ``blocks_needed`` of an undecided row, to find
        a difference of the margin with probability 0.8 in this family.

    Raises:
        ValueError: As `statistics.select`.
    """
    import pandas as pd

    parts = []
    for family, tests in {**FAMILIES, "": DESCRIBED}.items():
        gaps = {
            (measure, criterion): statistics.differences(
                with_baseline(measures, criterion, baseline), measure, criterion, baseline
            )
            for measure, criterion in tests
            if _has(measures, measure, criterion)
        }
        gaps = {key: table for key, table in gaps.items() if len(table)}
        if not gaps:
            continue
        names: Any = ["measure", "criterion"]
        whole: Any = pd.concat(gaps, names=names)
        se_pool = _errors(whole.index, pool_errors)
        rows: Any = statistics.estimate(whole, se_pool).reset_index()
        is_judged = _is_judged(rows, family, without_spread)
        tested = statistics.step_down(whole.to_numpy()[is_judged], se_pool[is_judged])
        rows = rows.assign(family=family, p=np.nan)
        rows.loc[is_judged, "p"] = tested.p
        parts.append(_judge(rows, is_judged, baseline, tested.threshold, at_limit))
    columns = list(COLUMNS["differences"])
    if not parts:
        return pd.DataFrame(columns=columns)
    table: Any = pd.concat(parts, ignore_index=True)
    return table[columns]


def _has(measures: Any, measure: str, criterion: str) -> bool:
    return bool(statistics.rows_of(measures, measure, criterion)["value"].notna().any())


def with_baseline(measures: pd.DataFrame, criterion: str, baseline: str) -> pd.DataFrame:
    """Adds runs of the baseline with settings of ``mean`` to those of a criterion that it lacks."""
    import pandas as pd

    table: Any = measures
    is_baseline = table["method"] == baseline
    if (is_baseline & (table["criterion"] == criterion)).any():
        return table
    used = table[is_baseline & (table["criterion"] == ORDERS["accuracy"].criterion)]
    return pd.concat([used.assign(criterion=criterion), table], ignore_index=True)


def _errors(index: Any, pool_errors: Any) -> np.ndarray:
    if pool_errors is None or not len(pool_errors):
        return np.full(len(index), np.nan)
    return pool_errors.set_index(index.names)["se"].reindex(index).to_numpy(float)


def _is_judged(rows: Any, family: str, without_spread: Collection[str]) -> np.ndarray:
    is_chance = rows["federation"].isin(list(without_spread))
    is_chance &= rows["measure"] == ORDERS["spread"].measure
    return ((rows["blocks"] > 1) & (family != "") & ~is_chance).to_numpy()


def _judge(
    rows: Any,
    is_judged: np.ndarray,
    baseline: str,
    threshold: float,
    at_limit: Collection[tuple[str, str]],
) -> Any:
    signs = rows["measure"].map(direction)
    gain, limited = signs * rows["difference"], set(at_limit)
    # The worse side of a claim is at a limit.
    sides = np.where(gain < 0, rows["method"], baseline)
    units = zip(rows["federation"], sides, strict=True)
    is_limited = np.array([unit in limited for unit in units], bool)
    has_margin = rows["family"].isin(["F2", STOPPED])
    is_found = rows["p"] < LEVEL
    verdict = np.select(
        [~is_judged, is_found & is_limited, is_found,
         has_margin & (rows["p_equivalent"] < LEVEL)],
        [NO_VERDICT, "limit", np.where(gain > 0, "better", "worse"), "equivalent"],
        "undecided",
    )  # fmt: skip
    worst = np.where(signs > 0, rows["low"], -rows["high"])
    needed = [
        statistics.blocks_needed(row.deviation, MARGIN, threshold, row.se_pool)
        if row.verdict == "undecided"
        else np.nan
        for row in rows.assign(verdict=verdict).itertuples()
    ]
    return rows.assign(verdict=verdict, is_noninferior=worst > -MARGIN, blocks_needed=needed)


def overall(
    measures: pd.DataFrame,
    baseline: str,
    reference: Collection[str],
    differences: pd.DataFrame,
    *,
    pool_errors: pd.DataFrame | None = None,
    without_spread: Collection[str] = (),
    at_limit: Collection[tuple[str, str]] = (),
) -> pd.DataFrame:
    """Orders the methods of a track, and compares their ranks with that of a baseline (F1).

    Args:
        measures: Table of measures of all federations of the track.
        baseline: A method of the table.
        reference: Methods among which all methods are ranked.
        differences: Table of `differences` of the same measures.
        pool_errors: As for `differences`.
        without_spread: As for `differences`.
        at_limit: As for `differences`.

    Returns:
        A row per order (`ranking.ORDERS`) and ranked method, the best first: ``rank``, the mean
        over federations and blocks; ``beaten``, the share of other reference methods that are
        beaten; ``difference`` of the rank to that of the baseline, with its 95% interval from
        ``low`` to ``high`` over blocks; ``p`` and ``verdict`` ("better", "worse", "undecided"),
        except at equal compute and megabytes; ``blocks_needed`` of an undecided row, to find a
        difference of one rank. In the order by spread: ``spread_ratio``, the spread divided by that
        of the baseline (geometric mean over federations); ``accuracy_difference``, the mean over
        federations of the difference in accuracy with the same settings, and its limit
        ``accuracy_low``;
        ``is_fairer``, whether the rank is better, accuracy is not inferior, and the spread of no
        federation is worse; and ``is_robust``, whether the rank differences have the same sign in
        worst 10% and Gini, without any one federation, and with rounds chosen for all.

    Raises:
        ValueError: As `statistics.select`.
    """
    import pandas as pd

    orders = ranking.order(measures, reference, without_spread=without_spread, at_limit=at_limit)
    means = {name: ranking.mean_ranks(ranks) for name, ranks in orders.items()}
    parts = []
    for name, ranks in means.items():
        gaps = ranks - ranks.loc[baseline] if baseline in ranks.index else np.nan * ranks
        rows: Any = statistics.estimate(gaps.drop(index=baseline, errors="ignore"))
        rows = rows[["blocks", "difference", "deviation", "low", "high"]]
        rank = ranks.mean(axis=1)
        others = len(set(ranks.index) & set(reference)) - rank.index.isin(list(reference))
        rows = rows.reindex(rank.index).assign(
            order=name, rank=rank, beaten=(others - (rank - 1)) / np.where(others, others, np.nan)
        )
        parts.append(rows.sort_values("rank", kind="stable").reset_index())
    columns = list(COLUMNS["overall"])
    if not parts:
        return pd.DataFrame(columns=columns)
    table: Any = pd.concat(parts, ignore_index=True)
    is_tested = ~table["order"].isin(ranking.UNTESTED) & (table["blocks"] > 1)
    # The last family is F1.
    for family in ((STOPPED, "spread"), ("accuracy", "spread")):
        is_own = is_tested & table["order"].isin(family)
        keys = table.loc[is_own, ["order", "method"]].itertuples(index=False)
        gaps = [means[name].loc[method] - means[name].loc[baseline] for name, method in keys]
        tested = statistics.step_down(pd.DataFrame(gaps).to_numpy())
        table.loc[is_own, "p"] = tested.p
    verdict = np.where(table["difference"] < 0, "better", "worse")
    verdict = np.where(table["p"] < LEVEL, verdict, "undecided")
    table["verdict"] = np.where(is_tested, verdict, NO_VERDICT)
    table["blocks_needed"] = [
        statistics.blocks_needed(row.deviation, 1.0, tested.threshold)
        if row.verdict == "undecided" and row.order != STOPPED
        else np.nan
        for row in table.itertuples()
    ]
    judged = _fairer(table, measures, baseline, reference, differences, pool_errors, without_spread)
    return judged[columns]


def _fairer(
    table: Any,
    measures: Any,
    baseline: str,
    reference: Collection[str],
    differences: Any,
    pool_errors: Any,
    without_spread: Collection[str],
) -> Any:
    """Adds the columns of the order by spread."""
    is_spread = table["order"] == "spread"
    table = table.assign(spread_ratio=np.nan, accuracy_difference=np.nan, accuracy_low=np.nan)
    table = table.assign(is_fairer=False, is_robust=False)
    if not (is_spread & (table["verdict"] != NO_VERDICT)).any():
        return table
    ranked = measures[measures["method"].isin(set(table["method"]))]
    accuracy = _mean_accuracy(ranked, baseline, pool_errors).reindex(table["method"])
    for name, column in (("accuracy_difference", "difference"), ("accuracy_low", "low")):
        table.loc[is_spread, name] = accuracy[column].to_numpy()[is_spread]
    own = ranked[~ranked["federation"].isin(list(without_spread))]
    spread: Any = statistics.select(own, *ORDERS["spread"]).mean(axis=1).unstack("method")
    ratio = np.exp(np.log(spread.div(spread[baseline], axis=0)).mean())
    table.loc[is_spread, "spread_ratio"] = table["method"].map(ratio)[is_spread]
    of_spread = differences[differences["measure"] == ORDERS["spread"].measure]
    is_worse = (of_spread["family"] == "F2") & (of_spread["verdict"] == "worse")
    opposed = set(of_spread.loc[is_worse, "method"])
    table["is_fairer"] = (
        is_spread
        & (table["verdict"] == "better")
        & (table["accuracy_low"] > -MARGIN)
        & ~table["method"].isin(opposed)
    )
    signs = _signs(own, baseline, reference)
    is_robust = np.array([signs.get(name, False) for name in table["method"]], bool)
    table["is_robust"] = table["is_fairer"] & is_robust
    return table


def _mean_accuracy(measures: Any, baseline: str, pool_errors: Any) -> Any:
    """Estimates the mean difference in accuracy over federations, with settings of `fairest`."""
    gaps: Any = statistics.differences(measures, "accuracy", _FAIREST, baseline)
    whole = gaps.assign(measure="accuracy", criterion=_FAIREST)
    whole = whole.set_index(["measure", "criterion"], append=True)
    errors = gaps[[]].assign(variance=np.nan_to_num(_errors(whole.index, pool_errors)) ** 2)
    by_method = errors.groupby(level="method", sort=False)["variance"]
    # Test pools of federations are independent.
    se_pool = np.sqrt(by_method.sum()) / by_method.size()
    means = gaps.groupby(level="method", sort=False).mean()
    return statistics.estimate(
        means.loc[:, gaps.notna().all()], se_pool.loc[means.index].to_numpy()
    )


def _signs(measures: Any, baseline: str, reference: Collection[str]) -> dict[str, bool]:
    """Returns which methods have better ranks in every table that robust methods agree in."""
    spread, criterion = ORDERS["spread"]
    tables = [(spread, criterion), ("worst_10pct", criterion), ("gini", criterion)]
    tables += [(spread, STOPPED)]
    if not all(_has(measures, *one) for one in tables):
        return {}
    agreed = []
    for one in tables:
        ranks: Any = ranking.ranks(measures, *one, reference)
        agreed.append(_better(ranks, baseline))
        if one == tables[0]:
            of_rows = ranks.index.get_level_values("federation")
            names = of_rows.unique()
            agreed += [_better(ranks[of_rows != name], baseline) for name in names]
    return {name: all(one.get(name, False) for one in agreed) for name in agreed[0]}


def _better(ranks: Any, baseline: str) -> dict[str, bool]:
    """Returns which methods have a better mean rank than the baseline, if there is a federation."""
    if not len(ranks):
        return {}
    means = ranking.mean_ranks(ranks).mean(axis=1)
    return (means < means[baseline]).to_dict()


def statements(ranks: pd.DataFrame, differences: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of `overall` and `differences` with a claim, first those of ranks.

    Equivalences of differences are adjusted over all rows of F2 (Holm), and left out if they do not
    hold then. The columns are those of both tables; ``scope``; and ``needs_last_round``, whether a
    verdict on accuracy is another one with the round of each run chosen on validation examples.
    """
    rows: Any = _joined(ranks, differences)
    p = np.where(rows["family"] == "F2", rows["p_equivalent"], np.nan)
    adjusted = np.where(rows["verdict"] == "equivalent", paired.holm(p.tolist()), np.nan)
    rows["p"] = np.where(rows["verdict"] == "equivalent", adjusted, rows["p"])
    of_ranks = ranks[ranks["order"] == STOPPED].assign(federation=OVERALL)
    of_accuracies: Any = differences[differences["measure"] == "accuracy"]
    stopped = {}
    for own in (of_ranks, of_accuracies[of_accuracies["family"] == STOPPED]):
        stopped |= own.set_index(["federation", "method"])["verdict"].to_dict()
    of_accuracy = (rows["order"] == "accuracy") | (rows["measure"] == "accuracy")
    units = zip(rows["scope"], rows["method"], rows["verdict"], strict=True)
    differs = [stopped.get((scope, name), verdict) != verdict for scope, name, verdict in units]
    rows["needs_last_round"] = of_accuracy & np.array(differs, bool)
    is_found = rows["verdict"].isin(("better", "worse")) | (adjusted < LEVEL)
    return rows[is_found].reset_index(drop=True)


def undecided(ranks: pd.DataFrame, differences: pd.DataFrame) -> pd.DataFrame:
    """Returns the undecided rows of `overall` and `differences`, first those of ranks."""
    rows: Any = _joined(ranks, differences)
    return rows[rows["verdict"] == "undecided"].reset_index(drop=True)


def _joined(ranks: Any, differences: Any) -> Any:
    """Returns the judged rows of both tables, of rounds that are not chosen."""
    import pandas as pd

    parts = [
        ranks[ranks["order"] != STOPPED].assign(family="F1", scope=OVERALL),
        differences[differences["family"] != STOPPED].assign(scope=differences["federation"]),
    ]
    columns = list(dict.fromkeys(name for part in parts for name in part))
    parts = [part[part["verdict"] != NO_VERDICT] for part in parts]
    found = [part for part in parts if len(part)]
    whole = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    return whole.reindex(columns=columns)
