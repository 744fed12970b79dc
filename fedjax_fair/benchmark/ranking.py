"""Order of the methods of a track: mean ranks over federations and blocks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_fair.benchmark.protocol import MEGABYTES, STOPPED
from fedjax_fair.benchmark.statistics import direction, rows_of, select

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CHANCE_SPREAD",
    "ORDERS",
    "UNTESTED",
    "Order",
    "chance_shares",
    "mean_ranks",
    "order",
    "ranks",
]


class Order(NamedTuple):
    """An order of methods: by which measure, with settings selected by which criterion."""

    measure: str
    criterion: str


ORDERS = {
    "accuracy": Order("accuracy", "mean"),
    "spread": Order("standard_deviation", "fairest"),
    "compute": Order("accuracy", "compute"),
    MEGABYTES: Order("accuracy", MEGABYTES),
    STOPPED: Order("accuracy", STOPPED),
}
"""Orders of a track by name: accuracy, standard deviation over clients, accuracy at equal compute,
accuracy at equal megabytes, and accuracy after the round that is best on validation examples of
each run."""

UNTESTED = ("compute", MEGABYTES)
"""Orders without p values."""

CHANCE_SPREAD: Mapping[str, tuple[str, ...]] = {
    "embedded": ("digits", "groups"),
    "standard": ("mnist_cnn",),
}
"""Federations by track in which chance explains more than half of FedAvg's variance over clients.

Their spread enters no rank and no claim (rule I4 of the protocol).
"""


def chance_shares(measures: pd.DataFrame, baseline: str) -> dict[str, float]:
    """Returns which share of the baseline's variance over clients chance explains, by federation.

    It is the mean square of the deviation by chance divided by that of the measured deviation, over
    blocks, with settings of the highest mean accuracy.
    """
    runs: Any = measures[
        (measures["method"] == baseline) & (measures["criterion"] == ORDERS["accuracy"].criterion)
    ]
    squares = (runs["value"] ** 2).groupby([runs["measure"], runs["federation"]], sort=False)
    means = squares.mean()
    if "noise_floor" not in means:
        return {}
    return (means["noise_floor"] / means["standard_deviation"]).dropna().to_dict()


def ranks(
    measures: pd.DataFrame, measure: str, criterion: str, reference: Collection[str]
) -> pd.DataFrame:
    """Ranks the methods of each federation in each block among the methods of a reference set.

    Equal values have the mean of their ranks. A diverged or missing run is last. Other methods than
    those of the reference set change no rank.

    Args:
        measures: Table of measures. Where a method ran with other criteria only, it is last.
        measure: A measure of the table.
        criterion: Criterion that selected the settings.
        reference: Methods.

    Returns:
        A row per federation and method, with a column per block; 1 is the best rank. Blocks that no
        method of a federation has are NaN.

    Raises:
        ValueError: As `statistics.select`.

    Examples:
        >>> import pandas as pd
        >>> run = {"federation": "digits", "criterion": "mean", "measure": "accuracy"}
        >>> run |= {"is_diverged": False}
        >>> table = pd.DataFrame(
        ...     run | {"method": method, "seed": 1200 + block, "value": value}
        ...     for method, values in {"fedavg": [0.5, 0.5], "ditto": [0.7, 0.5]}.items()
        ...     for block, value in enumerate(values)
        ... )
        >>> ranks(table, "accuracy", "mean", ["fedavg", "ditto"]).loc["digits", "ditto"].tolist()
        [1.0, 1.5]
    """
    import pandas as pd

    units: Any = measures.loc[measures["measure"] == measure, ["federation", "method"]]
    kept = measures.assign(value=measures["value"].mask(measures["is_diverged"].astype(bool)))
    # Federations of which the criterion has no run have no rank.
    runs: Any = select(kept, measure, criterion)
    units = units[units["federation"].isin(runs.index.get_level_values("federation"))]
    runs = runs.reindex(pd.MultiIndex.from_frame(units.drop_duplicates()))
    parts = []
    for _, own in runs.groupby(level="federation", sort=False):
        levels = direction(measure) * own.to_numpy()
        is_run = ~np.isnan(levels).all(axis=0)
        levels = np.nan_to_num(levels, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        is_reference = own.index.get_level_values("method").isin(list(reference))
        others = levels[is_reference, None]
        better = np.sum(others > levels, axis=0)
        equal = np.sum(others == levels, axis=0) - is_reference[:, None]
        rank = np.where(is_run, 1 + better + equal / 2, np.nan)
        parts.append(pd.DataFrame(rank, own.index, own.columns))
    return pd.concat(parts)


def mean_ranks(ranks: pd.DataFrame) -> pd.DataFrame:
    """Returns the mean of `ranks` over federations by method, in blocks that all of them have."""
    table: Any = ranks
    means = table.groupby(level="method", sort=False).mean()
    return means.loc[:, table.notna().all()]


def order(
    measures: pd.DataFrame,
    reference: Collection[str],
    *,
    without_spread: Collection[str] = (),
    at_limit: Collection[tuple[str, str]] = (),
) -> dict[str, pd.DataFrame]:
    """Ranks the methods of a track in each of `ORDERS` that the table has values of.

    Only methods that ran on all federations, and whose settings are at no limit of a range, are
    ranked, and only these methods of the reference set count.

    Args:
        measures: Table of measures of all federations of the track.
        reference: Methods among which all methods are ranked.
        without_spread: Federations that do not count in the order by spread.
        at_limit: Federations and methods whose settings are at the limit of a range.

    Returns:
        Tables of `ranks` of the ranked methods by order; without any, no table.
    """
    whole: Any = measures
    federations = whole.groupby("method", sort=False)["federation"].nunique()
    complete = federations.index[federations == whole["federation"].nunique()]
    limited = {method for _, method in at_limit}
    ranked = [name for name in complete if name not in limited]
    table = whole[whole["method"].isin(ranked)]
    found = {}
    for name, (measure, criterion) in ORDERS.items():
        own = table[~table["federation"].isin(list(without_spread))] if name == "spread" else table
        values = rows_of(own, measure, criterion)
        values = values[~values["is_diverged"].astype(bool)].dropna(subset="value")
        if values["seed"].nunique() > 1:
            found[name] = ranks(own, measure, criterion, set(ranked) & set(reference))
    return found
