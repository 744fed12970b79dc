"""Thresholds of clients and sensitive groups for trained models, and their effect on test examples.

Thresholds are fitted on validation examples, where both constraints hold. On test examples gaps
differ by chance, which noise floors show.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from fedjax_fair.data import ClientExamples, FederatedData
from fedjax_fair.metrics.group_fairness import difference, intersection_codes
from fedjax_fair.metrics.group_noise import expected_difference, expected_largest
from fedjax_fair.metrics.local_global_thresholds import (
    ClientThresholds,
    fit_local_global_thresholds,
)
from fedjax_fair.metrics.thresholds import COUNTED, Constraint, count_scores, sum_counted
from fedjax_fair.results.formats import Table, format_mean
from fedjax_fair.results.sensitive_groups import group_names
from fedjax_fair.training.fit_result import FitResult
from fedjax_fair.utils.terminal import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["PostProcessed", "group_rates_table", "post_process", "post_processing_table"]

_GAPS = {
    "global_gap": "global\ngap",
    "local_gap_mean": "local gap\nmean",
    "local_gap_maximum": "local gap\nlargest",
}
"""Headings of gaps."""


class PostProcessed(NamedTuple):
    """Thresholds and their effect.

    Attributes:
        thresholds: Of each seed.
        dataset: ``accuracy``, ``global_gap``, ``local_gap_mean`` and ``local_gap_maximum`` (over
            clients with two groups) with axes ``[seed, part, predictions]``: of validation and test
            examples, by the model and by thresholds, in expectation over random predictions;
            ``client_gap`` also with the axis ``client``; ``rate`` also with the axis ``group``, of
            all people of a group; the noise floors ``global_gap_floor``, ``local_gap_mean_floor``
            and ``local_gap_maximum_floor [seed, part]``; and ``people [seed, part, client,
            group]``, the numbers that rates count.
    """

    thresholds: list[ClientThresholds]
    dataset: xr.Dataset


class _People(NamedTuple):
    scores: Float[np.ndarray, " people"]
    labels: np.ndarray
    groups: np.ndarray
    clients: np.ndarray


def post_process(
    fitted: FitResult,
    data: FederatedData,
    constraint: Constraint = "demographic_parity",
    *,
    max_global_gap: float = np.inf,
    max_local_gap: float = np.inf,
    features: Sequence[str] | None = None,
    personalized: bool = False,
    bins: int = 1000,
) -> PostProcessed:
    """Fits thresholds of clients and groups on validation examples, and measures them on test ones.

    Args:
        fitted: Models with two classes, from `fedjax_fair.fit` or `fedjax_fair.load_model`.
        data: The data of the run, with validation examples and sensitive features.
        constraint: As for `fedjax_fair.metrics.local_global_thresholds`.
        max_global_gap: Largest difference of the groups' rates among all people.
        max_local_gap: Largest difference of the groups' rates at each client.
        features: Sensitive features whose combinations are the groups; by default all.
        personalized: Whether each client has the scores of its personalized model.
        bins: Number of intervals of scores.

    Raises:
        ValueError: If the data has no validation examples, sensitive features or two classes, or
            other partitions than one for each seed; or as `fit_local_global_thresholds`.

    Examples:
        >>> import pandas as pd
        >>> import fedjax_fair as ff
        >>> rng = np.random.default_rng(0)
        >>> sex, town = rng.integers(0, 2, (2, 2000))
        >>> hours = rng.normal(40 + 6 * sex, 8)
        >>> table = pd.DataFrame({"hours": hours, "sex": sex, "town": town})
        >>> table["salary"] = hours + 4 * town + rng.normal(0, 6, 2000) > 45
        >>> data = ff.data.from_table(table, label="salary", client="town",
        ...                           sensitive_features=["sex"], validation_fraction=0.3)
        >>> method = ff.Round(ff.models.logistic(2), ff.selectors.Full(),
        ...                   ff.solvers.SGD(0.1, 50, epochs=2), ff.aggregators.Mean())
        >>> found = post_process(ff.fit(method, data, rounds=5), data, max_local_gap=0.05)
        >>> float(found.thresholds[0].local_gaps.max().round(6))
        0.05
    """
    import xarray as xr

    seeds = fitted.dataset["seed"].values
    codes = _check(data, features, len(seeds))
    groups = group_names(list(codes.values()))
    sizes = data.num_clients, len(groups)
    thresholds, values = [], defaultdict(list)
    for run in range(len(seeds)):
        of_run, own = _of_run(fitted, run), data.partition(run)
        assert own.validation is not None
        parts = [
            _scored(of_run, own, part, codes, personalized) for part in (own.validation, own.test)
        ]
        counts = _count_scores(parts[0], sizes, bins)
        found = fit_local_global_thresholds(counts, constraint, max_global_gap, max_local_gap)
        thresholds.append(found)
        for part in parts:
            people = part.scores, part.groups, part.clients
            for chosen in (part.scores >= 0.5, found.probabilities(*people)):
                counts = _count(part, np.asarray(chosen, float), sizes)
                for name, value in _measure(constraint, counts).items():
                    values[name].append(value)
            drawn = _count(part, found.predict(*people).astype(float), sizes).astype(np.int64)
            values["people"].append(sum_counted(drawn, constraint).sum(axis=-1))
            everyone, local = drawn.sum(axis=0), expected_difference(constraint, drawn, draws=100)
            values["global_gap_floor"].append(expected_difference(constraint, everyone))
            values["local_gap_mean_floor"].append(_over_clients(np.mean, local))
            largest = expected_largest(constraint, drawn, draws=100)
            values["local_gap_maximum_floor"].append(largest)
    by_part, by_predictions = ("seed", "part"), ("seed", "part", "predictions")
    dims: dict[str, tuple[str, ...]] = {f"{name}_floor": by_part for name in _GAPS}
    dims |= {"client_gap": (*by_predictions, "client"), "rate": (*by_predictions, "group")}
    dims["people"] = (*by_part, "client", "group")
    lengths = {"seed": len(seeds), "part": 2, "predictions": 2}
    lengths |= {"client": data.num_clients, "group": len(groups)}
    variables: dict[str, Any] = {}
    for name, each in values.items():
        own_dims = dims.get(name, by_predictions)
        variables[name] = own_dims, np.reshape(each, [lengths[dim] for dim in own_dims])
    coordinates = {
        "seed": seeds,
        "part": ["validation", "test"],
        "predictions": ["model", "thresholds"],
        "group": groups,
    }
    if data.client_names is not None:
        coordinates["client"] = list(data.client_names)
    about = {"data": data.name, "constraint": constraint, "features": ", ".join(codes)}
    about |= {"max_global_gap": max_global_gap, "max_local_gap": max_local_gap}
    return PostProcessed(thresholds, xr.Dataset(variables, coordinates, about))


def post_processing_table(dataset: xr.Dataset) -> Table:
    """Returns a table of the effect of thresholds.

    Args:
        dataset: Result of `post_process`.
    """
    columns = {"accuracy": "accuracy"} | _GAPS
    rows = []
    for part in dataset["part"].values:
        for predictions in dataset["predictions"].values:
            own = dataset.sel(part=part, predictions=predictions)
            cells = [format_mean(100 * own[name].values) for name in columns]
            means = own["client_gap"].mean("seed")
            if means.notnull().any():
                worst = means.argmax("client").item()
                name = own["client"].values[worst] if "client" in own.coords else worst
                fewest = int(_fewest(own["people"].isel(client=worst), ["seed", "group"]))
                cells[-1] += f"\n{escape_control_chars(str(name))} ({fewest:,})"
            rows.append((f"{predictions}, {part}", *cells))
    floors = dataset.sel(part="test")
    cells = [f"{100 * float(floors[f'{name}_floor'].mean()):.1f}" for name in _GAPS]
    rows.append(("noise floor, test", "", *cells))
    limits = (
        f"{100 * dataset.attrs[f'max_{kind}_gap']:.3g} ({kind})"
        for kind in ("global", "local")
        if np.isfinite(dataset.attrs[f"max_{kind}_gap"])
    )
    bounds = " and ".join(limits)
    criterion = dataset.attrs["constraint"].replace("_", " ")
    features = escape_control_chars(dataset.attrs["features"])
    gaps = dataset["client_gap"].sel(part="test")
    defined = int(gaps.notnull().any(["seed", "predictions"]).sum())
    note = (
        f"In %, differences of {features} in {criterion}; mean ± half of the 95% CI over "
        f"{dataset.sizes['seed']} seeds. Thresholds are fitted on validation examples, "
        f"{f'with gaps of at most {bounds}' if bounds else 'without bounds of gaps'}. Local: "
        f"{defined:,} of {dataset.sizes['client']:,} clients, those with test examples of two "
        "groups; below the largest gap, its client, and the number of people of its smallest "
        "group. Noise floor: gap expected from finite groups if all had equal rates."
    )
    title = f"Thresholds of clients and groups ({escape_control_chars(dataset.attrs['data'])})"
    return Table(title, ("predictions", *columns.values()), rows, note)


def group_rates_table(dataset: xr.Dataset) -> Table:
    """Returns a table of the rates of groups, and of the numbers of people that they count.

    Args:
        dataset: Result of `post_process`.
    """
    parts = dataset["part"].values
    rates = 100 * dataset["rate"].sel(part="test", drop=True)
    rows = []
    for group in dataset["group"].values:
        of_group = dataset["people"].sel(group=group)
        numbers = [
            f"{float(of_part.sum('client').mean('seed')):,.0f}\n"
            f"{_fewest(of_part, ['seed', 'client']):,.0f}"
            for of_part in (of_group.sel(part=part) for part in parts)
        ]
        own = [format_mean(each.values) for each in rates.sel(group=group).transpose(..., "seed")]
        rows.append((escape_control_chars(str(group)), *numbers, *own))
    who = COUNTED[dataset.attrs["constraint"]]
    note = (
        f"Numbers of {who}: in the first line of all clients, in the second of the client with the "
        f"fewest of those that have any. Rates: share with prediction 1 of these {who}, test "
        f"examples of all clients, in %; mean ± half of the 95% CI over {dataset.sizes['seed']} "
        "seeds."
    )
    features = escape_control_chars(dataset.attrs["features"])
    columns = (*(f"people\n{part}" for part in parts), "rate\nmodel", "rate\nthresholds")
    return Table(f"Rates by {features}", (features, *columns), rows, note)


def _fewest(people: xr.DataArray, over: list[str]) -> float:
    """Returns the least number of people, where there are any; 0 if there are none."""
    fewest = people.where(people > 0).min(over)
    return float(fewest.fillna(0))


def _check(data: FederatedData, features: Sequence[str] | None, num_seeds: int) -> dict[str, Any]:
    """Returns the chosen sensitive features by name."""
    if data.validation is None:
        raise ValueError(
            "data has no validation examples: expected some to fit thresholds on; train with "
            "validation_fraction=0.2 (--data.validation-fraction 0.2)."
        )
    if data.sensitive_names is None:
        raise ValueError(
            "data has no sensitive features: expected some; name columns by sensitive_features."
        )
    if data.num_classes != 2:
        raise ValueError(
            f"data with {data.num_classes} classes: expected two, because thresholds are of two "
            "classes; combine them to a favorable one and others."
        )
    if data.num_partitions not in (None, num_seeds):
        raise ValueError(
            f"data with {data.num_partitions} partitions: expected one for each of {num_seeds} "
            "seeds; pass the data of the run."
        )
    known = {each.name: each for each in data.sensitive_names}
    chosen = list(known) if features is None else list(features)
    if not chosen or not set(chosen) <= set(known):
        raise ValueError(f"features={chosen}: expected some of {list(known)}.")
    return {name: known[name] for name in known if name in chosen}


def _of_run(fitted: FitResult, run: int) -> FitResult:
    """Returns the models of one seed."""
    models = fitted.personalized
    return fitted._replace(
        variables=jax.tree.map(lambda leaf: leaf[run : run + 1], fitted.variables),
        rounds=fitted.rounds[run : run + 1],
        personalized=models and (lambda _, client: models(run, client)),
    )


def _scored(
    fitted: FitResult,
    data: FederatedData,
    part: ClientExamples,
    features: dict[str, Any],
    personalized: bool,
) -> _People:
    """Returns scores, labels, groups and clients of the people of a part."""
    rows = part.client_indices
    together = np.concatenate(rows)
    if personalized:
        scores = [
            fitted.predict_proba(part.features[own], client=client)[0, :, 1]
            for client, own in enumerate(rows)
            if len(own)
        ]
        scores = np.concatenate(scores)
    else:
        scores = fitted.predict_proba(part.features[together])[0, :, 1]
    names = [each.name for each in data.sensitive_names or ()]
    assert part.sensitive_features is not None
    codes = np.asarray(part.sensitive_features)[together]
    codes = codes[:, [names.index(name) for name in features]]
    groups = intersection_codes(codes, [len(each.values) for each in features.values()])
    clients = np.repeat(np.arange(len(part.sizes)), part.sizes)
    return _People(scores, np.asarray(part.labels)[together], np.asarray(groups), clients)


def _count_scores(people: _People, sizes: tuple[int, int], bins: int) -> np.ndarray:
    """Counts people by client, group, label and interval of the score."""
    cells = np.ravel_multi_index((people.clients, people.groups), sizes)
    counts = count_scores(people.scores, people.labels, cells, math.prod(sizes), bins)
    return counts.reshape(*sizes, *counts.shape[1:])


def _count(
    people: _People, chosen: Float[np.ndarray, " people"], sizes: tuple[int, int]
) -> Float[np.ndarray, "clients groups 2 2"]:
    """Counts people by client, group, label and prediction, which may be a probability."""
    counts = np.zeros((*sizes, 2, 2))
    cells = np.ravel_multi_index((people.clients, people.groups, people.labels), (*sizes, 2))
    for predicted, shares in enumerate((1 - chosen, chosen)):
        totals = np.bincount(cells, shares, minlength=counts[..., 0].size)
        counts[..., predicted] = totals.reshape(*sizes, 2)
    return counts


def _measure(constraint: Constraint, counts: Float[np.ndarray, "clients groups 2 2"]) -> Any:
    local = np.asarray(difference(constraint, counts), np.float64)
    counted = sum_counted(counts.sum(axis=0), constraint)
    people = counted.sum(axis=-1)
    return {
        "accuracy": np.trace(counts.sum(axis=(0, 1))) / counts.sum(),
        "client_gap": local,
        "rate": np.where(people > 0, counted[:, 1] / np.maximum(people, 1), np.nan),
        "global_gap": float(difference(constraint, counts.sum(axis=0))),
        "local_gap_mean": _over_clients(np.mean, local),
        "local_gap_maximum": _over_clients(np.max, local),
    }


def _over_clients(summary: Callable[..., Any], gaps: Float[np.ndarray, " clients"]) -> float:
    """Summarizes the gaps of clients that have one; NaN if none has."""
    known = gaps[~np.isnan(gaps)]
    return float(summary(known)) if known.size else np.nan
