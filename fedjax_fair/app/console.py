"""What a person sees at the end of a run: tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from fedjax_fair.results import compare, final_metrics, noise_floor
from fedjax_fair.results.comparison import default_metrics
from fedjax_fair.results.tables import HEADINGS, caption, cells
from fedjax_fair.submodular.federated.comparison import GREEDY, POPULAR
from fedjax_fair.text import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "compared_table",
    "difference_table",
    "group_table",
    "maximization_table",
    "summary_table",
    "sweep_table",
    "tables",
]

COLUMNS = {
    "accuracy_mean_clients": "accuracy",
    "accuracy_worst_10pct": "worst 10 %",
    "accuracy_standard_deviation": "dispersion",
    "client_dissimilarity": "dissimilarity",
}


_VALIDATION = "validation_accuracy_mean_clients"


def tables(results: xr.Dataset) -> list[Table]:
    """What a person sees of results: the methods, their planted groups, and their differences.

    Raises:
        ValueError: If they are none of a command.
    """
    if "algorithm" not in results.dims or not {"final_value", "accuracy_mean_clients"} & set(
        results
    ):
        raise ValueError("results: expected those of a run, a sweep or a maximization.")
    if "final_value" in results:
        return [maximization_table(results)]
    dims = results["accuracy_mean_clients"].dims
    if varied := [str(name) for name in dims if name not in ("algorithm", "seed", "round")]:
        return [sweep_table(results, varied)]
    shown = [summary_table(results)]
    if "group_accuracy" in results:
        shown.append(group_table(results))
    if results.sizes["algorithm"] > 1 and results.sizes["seed"] > 1:
        shown.append(difference_table(results))
    return shown


def summary_table(results: xr.Dataset) -> Table:
    """Lays out how well and how evenly each method serves the clients in the end.

    Args:
        results: Results with the dimension ``algorithm``.

    Returns:
        A table in percent: mean over seeds, and their sample standard deviation where there are two
        or more; what differs from the first method beyond chance is marked. The last row is what
        finite test sets would show of clients that are served alike.
    """
    seeds, clients = results.sizes["seed"], results.sizes["client"]
    marked = seeds > 1 and results.sizes["algorithm"] > 1
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    if marked:
        spread += f"; * differs from {results['algorithm'].values[0]} beyond chance"
    table = _table(
        f"Test accuracy of {clients} clients ({results.attrs['data']}) after the last round",
        f"in %, {spread}; noise floor: what finite test sets show of clients served alike",
    )
    table.add_column("method", overflow="fold")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    last = final_metrics(results)
    p = {name: compare(results, name).p for name in COLUMNS} if marked else {}
    for method in last["algorithm"].values:
        row = last.sel(algorithm=method)
        cells = [
            _percent(row[name].values) + _mark(p.get(name), method) * marked for name in COLUMNS
        ]
        table.add_row(_name(method), *cells)
    floors = noise_floor(results, list(COLUMNS)).mean("algorithm")
    if not all(np.isnan(floor.item()) for floor in floors.values()):
        beside = " " * marked
        cells = [_percent(floors[name].values.ravel()) + beside for name in COLUMNS]
        table.add_row("noise floor", *("" if "nan" in cell else cell for cell in cells))
    return table


def _mark(p: xr.DataArray | None, method: object) -> str:
    """A star where a difference is beyond chance, of the width of what stands elsewhere."""
    beyond = p is not None and method in p["algorithm"] and float(p.sel(algorithm=method)) < 0.05
    return "*" if beyond else " "


def compared_table(compared: xr.Dataset) -> Table:
    """Lays out a comparison for a terminal.

    Args:
        compared: What `fedjax_fair.results.compare` returned.

    Returns:
        A table of eighty columns.
    """
    table = _table("", caption(compared))
    table.padding = 0
    first, *others = HEADINGS
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(_SHORT.get(heading, heading), justify="right", no_wrap=True)
    for row in cells(compared, digits=1):
        table.add_row(*map(Text, row))
    return table


_SHORT = {
    "noise floor": "noise\nfloor",
    "validation": "valida-\ntion",
    "difference": "diff.",
    "95 % (Student)": "Student",
    "95 % (bootstrap)": "bootstrap",
    "p (Holm)": "p",
    "seeds needed": "seeds\nneeded",
    "dissimilarity": "dissimi-\nlarity",
}
"""Headings for eighty columns; the caption has the rest."""


def _table(title: str, caption: str) -> Table:
    """A table without a frame, which has room for more in eighty columns."""
    return Table(
        title=_title(title) if title else None,
        caption=Text(escape_control_chars(caption), "table.caption"),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )


def difference_table(results: xr.Dataset) -> Table:
    """Lays out how far methods are from the first one, and which differences are beyond chance.

    Args:
        results: Results with the dimension ``algorithm``, of two or more methods and seeds.

    Returns:
        A table of mean differences between paired seeds, in points, with 95 % intervals. Where
        clients differ in their labels alone, spread is that of `results.class_based`, which has less
        noise.
    """
    results, columns = default_metrics(results)
    baseline = str(results["algorithm"].values[0])
    compared = {name: compare(results, name) for name in columns}
    seeds = results.sizes["seed"]
    table = _table(
        f"Differences to {baseline}",
        f"in points, with 95 % intervals over {seeds} paired seeds; * beyond chance: "
        "p < 0.05 after Holm's correction for several methods",
    )
    table.add_column("method", overflow="fold")
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for method in results["algorithm"].values[1:]:
        rows = [found.sel(algorithm=method) for found in compared.values()]
        table.add_row(_name(method), *map(_difference, rows))
    return table


def _difference(row: xr.Dataset) -> str:
    mean, low, high = (100 * float(row[name]) for name in ("difference", "low", "high"))
    return f"{mean:+.1f} ({low:+.1f}, {high:+.1f}){'*' if row['p'] < 0.05 else ' '}"


def sweep_table(results: xr.Dataset, settings: Sequence[str], rows: int = 20) -> Table:
    """Lays out the configurations of a sweep that serve the clients best in the end.

    Args:
        results: What ``sweep`` returned.
        settings: The dimensions that were varied.
        rows: Points to show, at most.

    Returns:
        A table in percent: mean over seeds, and their sample standard deviation where there are two
        or more. The first is best on validation examples; where there are none, nothing is ranked,
        as the best on test examples would be so by chance as well. Points of a method that differ
        in a setting which changes nothing, as it does not read it, are one row.
    """
    ranked = _VALIDATION in results
    columns = {_VALIDATION: "validation", **COLUMNS} if ranked else COLUMNS
    last = final_metrics(results[list(columns)])
    methods = [last.sel(algorithm=method) for method in last["algorithm"].values]
    configurations = [
        configuration for method in methods for configuration in _configurations(method, settings)
    ]
    order = np.arange(len(configurations))
    if ranked:
        scores = [-float(row[_VALIDATION].mean()) for _, row in configurations]
        order = np.argsort(scores, kind="stable")
    shown = [configurations[number] for number in order[:rows]]
    which, by = (
        ("best", "ranked by validation") if ranked else ("first", "not ranked: no validation")
    )
    folded = any("any" in values for values, _ in configurations)
    note = "; any: the same whatever the value" if folded else ""
    table = _table(
        f"The {which} {len(shown)} of {len(order):,} configurations ({results.attrs['data']})",
        f"in %, mean over {results.sizes['seed']} seeds, {by}; others of test examples{note}",
    )
    table.add_column("method", overflow="fold")
    for heading in (*settings, *columns.values()):
        table.add_column(_SHORT.get(heading, heading.replace("_", "\n")), justify="right")
    for values, row in shown:
        table.add_row(
            _name(row["algorithm"].item()),
            *(f"{value:g}" if isinstance(value, float) else _name(value) for value in values),
            *(_percent(row[name].values) for name in columns),
        )
    return table


def _configurations(
    last: xr.Dataset, settings: Sequence[str]
) -> list[tuple[list[object], xr.Dataset]]:
    """What the configurations of one method are set to, and what they reach."""
    ignored = [
        name
        for name in settings
        if last.sizes[name] > 1 and all(_is_constant(one, name) for one in last.values())
    ]
    last = last.isel(dict.fromkeys(ignored, 0))
    kept = [name for name in settings if name not in ignored]
    found = []
    for place in np.ndindex(*(last.sizes[name] for name in kept)):
        row = last.isel(dict(zip(kept, place, strict=True)))
        values = ["any" if name in ignored else row[name].item() for name in settings]
        found.append((values, row))
    return found


def _is_constant(values: xr.DataArray, dimension: str) -> bool:
    known = values.fillna(-1.0)
    return bool((known == known.isel({dimension: 0}, drop=True)).all())


def maximization_table(results: xr.Dataset) -> Table:
    """Lays out how good the set of each method is, and what it cost to find.

    Args:
        results: What ``maximize.solve`` returned.

    Returns:
        A table of means over seeds. Shares are of what centralized greedy gains over nothing, and
        over the items that are best alone (``beyond popular``); the set of a fractional point is
        its heaviest base, or a random one.
    """
    table = Table(
        title=_title(
            f"{results.attrs['k']} of {results.sizes['item']:,} items for "
            f"{results.attrs['clients']:,} clients ({results.attrs['data']})"
        ),
        caption=f"mean over {results.sizes['seed']} seeds; shares of centralized greedy, in %",
        box=None,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("method", no_wrap=True)
    for heading in ("value", "share", "beyond\npopular", "random\nrounding", "rounds",
                    "clients\ncontacted", "Mbit\nup", "Mbit\ndown"):  # fmt: skip
        table.add_column(heading, justify="right")
    means = results.mean("seed")
    greedy, popular = (
        float(means["final_value"].sel(algorithm=name)) for name in (GREEDY, POPULAR)
    )
    for method in results["algorithm"].values:
        row = means.sel(algorithm=method)
        found, rounded = float(row["final_value"]), float(row["rounded"])
        beyond = (found - popular) / (greedy - popular) if greedy > popular else np.nan
        bits = [float(row[name].max()) / 1e6 for name in ("bits_up", "bits_down")]
        table.add_row(
            _name(method),
            f"{found:.4f}",
            *("" if np.isnan(share) else f"{100 * share:.1f}"
              for share in (found / greedy, beyond, rounded / greedy)),
            f"{int(row['rounds'])}",
            f"{float(row['contacted'].max()):,.0f}",
            *(f"{amount:.3g}" for amount in bits),
        )  # fmt: skip
    return table


def group_table(results: xr.Dataset) -> Table:
    """Lays out how each method serves the planted groups in the end, and whether it found them.

    Args:
        results: Results with the dimensions ``algorithm`` and ``planted_group``.

    Returns:
        A table: accuracies in percent; the mutual information of found clusters and planted groups,
        mean over all rounds, of methods that look for clusters.
    """
    group = results["group"]
    counts = np.bincount((group if group.ndim == 1 else group.isel(seed=0)).values.astype(int))
    table = _table("Test accuracy of the planted groups", "in %; NMI from 0 to 1")
    table.add_column("method", overflow="fold")
    for number, clients in enumerate(counts):
        table.add_column(f"group {number}\n{clients} clients", justify="right")
    table.add_column("gap", justify="right")
    table.add_column("sigma_acc", justify="right")
    table.add_column("NMI", justify="right")
    last = final_metrics(results)
    for method in last["algorithm"].values:
        row = last.sel(algorithm=method)
        accuracies = [row["group_accuracy"].isel(planted_group=i) for i in range(len(counts))]
        cells = [*accuracies, row["group_accuracy_gap"], row["sigma_acc"]]
        found = results.get("aggregation_nmi")
        nmi = np.nan if found is None else found.sel(algorithm=method).mean().item()
        table.add_row(
            _name(method),
            *(_percent(cell.values) for cell in cells),
            "" if np.isnan(nmi) else f"{nmi:.2f}",
        )
    return table


def _name(text: object) -> Text:
    """A name that others chose, of which nothing is read as markup."""
    return Text(escape_control_chars(text))


def _title(text: str) -> Text:
    return Text(escape_control_chars(text), "table.title")


def _percent(values: np.ndarray) -> str:
    mean = f"{100 * values.mean():.1f}"
    return mean if values.size == 1 else f"{mean} ± {100 * values.std(ddof=1):.1f}"
