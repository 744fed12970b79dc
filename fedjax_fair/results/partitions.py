"""Partitions of several results, joined over their seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.results.history import PARTITION_VARIABLES

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["join_partitions"]


def join_partitions(datasets: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Joins the variables that describe partitions.

    Args:
        datasets: Results by name.

    Returns:
        The variables. They have the dimension ``seed`` if a partition has it, with the seeds of
        all results; variables that some of the results lack are then omitted.

    Raises:
        ValueError: If results have different partitions for a common seed, or different ones
            without the dimension ``seed``.

    Examples:
        >>> import numpy as np, xarray as xr
        >>> examples = (("seed", "client", "class"), np.array([[[3, 1]], [[0, 4]]]))
        >>> runs = xr.Dataset({"test_examples": examples}, {"seed": [0, 1]})
        >>> later = runs.assign_coords(seed=[7, 8])
        >>> join_partitions({"one": runs, "other": later}).seed.values.tolist()
        [0, 1, 7, 8]
    """
    import xarray as xr

    columns = {}
    for name in PARTITION_VARIABLES:
        partitions = {label: one[name] for label, one in datasets.items() if name in one}
        if any("seed" in values.dims for values in partitions.values()):
            if len(partitions) < len(datasets):
                continue
            partitions = {
                label: values
                if "seed" in values.dims
                else values.expand_dims(seed=datasets[label]["seed"])
                for label, values in partitions.items()
            }
        if partitions:
            columns[name] = _join(name, partitions)
    return xr.Dataset(columns)


def _join(name: str, partitions: Mapping[str, xr.DataArray]) -> xr.DataArray:
    import xarray as xr

    joined, *_ = partitions.values()
    has_seeds = "seed" in joined.dims
    for label, values in partitions.items():
        common = np.intersect1d(values["seed"], joined["seed"]).tolist() if has_seeds else []
        values = values.transpose(*joined.dims)
        for place in [{"seed": seed} for seed in common] if has_seeds else [{}]:
            if not np.array_equal(values.sel(place), joined.sel(place), equal_nan=True):
                of_seed = f" for seed {place['seed']}" if place else ""
                raise ValueError(
                    f"{label}: results on another partition cannot be combined with the first "
                    f"ones; {name} differs{of_seed}. Use runs with equal settings and seed of the "
                    "data."
                )
        if has_seeds and len(common) < values.sizes["seed"]:
            is_new = ~np.isin(values["seed"], common)
            joined = xr.concat([joined, values.isel(seed=is_new)], "seed", join="override")
    return joined
