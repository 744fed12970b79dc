"""Tables of results as text cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedjax_fair.metrics import BY_NAME, group_fairness
from fedjax_fair.metrics.group_noise import expected_difference, expected_largest, known_mean
from fedjax_fair.metrics.quantities import ACCURACY
from fedjax_fair.results.client_values import (
    REFERENCE,
    REFERENCES,
    has_loss_gaps,
    loss_gaps,
    share_worse_off,
)
from fedjax_fair.results.comparison import (
    NOISE_FLOOR,
    STAR,
    about_references,
    default_metrics,
    differences,
    noise_floor,
)
from fedjax_fair.results.datasets import (
    MARK,
    at_common_time,
    by_model,
    configurations_as_methods,
    final_metrics,
    has_client_names,
    method_of,
    swept_settings,
    when,
)
from fedjax_fair.results.formats import Table, format_mean, format_number
from fedjax_fair.results.sensitive_groups import (
    describe_empty_cells,
    feature_counts,
    feature_names,
    gaps,
    range_of_groups,
    values_by_feature,
)
from fedjax_fair.results.task_metrics import (
    digits,
    primary,
    quantities,
    scale,
    sign,
    unit,
    validation,
)
from fedjax_fair.utils.terminal import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "GROUP_FLOOR",
    "add_central",
    "clients_table",
    "devices_table",
    "final_tables",
    "methods_table",
    "notes",
    "progress_table",
    "sensitive_group_tables",
    "sweep_columns",
    "unseen_tables",
]


def sweep_columns(dataset: xr.Dataset) -> dict[str, str]:
    """Returns the metrics in the table of a sweep that results have, and their headings."""
    quantity = primary(dataset)
    columns = {
        validation(quantity.mean): "validation",
        quantity.mean: quantity.heading,
        quantity.worst: "worst 10%",
        quantity.spread: "dispersion",
        quantity.dissimilarity: "dissimilarity",
    }
    return {name: heading for name, heading in columns.items() if name in dataset}


_MAX_OUTPUTS = 10
"""Targets in a table."""

_SENSITIVE_GROUPS = "In %, differences between sensitive groups, {when}; 0 is fair."
"""Units of tables of sensitive groups, and the direction of their values."""

_PER_CLIENT = (
    "First line: pooled people; second: mean over the clients for which it is defined; third: the "
    "client with the largest mean over seeds"
)
_LINES = {
    (True, True): f"{_PER_CLIENT}.",
    (True, False): f"{_PER_CLIENT}, missing where no client has the test examples of two groups.",
    (False, False): "Pooled people only: no client has the test examples of two groups.",
}
"""Lines of cells, by whether any and all columns have one of clients."""

GROUP_FLOOR = "Noise floor: difference expected from finite groups if all had equal rates."

_CELLS = (
    "Clients: number with a difference. Smallest cell: least number of test examples of a rate, "
    "and of one of these clients."
)


def final_tables(dataset: xr.Dataset) -> list[Table]:
    """Summarizes the last evaluation of methods and ground-truth groups, or of a sweep."""
    dataset = at_common_time(dataset)
    if swept_settings(dataset):
        return [_sweep_table(by_model(dataset, serving=True))]
    models = by_model(dataset)
    methods = _add_worse_off(methods_table(*default_metrics(models)), dataset)
    tables = [add_central(methods, models)]
    if "output" in models.dims:
        tables.append(_outputs_table(models))
    if has_loss_gaps(models):
        tables.append(_loss_gap_table(models))
    tables += unseen_tables(dataset)
    if primary(models).group in models:
        tables.append(_groups_table(models))
    if "device_class_of" in models:
        tables.append(devices_table(models))
    if has_client_names(models):
        tables.append(clients_table(models))
    return tables + sensitive_group_tables(models)


def notes(dataset: xr.Dataset) -> list[str]:
    """Returns sentences about privacy, Byzantine clients and frozen parameters, if any."""
    known = [dataset.attrs[name] for name in ("privacy", "byzantine") if name in dataset.attrs]
    if "frozen_parameters" not in dataset:
        return known
    parts = []
    for name in map(str, dataset["algorithm"].values):
        own = dataset.sel(algorithm=name)
        trained, frozen = own["trained_parameters"], own["frozen_parameters"]
        if frozen.notnull().any():
            share = 100 * trained / (trained + frozen)
            sent = own["bytes_up"].isel(round=-1) / 1e6
            parts.append(
                f"{name} trains {_range(trained, ',.0f')} and freezes {_range(frozen, ',.0f')} "
                f"({_range(share, '.3g')}% trained), and its clients sent {_range(sent, ',.3g')} MB"
            )
    return [*known, f"Parameters: {'; '.join(parts)}."]


def _range(values: xr.DataArray, style: str) -> str:
    """Formats the least and the largest value, which differ in a sweep."""
    ends = (format(float(end), style) for end in (values.min(), values.max()))
    return " to ".join(dict.fromkeys(ends))


def unseen_tables(dataset: xr.Dataset) -> list[Table]:
    """Shows how well unseen clients are served before and after local steps, if there are any.

    Methods are not separated `by_model`, because unseen clients have no personalized models.
    """
    quantity = primary(dataset)
    headings = {quantity.unseen: "before\nlocal steps", quantity.adapted: "after\nlocal steps"}
    if not headings.keys() <= set(dataset):
        return []
    columns = {heading: _means(dataset, name) for name, heading in headings.items()}
    number = dataset.sizes["unseen_client"]
    title = f"{quantity.description} of {number:,} unseen clients ({dataset.attrs['data']})"
    note = (
        f"{_in_units(dataset, headings)}, mean over clients that never train"
        f"{_about_means(dataset)}, with the last global "
        "model, before and after local steps of each client; -: no global model."
    )
    return [_table(title, dataset, columns, note)]


def sensitive_group_tables(dataset: xr.Dataset) -> list[Table]:
    """Shows sensitive groups by each sensitive feature and by all together, if there are any."""
    if "sensitive_group" not in dataset.coords:
        return []
    features: list[tuple[str, ...]] = [(name,) for name in feature_names(dataset)]
    if len(features) > 1:
        features.append(tuple(feature_names(dataset)))
    tables = []
    for names in features:
        has_counts = "sensitive_group_counts" in dataset
        pair = [_criterion_table(dataset, names)] if has_counts else []
        if (values := values_by_feature(dataset, primary(dataset).name, names)) is not None:
            pair.append(_parity_table(dataset, names, values))
        # What the user asked for comes first.
        tables += pair if primary(dataset) == ACCURACY else pair[::-1]
    return tables


def _criterion_table(dataset: xr.Dataset, features: tuple[str, ...]) -> Table:
    """Shows differences of rates."""
    columns, has_clients = _criterion_columns(dataset, features)
    names = [*_names(dataset), "noise floor", "clients", "smallest cell"]
    rows = list(zip(names, *columns.values(), strict=True))
    lines = _LINES[(any(has_clients), all(has_clients))]
    groups = _SENSITIVE_GROUPS.format(when=when(dataset))
    note = f"{groups} {lines} {GROUP_FLOOR} {_CELLS} Test examples{_about_means(dataset)}."
    if (num_classes := dataset.sizes["label"]) > 2:
        note += f" Largest difference over the {num_classes} classes, each against all others; "
        note += "of equalized odds, over pairs of a label and a prediction."
    note = f"{note} {describe_empty_cells(dataset, features, by_class=True)}".strip()
    title = f"Group fairness by {escape_control_chars(' x '.join(features))}"
    return Table(f"{title} ({dataset.attrs['data']})", ("method", *columns), rows, note)


def _parity_table(dataset: xr.Dataset, features: tuple[str, ...], values: xr.DataArray) -> Table:
    """Shows the primary quantity and the loss of each sensitive group, and their differences."""
    quantity, loss = primary(dataset), "sensitive_group_loss"
    shown = {quantity.sensitive_group: values}
    if (losses := values_by_feature(dataset, "loss", features)) is not None:
        shown[loss] = losses

    def column(pick: Callable[[xr.DataArray], xr.DataArray]) -> list[str]:
        parts = ((name, pick(each).to_dataset(name=name)) for name, each in shown.items())
        return _below([_means(part, name) for name, part in parts])

    columns = [
        (escape_control_chars(str(name)), column(lambda each, i=i: each.isel(sensitive_group=i)))
        for i, name in enumerate(values["sensitive_group"].values)
        if values.isel(sensitive_group=i).notnull().any()
    ]
    columns.append(("difference", column(range_of_groups)))
    headings, cells = zip(*columns, strict=True)
    title = f"{quantity.description} by {escape_control_chars(' x '.join(features))}"
    note = (
        f"{_in_units(dataset, [quantity.sensitive_group])}, pooled test examples of each group; "
        f"difference: largest less smallest{_about_means(dataset)}."
    )
    if loss in shown:
        of_loss = unit(dataset, loss)
        note += (
            f" Second line: mean loss{f', in {escape_control_chars(of_loss)}' if of_loss else ''}."
        )
    note = f"{note} {describe_empty_cells(dataset, features, by_class=False)}".strip()
    rows = list(zip(_names(dataset), *cells, strict=True))
    return Table(f"{title} ({dataset.attrs['data']})", ("method", *headings), rows, note)


def _outputs_table(dataset: xr.Dataset) -> Table:
    """Shows the quantities of each of several targets."""
    names = [f"output_{each.name}" for each in quantities(dataset)]
    names = [name for name in names if name in dataset]
    labels = [escape_control_chars(str(each)) for each in dataset["output"].values]
    shown = labels[:_MAX_OUTPUTS]
    columns = {
        f"{dataset[name].attrs['heading']}\n{label}": _means(
            dataset.assign({name: dataset[name].isel(output=place)}), name
        )
        for name in names
        for place, label in enumerate(shown)
    }
    more = f" The first {len(shown)} of {len(labels):,}." if len(labels) > len(shown) else ""
    note = f"{_in_units(dataset, names)}, pooled test examples{_about_means(dataset)}.{more}"
    return _table(f"Each target ({dataset.attrs['data']})", dataset, columns, note)


def _criterion_columns(
    dataset: xr.Dataset, features: tuple[str, ...]
) -> tuple[dict[str, list[str]], list[bool]]:
    """Returns a cell per method, and those of noise floor, clients and smallest cell, by heading.

    The second result is whether any client has a difference, without which a cell has one line.

    Args:
        dataset: Results with the dimension ``algorithm``.
        features: Sensitive features whose combinations are the groups.
    """
    finals = final_metrics(dataset[[primary(dataset).mean, "sensitive_group_counts"]])
    measured = 100 * gaps(finals, features)
    counts = feature_counts(finals, features).transpose("algorithm", "seed", "client", ...).values
    columns, has_clients = {}, []
    for criterion in group_fairness.CRITERIA:
        name = f"{criterion}_difference"
        pooled = measured[name].transpose("algorithm", "seed").values
        clients = measured[f"client_{name}"].transpose("algorithm", "seed", "client").values
        has_clients.append(not np.isnan(clients).all())
        cells = [
            f"{format_mean(runs)}\n{format_mean(known_mean(of_clients, axis=-1))}\n"
            f"{_largest(dataset, of_clients)}"
            for runs, of_clients in zip(pooled, clients, strict=True)
        ]
        cells.append(_criterion_floor(counts, criterion))
        has_gap = np.any(~np.isnan(clients), axis=(0, 1))
        cells += [f"{has_gap.sum():,}", _smallest_cells(counts, criterion, has_gap)]
        lines = None if has_clients[-1] else 1
        columns[BY_NAME[name].heading] = ["\n".join(cell.split("\n")[:lines]) for cell in cells]
    return columns, has_clients


def _smallest_cells(counts: np.ndarray, criterion: str, has_gap: np.ndarray) -> str:
    """Returns the least positive number of people, pooled and of the clients with a difference.

    Args:
        counts: People ``[algorithm, seed, client, group, label, prediction]``.
        criterion: Name of a criterion, whose rates are of groups, or of groups and labels.
        has_gap: Which clients have a difference.
    """
    cells = counts.sum(axis=-1)
    if criterion == "equal_opportunity" and cells.shape[-1] == 2:
        cells = cells[..., 1:]
    elif criterion not in ("equal_opportunity", "equalized_odds"):
        cells = cells.sum(axis=-1)
    sizes = (cells.sum(axis=2), cells[:, :, has_gap])
    return "\n".join(f"{each[each > 0].min():,.0f}" for each in sizes if (each > 0).any())


def _criterion_floor(counts: np.ndarray, criterion: str) -> str:
    """Returns the noise floors of pooled people and clients, mean over methods and seeds."""
    pooled, clients, largest = [], [], []
    for run in counts.reshape(-1, *counts.shape[2:]):
        if np.isnan(run).any() or not run.sum():
            continue
        people = run.round().astype(np.int64)
        together = people.sum(axis=0)
        pooled.append(float(expected_difference(criterion, together, draws=50)))
        of_clients = expected_difference(criterion, people, draws=50)
        clients.append(float(known_mean(of_clients, axis=-1)))
        largest.append(float(expected_largest(criterion, people, draws=50)))
    return "\n".join(
        format_number(100 * float(known_mean(np.array(values), axis=-1)), ".1f").strip("-")
        for values in (pooled, clients, largest)
    )


def _largest(dataset: xr.Dataset, gaps: np.ndarray) -> str:
    """Formats the largest gap of a client ``[seeds, clients]``, mean over seeds, and its name."""
    means = known_mean(gaps, axis=0)
    if np.isnan(means).all():
        return "-"
    client = int(np.nanargmax(means))
    name = dataset["client"].values[client] if "client" in dataset.coords else client
    return f"{format_number(float(means[client]), '.1f')} {escape_control_chars(str(name))}"


def _add_worse_off(table: Table, dataset: xr.Dataset) -> Table:
    """Adds columns of the shares of clients that are worse off than with a reference."""
    quantity = primary(dataset)
    worse = "lower accuracy" if quantity == ACCURACY else f"a worse {quantity.heading}"
    for name in REFERENCES:
        if name not in dataset["algorithm"].values or quantity.client not in dataset:
            continue
        in_percent = "" if quantity == ACCURACY else ", in %"
        note = f"Worse than {name}: share of clients with {worse}{in_percent}."
        cells = _means_of_runs(100 * share_worse_off(dataset, name))
        table = _add_column(table, f"worse than\n{name}", cells, note)
    return table


def _add_column(table: Table, heading: str, cells: list[str], note: str) -> Table:
    """Adds a column to a table of methods, which is empty in the row of the noise floor."""
    rows = [(*row, cell) for row, cell in zip(table.rows, [*cells, ""], strict=False)]
    return Table(table.title, (*table.headings, heading), rows, f"{table.note} {note}")


def _loss_gap_table(dataset: xr.Dataset) -> Table:
    """Shows how far test losses are above those that clients reach alone."""
    gaps = loss_gaps(dataset)
    is_compared = [method_of(str(name)) != REFERENCE for name in gaps["algorithm"].values]
    gaps = gaps.isel(algorithm=is_compared)
    headings = {
        "loss_gap_mean_clients": "mean",
        "loss_gap_maximum": "maximum",
        "loss_gap_worst_10pct": "worst 10%",
        "loss_gap_minimum": "minimum",
        "loss_gap_standard_deviation": "SD",
    }
    columns = {heading: _means(gaps, name) for name, heading in headings.items()}
    note = f"{gaps.attrs['note']}. In {gaps['loss_gap'].attrs['units']}, over clients"
    note += f"{_about_means(gaps)}. Negative: the federation helps a client."
    title = f"Loss gap of {dataset.sizes['client']:,} clients ({dataset.attrs['data']})"
    return _table(title, gaps, columns, note)


def add_central(table: Table, dataset: xr.Dataset) -> Table:
    """Adds a column of the first quantity of a central test set, if there is one."""
    measured = [each for each in quantities(dataset) if f"central_{each.name}" in dataset]
    if not measured:
        return table
    quantity = measured[0]
    note = f"Central test: {quantity.heading} of the global model on test examples of no client."
    cells = _means(dataset, f"central_{quantity.name}", quantity.mean)
    return _add_column(table, "central\ntest", cells, note)


def methods_table(
    dataset: xr.Dataset, columns: dict[str, str], floors: xr.Dataset | None = None
) -> Table:
    """Shows means of the last evaluation, differences to the first method, and noise floors.

    Arguments are what `default_metrics` and `noise_floor` return.
    """
    finals = final_metrics(dataset[list(columns)])
    names, seeds = _names(dataset), dataset.sizes["seed"]
    cells = {name: _means(finals, name) for name in columns}
    note = f"{_in_units(dataset, columns)}, {when(dataset)}{_about_means(dataset)}."
    if len(set(map(method_of, names))) > 1 and seeds > 1:
        note += (
            f" Below: difference to {method_of(names[0])} over paired seeds and its 95% CI; "
            f"{STAR}."
            f"{about_references(names, names[0])}"
        )
        for name in columns:
            form = f"+.{digits(finals, name)}f"
            values = scale(finals, name) * finals[name]
            gaps = differences(values, str(dataset["algorithm"].values[0]))
            for row in range(1, len(names)):
                if method_of(names[row]) == method_of(names[0]):
                    continue
                point, *ends = (
                    format_number(float(gaps[key][row]), form)
                    for key in ("difference", "low", "high")
                )
                star = "*" if gaps["is_significant"][row] else ""
                cells[name][row] += f"\n{point}{star}\n{' to '.join(ends)}"
    title = f"{primary(dataset).description} of {dataset.sizes['client']:,} clients"
    title += f" ({dataset.attrs['data']})"
    table = _table(title, dataset, dict(zip(columns.values(), cells.values(), strict=True)), note)
    floors = noise_floor(dataset, list(columns)) if floors is None else floors
    means = [100 * float(floors[name].mean()) for name in columns]
    if not np.isnan(means).all():
        shown = (format_number(mean, ".1f").strip("-") for mean in means)
        table.rows.append(("noise floor", *shown))
        return table._replace(note=f"{note} {NOISE_FLOOR}")
    return table


def progress_table(evaluations: xr.Dataset, rounds: int) -> Table:
    """Summarizes what `read_evaluations` returned for an unfinished run of ``rounds``."""
    evaluations = by_model(evaluations)
    is_complete = evaluations[primary(evaluations).mean].notnull().all("seed")
    complete = evaluations.where(is_complete).dropna("algorithm", how="all")
    if not complete.sizes["algorithm"]:
        raise ValueError("expected an evaluation of all seeds; none is complete.")
    finals = final_metrics(complete)
    latest = complete["round"].where(is_complete).max("round").sel(algorithm=complete["algorithm"])
    columns = {"round": [f"{int(round)} of {rounds}" for round in latest]}
    shown = default_metrics(complete)[1]
    columns |= {heading: _means(finals, name) for name, heading in shown.items()}
    note = f"{_in_units(finals, shown)}{_about_means(finals)}."
    return _table("Evaluations so far", finals, columns, note)


def _groups_table(dataset: xr.Dataset) -> Table:
    """Shows each ground-truth group, and how well clusters match the groups."""
    group, quantity = dataset["group"], primary(dataset)
    sizes = np.bincount((group if group.ndim == 1 else group.isel(seed=0)).values.astype(int))
    names = [quantity.group, quantity.group_gap]
    names += ["sigma_acc"] if quantity == ACCURACY else []
    finals = final_metrics(dataset[[name for name in names if name in dataset]])
    of_groups = finals[quantity.group]
    columns = {
        f"group {i}\n{size} clients": _means(
            finals.assign({quantity.group: of_groups.isel(planted_group=i)}), quantity.group
        )
        for i, size in enumerate(sizes)
    }
    for name, heading in {quantity.group_gap: "gap", "sigma_acc": "sigma_acc"}.items():
        if name in finals:
            columns[heading] = _means(finals, name)
    if "aggregation_nmi" in dataset:
        nmi = dataset["aggregation_nmi"].mean(["seed", "training_round"])
        columns["NMI"] = [format_number(float(value), ".2f").strip("-") for value in nmi]
    note = f"{_in_units(dataset, [quantity.group])}{_about_means(dataset)}; "
    note += "NMI from 0 to 1, mean over rounds."
    return _table(f"{quantity.description} of ground-truth groups", dataset, columns, note)


def devices_table(dataset: xr.Dataset) -> Table:
    """Shows how device classes are served, and their shares of results and weights.

    With `fedjax_fair.analysis.expected_parity` in the results, parity has the level of chance.
    """
    timed = dataset["virtual_time"].notnull().any(["seed", "round"]).values
    dataset, quantity = dataset.isel(algorithm=timed), primary(dataset)
    level = f"class_device_{quantity.name}"
    kinds = ("participation", "weight")
    names = [f"class_{kind}_share" for kind in kinds] + [f"{kind}_parity" for kind in kinds]
    names = [name for name in (level, *names) if name in dataset]
    expected = [f"{name}_expected" for name in names if f"{name}_expected" in dataset]
    finals = final_metrics(dataset[[*names, *expected]])

    def percent(values: xr.DataArray) -> list[str]:
        return _means_of_runs(100 * values.broadcast_like(finals[names[0]].isel(device_class=0)))

    columns = {}
    for place, name in enumerate(map(str, dataset["device_class"].values)):
        own = finals.isel(device_class=place)
        share = 100 * float((dataset["device_class_of"] == place).mean())
        lines = [_means(own, level)] if level in own else []
        lines += [percent(own[each]) for each in names if each.endswith("_share")]
        heading = f"{escape_control_chars(name)}\n{share:.0f}% of clients"
        columns[heading] = _below(lines)
    for kind in kinds:
        name = f"{kind}_parity"
        if name in finals:
            lines = [percent(finals[each]) for each in (name, f"{name}_expected") if each in finals]
            columns[f"{kind}\nparity"] = _below(lines)
    columns["virtual\nseconds"] = _means_of_runs(dataset["virtual_time"].max("round"))
    shown = ", ".join(["results", "weights"][: sum(name.endswith("_share") for name in names)])
    note = (
        f"{_in_units(dataset, [level])}, {when(dataset)}{_about_means(dataset)}. Below, in %: "
        f"shares of {shown.replace(', ', ' and ')} so far. Parity: lowest share relative to the "
        "share of clients; 100 is equal."
    )
    if expected:
        note += " Below: its expected value if all clients were equally fast."
    title = f"{quantity.description} of device classes ({dataset.attrs['data']})"
    return _table(title, dataset, columns, note)


def clients_table(dataset: xr.Dataset) -> Table:
    """Shows the named clients that each method serves worst, the worst mean over seeds first."""
    quantity = primary(dataset)
    finals = final_metrics(dataset[[quantity.mean, quantity.client]])
    factor, form = scale(finals, quantity.client), digits(finals, quantity.client)
    values = factor * finals[quantity.client].transpose("algorithm", "client", "seed").values
    names = [escape_control_chars(name) for name in dataset["client"].values]
    # Clients without test examples come last, and are not shown; nor any without a model.
    order = np.argsort(sign(quantity) * values.mean(axis=2), axis=1, kind="stable")
    which = "lowest" if quantity.better == "higher" else "highest"
    columns = {
        heading: [
            f"{names[client]}\n{format_mean(runs[client], form)}"
            if np.isfinite(runs[client]).any()
            else "-"
            for runs, client in zip(values, order[:, place], strict=True)
        ]
        for place, heading in enumerate((which, "second", "third")[: len(names)])
    }
    what = "test accuracy" if quantity == ACCURACY else quantity.heading
    title = f"Clients with the {which} {what} ({dataset.attrs['data']})"
    note = f"{_in_units(dataset, [quantity.client])}, {when(dataset)}{_about_means(dataset)}."
    return _table(title, dataset, columns, note)


def _sweep_table(dataset: xr.Dataset, num_rows: int = 20) -> Table:
    """The best configurations by validation, or the first.

    Without validation examples nothing is ranked: the best on test examples would be so by chance.
    """
    columns, quantity = sweep_columns(dataset), primary(dataset)
    is_ranked = validation(quantity.mean) in dataset
    # Few rounds may change the loss before the accuracy, see `configurations_as_methods`.
    results = dataset[[*columns, *({"test_loss_mean_clients"} & set(dataset))]]
    swept = configurations_as_methods(results, 10**9 if is_ranked else None)[[*columns]]
    finals = final_metrics(swept)
    shown = finals.isel(algorithm=slice(num_rows))
    cells = {heading: _means(shown, name) for name, heading in columns.items()}
    names = [str(name) for name in dataset["algorithm"].values]
    of_models = (
        f" {quantity.heading} of personalized models" if any(MARK in name for name in names) else ""
    )
    if of_models and not all(MARK in name for name in names):
        of_models += ", or of global models of methods without"
    which, ranking = ("best", f"ranked by validation{of_models}") if is_ranked else (
        "first", "not ranked: no validation examples"
    )  # fmt: skip
    title = (
        f"The {which} {shown.sizes['algorithm']} of {finals.sizes['algorithm']:,} configurations"
    )
    note = f"{_in_units(dataset, columns)}, {ranking}; other columns: test examples"
    note = f"{note}{_about_means(dataset)}."
    return _table(f"{title} ({dataset.attrs['data']})", shown, cells, note)


def _table(title: str, dataset: xr.Dataset, columns: dict[str, list[str]], note: str) -> Table:
    """A row per method, a column per heading."""
    rows = list(zip(_names(dataset), *columns.values(), strict=True))
    return Table(title, ("method", *columns), rows, note)


def _names(dataset: xr.Dataset) -> list[str]:
    return [escape_control_chars(name) for name in dataset["algorithm"].values]


def _means(dataset: xr.Dataset, name: str, like: str | None = None) -> list[str]:
    """Formats the last means over seeds, in the unit of the variable ``like``."""
    values = dataset[name]
    if "round" in values.dims:
        values = final_metrics(dataset[[name]])[name]
    of_unit = values.to_dataset(name=like or name)
    factor, decimals = scale(of_unit, like or name), digits(of_unit, like or name)
    return _means_of_runs(factor * values, decimals)


def _means_of_runs(values: xr.DataArray, decimals: int = 1) -> list[str]:
    """Formats means over seeds, by method."""
    runs = values.transpose("algorithm", "seed").values
    return [format_mean(each, decimals) for each in runs]


def _below(columns: list[list[str]]) -> list[str]:
    """Joins columns to one, whose cells have a line of each."""
    return ["\n".join(cells) for cells in zip(*columns, strict=True)]


def _in_units(dataset: xr.Dataset, names: Iterable[str]) -> str:
    """Begins a note with the units of variables, most often percent."""
    by_unit = dict.fromkeys(unit(dataset, name) for name in names)
    shown = [escape_control_chars(each) for each in by_unit if each]
    text = f"In {', '.join(shown)}" if shown else "Without unit"
    if shown and len(shown) < len(by_unit):
        text += " or without unit"
    quantity = primary(dataset)
    if quantity == ACCURACY:
        return text
    direction = f"; of {quantity.heading}, {quantity.better} is better"
    return f"{text}{direction}"


def _about_means(dataset: xr.Dataset) -> str:
    seeds = dataset.sizes["seed"]
    return f", mean ± half of the 95% CI over {seeds} seeds" if seeds > 1 else ", one seed"
