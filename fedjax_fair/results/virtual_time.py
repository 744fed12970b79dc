"""Results at a virtual time, at which methods with rounds of different length are comparable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["at_common_time", "at_seconds", "check_one_kind", "when"]

_KIND = "is_asynchronous"


def at_seconds(dataset: xr.Dataset, seconds: float) -> xr.Dataset:
    """Returns the last evaluation of every run at or before a virtual time.

    Values are never interpolated: the model of a run is that of its last update.

    Args:
        dataset: Results with virtual time.
        seconds: The time, which all runs have reached.

    Returns:
        Results with one entry of ``round``, without coordinate, and the attribute ``at_seconds``.

    Raises:
        ValueError: If a method has no virtual time, or a run has ended before.

    Examples:
        >>> import xarray as xr
        >>> per_run = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {
        ...         "loss": (per_run, [[[3.0, 2.0, 1.0]], [[3.0, 2.5, 2.0]]]),
        ...         "virtual_time": (per_run, [[[0.0, 6.0, 12.0]], [[0.0, 5.0, 10.0]]]),
        ...     },
        ...     {"algorithm": ["fedavg", "fedbuff"]},
        ... )
        >>> at_seconds(runs, 10.0).loss.values.ravel().tolist()
        [2.0, 2.0]
    """
    checks.positive("at_seconds", seconds)
    lengths = _lengths(dataset, f"at_seconds={seconds:g}")
    if (least := lengths.min()) < seconds:
        name = lengths.where(lengths == least, drop=True)["algorithm"].values[0]
        raise ValueError(
            f"at_seconds={seconds:g}: a run of {name} has ended at {float(least)} virtual "
            "seconds; expected at most that, or train it for longer."
        )
    last = (dataset["virtual_time"] <= seconds).cumsum("round").argmax("round")
    dataset = dataset.drop_vars(["round", _KIND], errors="ignore")
    selected = dataset.isel(round=last.expand_dims("round", -1))
    return selected.assign_attrs(at_seconds=float(seconds))


def at_common_time(dataset: xr.Dataset) -> xr.Dataset:
    """Returns results at the last time that all runs have reached, if rounds are not comparable.

    Results of one kind of schedule are unchanged.
    """
    if _two_kinds(dataset) is None:
        return dataset
    return at_seconds(dataset, float(_lengths(dataset, "results").min()))


def when(dataset: xr.Dataset) -> str:
    """Returns when the last evaluation was, for a sentence."""
    seconds = dataset.attrs.get("at_seconds")
    return "after the last round" if seconds is None else f"at {seconds:g} virtual seconds"


def check_one_kind(dataset: xr.Dataset) -> None:
    """Raises a ``ValueError`` if a comparison by round would mix kinds of schedules."""
    if (names := _two_kinds(dataset)) is not None:
        raise ValueError(
            f"{' and '.join(names)} have rounds of different length; compare with --at-seconds T, "
            "or results.at_seconds(dataset, T)."
        )


def _lengths(dataset: xr.Dataset, what: str) -> xr.DataArray:
    """Returns the virtual time at the end of every run, over ``algorithm``."""
    if "algorithm" not in dataset.dims:
        dataset = dataset.drop_vars("algorithm", errors="ignore").expand_dims(algorithm=["run"])
    missing = dataset["algorithm"].values
    if "virtual_time" in dataset:
        lengths = dataset["virtual_time"].max("round")
        lengths = lengths.min([dim for dim in lengths.dims if dim != "algorithm"])
        if not (is_missing := np.isnan(lengths.values)).any():
            return lengths
        missing = missing[is_missing]
    raise ValueError(
        f"{what}: {', '.join(map(str, missing))} has no virtual time; expected methods with a "
        "schedule; train them with Round(..., schedule=schedules.Synchronous(times))."
    )


def _two_kinds(dataset: xr.Dataset) -> list[str] | None:
    """Returns the first method of each kind of schedule; None if there is one kind or none."""
    if _KIND not in dataset or "algorithm" not in dataset[_KIND].dims:
        return None
    kinds = dataset[_KIND].max([dim for dim in dataset[_KIND].dims if dim != "algorithm"])
    found = [kinds["algorithm"].values[kinds.values == kind] for kind in (0, 1)]
    return [str(names[0]) for names in found] if all(map(len, found)) else None
