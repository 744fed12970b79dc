"""The tables of a run's page: methods beside each other, and what differs beyond chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_fair import metrics, results
from fedjax_fair.report.document import text
from fedjax_fair.report.drawing import NOISE_FLOOR, is_percent
from fedjax_fair.report.intervals import as_text, signed

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Comparison", "all_metrics", "compared"]

_LEVEL = "accuracy_mean_clients"
_SPREAD = "client_dissimilarity"


class Comparison(NamedTuple):
    """What is said about methods.

    Attributes:
        table: In HTML.
        finding: One sentence, as plain text.
    """

    table: str
    finding: str


def compared(dataset: xr.Dataset) -> Comparison:
    """Lays out the last evaluation of every method, and differences to the first one.

    Args:
        dataset: Results with the dimension ``algorithm`` and without settings.

    Returns:
        Means with 95 % intervals over seeds; with two or more methods and seeds also paired
        differences, of which those beyond chance are marked. Spread from the accuracies of classes,
        which has less noise, stands beside the measured one where `results.class_based` gives it.
    """
    columns = {_LEVEL: "accuracy", "accuracy_worst_10pct": "worst 10 %", _SPREAD: "dissimilarity"}
    if dataset.attrs.get("label_skew_only"):
        # Of all evaluations, as the terminal's table is made, whose compiled program this shares.
        dataset = dataset.merge(results.class_based(dataset))
        columns[f"{_SPREAD}_class_based"] = "class-based dissimilarity"
    last = results.final_metrics(dataset)
    if "group_accuracy_gap" in last:
        columns["group_accuracy_gap"] = "gap of groups"
    methods = [str(name) for name in last["algorithm"].values]
    paired = len(methods) > 1 and dataset.sizes["seed"] > 1
    gaps = {name: results.compare(dataset, metric=name) for name in columns} if paired else {}
    head = "".join(f'<th class="number" scope="col">{text(name)}</th>' for name in columns.values())
    rows = "".join(_row(last, gaps, columns, method) for method in methods)
    table = (
        '<div class="scroll"><table class="cards"><thead><tr><th scope="col">method</th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    return Comparison(table, _finding(last, gaps, columns, methods))


def _row(
    last: xr.Dataset, gaps: dict[str, xr.Dataset], columns: dict[str, str], method: str
) -> str:
    cells = []
    for name, heading in columns.items():
        values = last[name].sel(algorithm=method).values
        below = []
        if name in gaps and method in gaps[name]["algorithm"]:
            below.append(_difference(gaps[name].sel(algorithm=method)))
        if name == _SPREAD:
            floor = last[NOISE_FLOOR].sel(algorithm=method).values
            below.append(f"noise floor {as_text(100 * floor)}")
        small = "".join(f"<small>{line}</small>" for line in below)
        cells.append(
            f'<td class="number" data-label="{text(heading)}"><span>{as_text(100 * values)}</span>'
            f"{small}</td>"
        )
    return f'<tr><th scope="row">{text(method)}</th>{"".join(cells)}</tr>'


def _difference(row: xr.Dataset) -> str:
    mean, low, high = (100 * float(row[name]) for name in ("difference", "low", "high"))
    shown = f"{signed(mean)} ({signed(low)}, {signed(high)})"
    return f'<b title="beyond chance">{shown} *</b>' if _is_sure(row) else shown


def _is_sure(row: xr.Dataset) -> bool:
    return bool(row["p"] < 0.05)


def _finding(
    last: xr.Dataset, gaps: dict[str, xr.Dataset], columns: dict[str, str], methods: list[str]
) -> str:
    said = []
    if gaps:
        spread = f"{_SPREAD}_class_based" if f"{_SPREAD}_class_based" in gaps else _SPREAD
        sure = [
            f"{method} ({', '.join(beyond)})"
            for method in methods[1:]
            if (
                beyond := [
                    f"{columns[name]} {signed(100 * float(row['difference']))}"
                    for name in (_LEVEL, spread)
                    if _is_sure(row := gaps[name].sel(algorithm=method))
                ]
            )
        ]
        differs = f"Beyond chance against {methods[0]}, in points: {'; '.join(sure)}."
        none = f"No difference to {methods[0]} is beyond chance, with {last.sizes['seed']} seeds."
        said.append(differs if sure else none)
    elif last.sizes["seed"] == 1:
        said.append("One seed: whether a difference is more than chance cannot be known.")
    spread, floor = (last[name].mean("seed").values for name in (_SPREAD, NOISE_FLOOR))
    known = ~np.isnan(floor)
    if known.any() and (spread[known] <= floor[known]).all():
        said.append(
            "No dissimilarity is above its noise floor: clients have too few test examples to show "
            "that any is served worse than another."
        )
    return " ".join(said)


def all_metrics(dataset: xr.Dataset) -> str:
    """A table of every summary metric of the last evaluations, in HTML."""
    last = results.final_metrics(dataset)
    names = [str(name) for name in last["algorithm"].values]
    head = "".join(f'<th class="number" scope="col">{text(name)}</th>' for name in names)
    measured = [m for m in metrics.ALL_SUMMARIES if m.name in last]
    rows = "".join(_metric_row(last, metric) for metric in measured)
    return (
        '<div class="scroll"><table><thead><tr><th scope="col">metric</th><th scope="col">unit</th>'
        f'<th scope="col">population</th><th scope="col">weighting</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _metric_row(last: xr.Dataset, metric: Any) -> str:
    percent = is_percent(last[metric.name])
    scale, unit = (100, "%") if percent else (1, metric.unit)
    digits = 1 if percent or unit == "clients" else 3
    described = (unit, metric.population, metric.weighting)
    values = last[metric.name].transpose("algorithm", "seed").values
    return (
        f'<tr><th scope="row">{text(metric.description)}</th>'
        + "".join(f"<td>{text(part)}</td>" for part in described)
        + "".join(f'<td class="number">{as_text(scale * row, digits)}</td>' for row in values)
        + "</tr>"
    )
