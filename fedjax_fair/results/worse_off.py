"""Share of clients that a method serves worse than training without federation, or fine-tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.results.datasets import final_metrics
from fedjax_fair.results.model_names import method_of
from fedjax_fair.results.models import by_model
from fedjax_fair.results.task_metrics import primary, sign

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["REFERENCES", "reference_place", "share_worse_off"]

REFERENCES = ("local", "fine_tuned")
"""Methods that are hard to beat for every client (Wu et al., 2022, https://arxiv.org/abs/2206.13190;
Matsuda et al., 2022, https://arxiv.org/abs/2206.09262)."""


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
    place = reference_place(models, reference)
    quantity = primary(models)
    values = sign(quantity) * final_metrics(models[[quantity.client]])[quantity.client]
    own = values.isel(algorithm=place, drop=True)
    worse = (values < own).where(values.notnull() & own.notnull()).mean("client")
    is_reference = np.array(
        [method_of(str(name)) == reference for name in models["algorithm"].values]
    )
    return worse.where(~worse["algorithm"].copy(data=is_reference)).transpose("algorithm", "seed")


def reference_place(models: xr.Dataset, reference: str) -> int:
    """Returns the position of the models of a method that serve its clients, in `by_model`."""
    names = [str(name) for name in models["algorithm"].values]
    if reference not in map(method_of, names):
        raise ValueError(f"{reference=}: expected a method of the results: {', '.join(names)}.")
    # Personalized models follow the global ones.
    return max(i for i, name in enumerate(names) if method_of(name) == reference)
