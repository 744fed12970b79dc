"""Results of methods after the operations that federated averaging takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["at_round"]


def at_round(dataset: xr.Dataset, at: float) -> xr.Dataset | None:
    """Returns results after a number of rounds, which may lie between two evaluations.

    Numbers are linear in the logarithm of the round. After the last evaluation they stay.

    Args:
        dataset: Results over ``round``, with the evaluation before training.
        at: Number of rounds, such as the rounds of the budget divided by the operations of a round
            relative to those of FedAvg.

    Returns:
        Results without ``round``; None if there is no model within so few rounds: they end before
        the first evaluation after training.
    """
    rounds = dataset["round"].values
    if at < rounds[1]:
        return None
    high = min(int(np.searchsorted(rounds, at)), len(rounds) - 1)
    before, after = (dataset.isel(round=place, drop=True) for place in (max(1, high - 1), high))
    if high == 1 or at >= rounds[high]:
        return after
    weight = math.log(at / rounds[high - 1]) / math.log(rounds[high] / rounds[high - 1])
    return after.assign(
        {
            name: before[name] + weight * (values - before[name])
            for name, values in after.data_vars.items()
            if "round" in dataset[name].dims and values.dtype.kind in "iuf"
        }
    )
