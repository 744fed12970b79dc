"""Summaries over clients of any value that results have for each client."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_fair.metrics import fairness, performance
from fedjax_fair.metrics.quantities import tails
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["client_summaries", "client_summary"]

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
