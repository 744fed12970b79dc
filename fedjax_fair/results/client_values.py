"""Values of clients: summaries, and comparisons with reference methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_fair.metrics import fairness, performance
from fedjax_fair.metrics.quantities import tails
from fedjax_fair.results.datasets import by_model, final_metrics, method_of
from fedjax_fair.results.task_metrics import primary, sign
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "REFERENCE",
    "REFERENCES",
    "client_summaries",
    "client_summary",
    "has_loss_gaps",
    "loss_gaps",
    "share_worse_off",
]

Better = Literal["higher", "lower", "zero"]
Scale = Literal["ratio", "interval"]

_BETTER: dict[str, Better] = {"accuracy": "higher", "loss": "lower", "difference": "lower"}
"""Directions of variables without the attribute, by the end of their names."""


def client_summaries(
    dataset: xr.Dataset, name: str, better: Better | None = None, scale: Scale | None = None
) -> xr.Dataset:
    r"""Summarizes a variable over clients, without clients that have no value.

    Args:
        dataset: Results.
        name: A variable with the dimension ``client``, such as ``"test_loss"``.
        better: Which values are better; with ``"zero"``, values that are closer to 0. By default
            the attribute of the variable; of accuracies, losses and differences by their names.
        scale: ``"ratio"`` for values :math:`\ge 0` whose ratios have a meaning, ``"interval"`` for
            others. By default the attribute of the variable, or ``"ratio"`` if none is negative.

    Returns:
        In float32, over all dimensions but the client: ``<name>_mean_clients``, ``_minimum``,
        ``_maximum``, ``_worst_10pct`` and ``_best_10pct`` (means over a tenth of the clients; with
        ``"zero"`` of absolute values), ``_standard_deviation`` and ``_variance`` (divided by the
        number of clients); on a ratio scale also ``_gini``, ``_jain_index``, ``_entropy`` and
        ``_angle``, in degrees (`metrics.fairness.loss_angle`).

    Raises:
        ValueError: If the variable is none of clients, its direction is unknown, or a value on a
            ratio scale is negative.

    Examples:
        >>> import xarray as xr
        >>> losses = xr.Dataset({"test_loss": (("round", "client"), [[1.0, 3.0]])})
        >>> found = client_summaries(losses, "test_loss")
        >>> found.test_loss_gini.item(), found.test_loss_worst_10pct.item()
        (0.25, 3.0)
        >>> round(found.test_loss_angle.item(), 4)  # degrees
        26.5651
    """
    import xarray as xr

    of_clients = [str(each) for each, one in dataset.items() if "client" in one.dims]
    checks.one_of("name", name, tuple(of_clients))
    values = dataset[name].transpose(..., "client")
    about = values.attrs
    better = better or about.get("better") or _BETTER.get(name.rpartition("_")[2])
    if better is None:
        raise ValueError(
            f"better=None: {name} has no direction; use one of 'higher', 'lower' and 'zero'."
        )
    checks.one_of("better", better, ("higher", "lower", "zero"))
    is_negative = bool((values < 0).any())
    by_values: Scale = "interval" if is_negative else "ratio"
    chosen: Scale = about.get("scale", by_values) if scale is None else scale
    checks.one_of("scale", chosen, ("ratio", "interval"))
    if chosen == "ratio" and is_negative:
        raise ValueError(
            f"scale='ratio': {name} has the value {float(values.min()):.3g}, expected at least 0; "
            "use scale='interval'."
        )
    found = _functions(better, chosen, str(about.get("units", "1")))
    columns = _compiled(better, chosen)(jnp.asarray(values.values, jnp.float32))
    of_run, title = values.isel(client=0, drop=True), str(about.get("long_name", name))
    variables = {}
    for column, (suffix, (_, text, direction, unit)) in zip(columns, found.items(), strict=True):
        summary = of_run.copy(data=np.asarray(column))
        summary.attrs = {"long_name": f"{title}, {text}", "units": unit, "better": direction}
        variables[f"{name}_{suffix}"] = summary
    return xr.Dataset(variables)


def _functions(
    better: Better, scale: Scale, unit: str
) -> dict[str, tuple[Callable[..., jax.Array], str, Better, str]]:
    """Returns functions, descriptions, directions and units of summaries."""
    worst, best = tails(better)
    of_tail = "lower" if better == "zero" else better
    squared = "1" if unit == "1" else f"({unit})^2"
    found: dict[str, tuple[Callable[..., jax.Array], str, Better, str]] = {
        "mean_clients": (performance.mean_over_clients, "mean over clients", better, unit),
        "minimum": (jnp.nanmin, "smallest of all clients", better, unit),
        "maximum": (jnp.nanmax, "largest of all clients", better, unit),
        "worst_10pct": (worst, "mean of the worst 10% of clients", of_tail, unit),
        "best_10pct": (best, "mean of the best 10% of clients", of_tail, unit),
        "standard_deviation": (jnp.nanstd, "standard deviation over clients", "lower", unit),
        "variance": (jnp.nanvar, "variance over clients", "lower", squared),
    }
    if scale == "ratio":
        found |= {
            "gini": (fairness.gini, "Gini index over clients", "lower", "1"),
            "jain_index": (fairness.jain_index, "Jain's index over clients", "higher", "1"),
            "entropy": (fairness.entropy, "entropy of the clients' shares", "higher", "nat"),
            "angle": (fairness.loss_angle, "angle to equal values", "lower", "degree"),
        }
    return found


# Tables, figures and comparisons summarize the same variables again, without compiling again.
@cache
def _compiled(better: Better, scale: Scale) -> Callable[[jax.Array], tuple[jax.Array, ...]]:
    """Returns a function from values ``[..., clients]`` to each of the summaries."""
    functions = [function for function, *_ in _functions(better, scale, "1").values()]
    return jax.jit(jnp.vectorize(
        lambda run: tuple(function(run) for function in functions),
        signature=f"(n)->{','.join(['()'] * len(functions))}",
    ))  # fmt: skip


def client_summary(dataset: xr.Dataset, metric: str) -> xr.DataArray | None:
    """Returns the summary of that name of a variable of results; None if there is none.

    Examples:
        >>> import xarray as xr
        >>> losses = xr.Dataset({"test_loss": (("round", "client"), [[1.0, 3.0]])})
        >>> client_summary(losses, "test_loss_maximum").values.tolist()
        [3.0]
    """
    for suffix in _functions("lower", "ratio", "1"):
        name = metric.removesuffix(f"_{suffix}")
        if name != metric and name in dataset and "client" in dataset[name].dims:
            return client_summaries(dataset, name).get(metric)
    return None


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
