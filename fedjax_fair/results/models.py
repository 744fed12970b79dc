"""Results by model: the global and the personalized models of a method as two methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.results.datasets import combine
from fedjax_fair.results.model_names import MARK
from fedjax_fair.roles import PERSONALIZED

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["by_model"]


def by_model(results: xr.Dataset, *, serving: bool = False) -> xr.Dataset:
    """Separates global and personalized models, as entries of ``algorithm``.

    ``ditto`` is followed by ``ditto (personalized)``, whose metrics have the names of those of
    global models. Methods without a global model have one entry. Results without personalized
    models are unchanged.

    Args:
        results: Results of methods, also of a sweep, or of a single method.
        serving: Whether to omit the global models of methods with personalized ones, so that
            each method has the entry of the models that serve the clients.

    Examples:
        >>> import xarray as xr
        >>> dims = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {
        ...         "accuracy_mean_clients": (dims, [[[0.5]], [[0.6]]]),
        ...         "personalized_accuracy_mean_clients": (dims, [[[float("nan")]], [[0.7]]]),
        ...     },
        ...     {"algorithm": ["fedavg", "ditto"]},
        ... )
        >>> by_model(runs)["algorithm"].values.tolist()
        ['fedavg', 'ditto', 'ditto (personalized)']
        >>> by_model(runs).accuracy_mean_clients.values.ravel().tolist()
        [0.5, 0.6, 0.7]
    """
    import xarray as xr

    own = [str(name) for name in results if str(name).startswith(PERSONALIZED)]
    if not own:
        return results
    if "algorithm" not in results.dims:
        name = str(results["algorithm"].values) if "algorithm" in results.coords else "run"
        results = combine({name: results.drop_vars("algorithm", errors="ignore")})
    models = results.drop_vars(own)
    counterparts = {name: name.removeprefix(PERSONALIZED) for name in own}
    personalized = models.assign(
        {
            other: results[name].assign_attrs(models[other].attrs if other in models else {})
            for name, other in counterparts.items()
        }
    )
    # Personalized models have no values of classes and of a central test set.
    for name in [name for name in models if str(name).startswith(("class_accuracy", "central_"))]:
        personalized[name] = models[name] * np.nan
    parts: list[xr.Dataset] = []
    for i, name in enumerate(map(str, results["algorithm"].values)):
        has_own = any(_is_measured(results, name, i) for name in own)
        has_global = any(_is_measured(models, name, i) for name in counterparts.values())
        if not has_own or (has_global and not serving):
            parts.append(models.isel(algorithm=[i]))
        if has_own:
            part = personalized.isel(algorithm=[i])
            parts.append(part.assign_coords(algorithm=[f"{name}{MARK}"]))
    return xr.concat(
        parts, "algorithm", data_vars="minimal", coords="minimal", compat="override",
        join="override", combine_attrs="override",
    )  # fmt: skip


def _is_measured(results: xr.Dataset, name: str, method: int) -> bool:
    return name in results and bool(results[name].isel(algorithm=method).notnull().any())
