"""Comparisons of clients with reference methods: loss gaps, and shares of clients worse off.

The loss gap of a client is its loss less the loss that it reaches alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from fedjax_fair.results.client_summaries import client_summaries
from fedjax_fair.results.datasets import final_metrics
from fedjax_fair.results.model_names import method_of
from fedjax_fair.results.models import by_model
from fedjax_fair.results.task_metrics import primary, sign
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["REFERENCE", "REFERENCES", "has_loss_gaps", "loss_gaps", "share_worse_off"]

REFERENCE = "local_converged"
"""The method whose losses stand for the lowest ones."""

REFERENCES = ("local", "fine_tuned")
"""Methods that are hard to beat for every client (Wu et al., 2022, https://arxiv.org/abs/2206.13190;
Matsuda et al., 2022, https://arxiv.org/abs/2206.09262)."""

_MAX_SHARE = 0.1
"""Largest deviation of the references' errors relative to that of the gaps."""


def loss_gaps(
    dataset: xr.Dataset,
    reference: str = REFERENCE,
    split: Literal["test", "train", "validation"] = "test",
) -> xr.Dataset:
    r"""Computes the loss of each client less the last loss of a reference for the same client.

    The reference stands for the lowest loss :math:`L_k^*` of client k. If it has not converged, its
    error :math:`e_k \ge 0` is missing from the gap, and the standard deviation (SD) of gaps is
    wrong by up to the SD of these errors over clients. They are estimated by the change of the
    reference during the second half of its rounds. Errors that clients have in common change
    nothing but the level. Of test or validation examples a gap can be negative, where a client
    gains from federation.

    Args:
        dataset: Results of methods.
        reference: A method of these results, best with all clients in each round. Where it has
            personalized models, they count.
        split: Examples of the losses.

    Returns:
        ``loss_gap`` with axes ``[algorithm, seed, round, client]``, one entry of ``algorithm`` for
        every model of `by_model`, NaN for the reference and for clients without examples. Summaries
        over clients, with axes ``[algorithm, seed, round]``, are those of `client_summaries`, such
        as ``loss_gap_maximum`` and ``loss_gap_worst_10pct``.
        ``reference_change [seed]`` is the SD of estimated errors, NaN without an evaluation in the
        first half. The attribute ``note`` says whether the reference has converged: whether, in
        each run, this is at most 0.1 of the SD of the last gaps.

    Raises:
        ValueError: If the reference is no method of the results, or results lack these losses.

    References:
        Loss-gap parity: *EAGLE*, 2026, https://arxiv.org/abs/2603.29818

    Examples:
        >>> import xarray as xr
        >>> dims = ("algorithm", "seed", "round", "client")
        >>> losses = [[[[1.0, 0.8, 2.0]]], [[[0.4, 0.5, 0.9]]]]
        >>> names = {"algorithm": ["fedavg", "local_converged"], "round": [100]}
        >>> gaps = loss_gaps(xr.Dataset({"test_loss": (dims, losses)}, names))
        >>> gaps.loss_gap[0, 0, -1].values.round(2).tolist()
        [0.6, 0.3, 1.1]
        >>> gaps.note[-44:]
        'no evaluation shows whether it has converged'
    """
    checks.one_of("split", split, ("test", "train", "validation"))
    models = by_model(dataset)
    place = _reference_place(models, reference)
    name = f"{split}_loss"
    if name not in models:
        raise ValueError(f"{split=}: results have no {name}; use another split.")
    losses = models[name].transpose("algorithm", "seed", "round", "client")
    own = losses.isel(algorithm=place, drop=True)
    best = final_metrics(models[[name]])[name].isel(algorithm=place, drop=True)
    gaps = _of_others(losses - best, reference)
    rounds = own["round"].values[own.notnull().any(["seed", "client"]).values]
    last = int(rounds[-1]) if rounds.size else 0
    change = _change(own, rounds)

    kind = {"train": "Training"}.get(split, split.capitalize())
    about = f"{kind} loss less that of {reference} for the same client"
    attributes = {"long_name": about, "units": losses.attrs.get("units", "nat")}
    # Gaps of test examples may be negative.
    attributes |= {"better": "lower", "scale": "interval"}
    found = gaps.assign_attrs(attributes).to_dataset(name="loss_gap")
    found = found.assign(client_summaries(found, "loss_gap"))
    found["reference_change"] = change
    deviation = final_metrics(found[["loss_gap_standard_deviation"]])
    ratio = (change / deviation["loss_gap_standard_deviation"]).max()
    text = f"{about} after {last:,} rounds"
    if not change.notnull().any():
        text += "; no evaluation shows whether it has converged"
    else:
        half = _half(rounds)
        text += (
            f". Between rounds {half:,} and {last:,} this loss changed by up to "
            f"{float(change.max()):.2g} (SD over clients), {float(ratio):.2g} of the SD of gaps: "
        )
        text += (
            "it has converged"
            if float(ratio) <= _MAX_SHARE
            else f"above {_MAX_SHARE:g}, so that it has not converged and gaps are uncertain; "
            "train it for more rounds"
        )
    found.attrs = {"reference": reference, "rounds": last, "note": text}
    return found


def has_loss_gaps(dataset: xr.Dataset) -> bool:
    """Returns whether results of methods have losses of `REFERENCE` and of other methods.

    Examples:
        >>> import xarray as xr
        >>> has_loss_gaps(xr.Dataset(coords={"algorithm": ["fedavg", "local_converged"]}))
        False
    """
    methods = {method_of(str(name)) for name in np.atleast_1d(dataset["algorithm"].values)}
    return "test_loss" in dataset and REFERENCE in methods and len(methods) > 1


def _half(rounds: np.ndarray) -> int:
    """Returns the last evaluation in the first half of training; 0 if there is none."""
    return int(max((each for each in rounds if each <= rounds[-1] / 2), default=0))


def _change(losses: xr.DataArray, rounds: np.ndarray) -> xr.DataArray:
    """Returns the SD over clients of the change in the second half, by seed."""
    if not rounds.size or not (half := _half(rounds)):
        return losses.isel(round=-1, drop=True).std("client") * np.nan
    first, last = (losses.sel(round=each, drop=True) for each in (half, rounds[-1]))
    return (first - last).std("client")


def share_worse_off(dataset: xr.Dataset, reference: str) -> xr.DataArray:
    """Returns the share of clients that are served worse than with a reference.

    The comparison is in the primary quantity, such as the test accuracy.

    Args:
        dataset: Results of methods.
        reference: A method of these results. Where it has personalized models, they count.

    Returns:
        The share after the last round, in ``[0, 1]``, over clients with test examples, with axes
        ``[algorithm, seed]``: one entry for every model of `by_model`, NaN for the reference.

    Raises:
        ValueError: If the reference is no method of the results.

    Examples:
        >>> import xarray as xr
        >>> dims = ("algorithm", "seed", "round", "client")
        >>> accuracy = [[[[0.5, 0.9, 0.7]]], [[[0.6, 0.8, 0.7]]]]
        >>> values = {"test_accuracy": (dims, accuracy)}
        >>> runs = xr.Dataset(values, {"algorithm": ["fedavg", "local"]})
        >>> round(float(share_worse_off(runs, "local")[0, 0]), 2)
        0.33
    """
    models = by_model(dataset)
    place = _reference_place(models, reference)
    quantity = primary(models)
    values = sign(quantity) * final_metrics(models[[quantity.client]])[quantity.client]
    own = values.isel(algorithm=place, drop=True)
    worse = (values < own).where(values.notnull() & own.notnull()).mean("client")
    return _of_others(worse, reference).transpose("algorithm", "seed")


def _reference_place(models: xr.Dataset, reference: str) -> int:
    """Returns the position of the models of a method that serve its clients, in `by_model`."""
    names = [str(name) for name in models["algorithm"].values]
    if reference not in map(method_of, names):
        raise ValueError(f"{reference=}: expected a method of the results: {', '.join(names)}.")
    # Personalized models follow the global ones.
    return max(i for i, name in enumerate(names) if method_of(name) == reference)


def _of_others(values: xr.DataArray, reference: str) -> xr.DataArray:
    """Returns values of all models but those of the reference, which are NaN."""
    is_other = [method_of(str(name)) != reference for name in values["algorithm"].values]
    return values.where(values["algorithm"].copy(data=is_other))
