"""Tables of results as text cells, and their Markdown, LaTeX and CSV forms."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedjax_fair import checks
from fedjax_fair.results.comparison import default_metrics, differences, noise_floor
from fedjax_fair.results.datasets import configurations_as_methods, final_metrics, swept_settings
from fedjax_fair.results.intervals import format_mean, format_number
from fedjax_fair.text import escape_control_chars

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

__all__ = ["SWEEP_COLUMNS", "Table", "comparison_table", "final_tables", "methods_table", "to_text"]

SWEEP_COLUMNS = {
    "validation_accuracy_mean_clients": "validation",
    "accuracy_mean_clients": "accuracy",
    "accuracy_worst_10pct": "worst 10%",
    "accuracy_standard_deviation": "dispersion",
    "client_dissimilarity": "dissimilarity",
}
"""Metrics in the table of a sweep, and their headings."""

_IN_UNIT = ["mean", "deviation", "noise_floor", "difference", "low", "high", "bootstrap_low",
            "bootstrap_high"]  # fmt: skip
_WITHOUT_UNIT = ["p", "effect_size", "seeds", "seeds_needed"]


class Table(NamedTuple):
    """A table of text.

    Attributes:
        title: What it shows.
        headings: One per column; the first column names the rows.
        rows: One cell per heading. Lines of a cell after the first are details of its value.
        note: How to read the cells.
    """

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str


def final_tables(dataset: xr.Dataset) -> list[Table]:
    """Summarizes the last evaluation.

    Args:
        dataset: Results of a run or a sweep, with the dimension ``algorithm``.

    Returns:
        A table of the methods and, if there are any, one of the ground-truth groups; of a sweep, a
        table of the best configurations.
    """
    if swept_settings(dataset):
        return [_sweep_table(dataset)]
    groups = [_groups_table(dataset)] if "group_accuracy" in dataset else []
    return [methods_table(*default_metrics(dataset)), *groups]


def methods_table(dataset: xr.Dataset, columns: dict[str, str]) -> Table:
    """Summarizes the last evaluation of each method.

    Args:
        dataset: Results with the dimension ``algorithm``, as `default_metrics` returns them.
        columns: Headings by metric.

    Returns:
        Means over seeds, paired differences to the first method, and noise floors.
    """
    finals = 100 * final_metrics(dataset[list(columns)])
    names, seeds = _names(dataset), dataset.sizes["seed"]
    cells = {name: _means(finals[name]) for name in columns}
    note = f"In %, after the last round{_about_means(seeds)}."
    if len(names) > 1 and seeds > 1:
        note += (
            f" Below: difference to {names[0]} over paired seeds and its 95% CI; * statistically "
            "significant (p < 0.05 after Holm's correction)."
        )
        for name in columns:
            gaps = differences(finals[name], str(dataset["algorithm"].values[0]))
            for row in range(1, len(names)):
                point, *ends = (
                    format_number(float(gaps[key][row])) for key in ("difference", "low", "high")
                )
                star = "*" if gaps["p"][row] < 0.05 else ""
                cells[name][row] += f"\n{point}{star}\n{' to '.join(ends)}"
    floors = 100 * noise_floor(dataset, list(columns)).mean("algorithm")
    rows = list(zip(names, *cells.values(), strict=True))
    if any(floor.notnull() for floor in floors.values()):
        note += (
            " Noise floor: spread expected from finite test sets if all clients had equal accuracy."
        )
        shown = (format_number(float(floor), ".1f").strip("-") for floor in floors.values())
        rows.append(("noise floor", *shown))
    title = f"Test accuracy of {dataset.sizes['client']:,} clients ({dataset.attrs['data']})"
    return Table(title, ("method", *columns.values()), rows, note)


def _groups_table(dataset: xr.Dataset) -> Table:
    """Accuracy of each ground-truth group, and how well clusters match the groups."""
    group = dataset["group"]
    sizes = np.bincount((group if group.ndim == 1 else group.isel(seed=0)).values.astype(int))
    finals = 100 * final_metrics(dataset[["group_accuracy", "group_accuracy_gap", "sigma_acc"]])
    accuracies = finals["group_accuracy"]
    columns = {
        f"group {i}\n{size} clients": _means(accuracies.isel(planted_group=i))
        for i, size in enumerate(sizes)
    }
    columns |= {
        "gap": _means(finals["group_accuracy_gap"]),
        "sigma_acc": _means(finals["sigma_acc"]),
    }
    if "aggregation_nmi" in dataset:
        nmi = dataset["aggregation_nmi"].mean(["seed", "training_round"])
        columns["NMI"] = [format_number(float(value), ".2f").strip("-") for value in nmi]
    note = f"In %{_about_means(dataset.sizes['seed'])}; NMI from 0 to 1, mean over rounds."
    rows = list(zip(_names(dataset), *columns.values(), strict=True))
    return Table("Test accuracy of ground-truth groups", ("method", *columns), rows, note)


def _sweep_table(dataset: xr.Dataset, num_rows: int = 20) -> Table:
    """The configurations with the highest validation accuracy.

    Without validation examples nothing is ranked: the best on test examples would be so by chance.
    """
    columns = {name: heading for name, heading in SWEEP_COLUMNS.items() if name in dataset}
    finals = 100 * final_metrics(configurations_as_methods(dataset[list(columns)]))
    validation = next(iter(SWEEP_COLUMNS))
    total, which, ranking = finals.sizes["algorithm"], "first", "not ranked: no validation examples"
    if validation in columns:
        order = np.argsort(-finals[validation].mean("seed").values, kind="stable")
        finals, which, ranking = finals.isel(algorithm=order), "best", "ranked by validation"
    finals = finals.isel(algorithm=slice(num_rows))
    rows = list(zip(_names(finals), *(_means(finals[name]) for name in columns), strict=True))
    return Table(
        f"The {which} {len(rows)} of {total:,} configurations ({dataset.attrs['data']})",
        ("method", *columns.values()),
        rows,
        f"In %, {ranking}; other columns: test examples{_about_means(dataset.sizes['seed'])}.",
    )


def _names(dataset: xr.Dataset) -> list[str]:
    return [escape_control_chars(name) for name in dataset["algorithm"].values]


def _means(values: xr.DataArray) -> list[str]:
    return [format_mean(runs) for runs in values.transpose("algorithm", "seed").values]


def _about_means(seeds: int) -> str:
    return f", mean ± half of the 95% CI over {seeds} seeds" if seeds > 1 else ", one seed"


def comparison_table(compared: xr.Dataset, digits: int) -> Table:
    """Lays out differences in one metric, the baseline first.

    Args:
        compared: What `fedjax_fair.results.compare` returned.
        digits: Decimals of percentages; values in other units have four significant digits.
    """
    unit, attributes = _unit(compared), compared.attrs
    form = f".{digits}f" if unit == "%" else ".4g"
    rows = []
    for row in _frame(compared).to_dict("records"):
        value = {
            name: format_number(row[name], form) for name in ("mean", "deviation", "noise_floor")
        }
        value |= {name: format_number(row[name], f"+{form}") for name in _IN_UNIT[3:]}
        intervals = (
            "-" if np.isnan(row[f"{kind}low"]) else f"{value[f'{kind}low']}, {value[f'{kind}high']}"
            for kind in ("", "bootstrap_")
        )
        rows.append(
            (
                row["method"],
                f"{value['mean']} ± {value['deviation']}",
                value["noise_floor"],
                value["difference"] + ("*" if row["p"] < 0.05 else ""),
                *intervals,
                format_number(row["p"], ".3f"),
                format_number(row["effect_size"], "+.2f"),
                format_number(row["seeds_needed"], ",.0f").replace("inf", "∞"),
            )
        )
    runs = np.unique(compared["seeds"].values)
    seeds = f"{runs.min()}" if runs.size == 1 else f"{runs.min()} to {runs.max()}"
    title = (
        f"{attributes['long_name'] or attributes['metric']}{f', in {unit}' if unit else ''}: "
        f"differences to {attributes['baseline']}"
    )
    note = (
        f"Over {seeds} {'paired ' if attributes['paired'] else ''}seeds; *: statistically "
        "significant (p < 0.05 after Holm's correction). Effect: Cohen's d. Seeds needed: to "
        "detect this difference with probability 0.8. Noise floor: spread expected from finite "
        "test sets if all clients had equal accuracy."
    )
    headings = ("method", "mean ± sd", "noise\nfloor", "difference", "95% CI\nStudent",
                "95% CI\nbootstrap", "p\nHolm", "effect", "seeds\nneeded")  # fmt: skip
    return Table(escape_control_chars(title), headings, rows, note)


def to_text(compared: xr.Dataset, form: Literal["markdown", "latex", "csv"] = "markdown") -> str:
    r"""Formats a comparison as a table. Fractions are in percent.

    Args:
        compared: What `fedjax_fair.results.compare` returned.
        form: ``"markdown"``; ``"latex"``, for the package booktabs; or ``"csv"``, with all digits.

    Returns:
        The text, which ends with a newline. ``*`` marks significant differences (p < 0.05 after
        Holm's correction).

    Raises:
        ValueError: If ``form`` is unknown.

    Examples:
        >>> import xarray as xr
        >>> from fedjax_fair.results import compare
        >>> accuracy = [[[0.7], [0.9]], [[0.8], [1.1]]]
        >>> dims = ("algorithm", "seed", "round")
        >>> runs = xr.Dataset(
        ...     {"accuracy_mean_clients": (dims, accuracy, {"units": "1"})},
        ...     {"algorithm": ["fedavg", "divfl"], "round": [10]},
        ... )
        >>> print(to_text(compare(runs, "accuracy_mean_clients"), "csv").splitlines()[0])
        metric,unit,baseline,method,mean,deviation,noise_floor,difference,low,high,bootstrap_low,bootstrap_high,p,effect_size,seeds,seeds_needed
    """
    checks.one_of("form", form, ("markdown", "latex", "csv"))
    if form == "csv":
        frame, attributes = _frame(compared), compared.attrs
        about = attributes["metric"], _unit(compared), escape_control_chars(attributes["baseline"])
        for place, name in enumerate(("metric", "unit", "baseline")):
            frame.insert(place, name, about[place])
        return frame.to_csv(index=False, lineterminator="\n")
    table = comparison_table(compared, digits=2)
    caption = f"{table.title}. {table.note}"
    headings = [heading.replace("\n", " ") for heading in table.headings]
    columns = len(headings) - 1
    if form == "markdown":
        head, *rows = (f"| {' | '.join(row)} |" for row in (headings, *table.rows))
        return "\n".join([caption, "", head, "|---|" + "---:|" * columns, *rows, ""])
    head, *rows = (" & ".join(map(_latex, row)) + r" \\" for row in (headings, *table.rows))
    begin = rf"\begin{{tabular}}{{l{'r' * columns}}}"
    parts = [f"% {caption}", begin, r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([*parts, r"\end{tabular}", ""])


def _frame(compared: xr.Dataset) -> pd.DataFrame:
    """One row per method, the baseline first; fractions in percent."""
    import pandas as pd

    names = [*_IN_UNIT, *_WITHOUT_UNIT]
    baseline = {name: [float(compared[f"baseline_{name}"])] for name in _IN_UNIT[:3]}
    first = pd.DataFrame(baseline, [compared.attrs["baseline"]])
    frame: Any = pd.concat([first, compared[names].to_dataframe()])[names].astype(float)
    if _unit(compared) == "%":
        frame[_IN_UNIT] *= 100
    frame.insert(0, "method", [escape_control_chars(name) for name in frame.index])
    return frame


def _unit(compared: xr.Dataset) -> str:
    return "%" if compared.attrs["units"] == "1" else compared.attrs["units"]


def _latex(cell: str) -> str:
    r"""Escapes a cell for LaTeX.

    Examples:
        >>> _latex("by_size, 5 %"), _latex("-0.5 ± 1.0")
        ('by\\_size, 5 \\%', '$-$0.5 $\\pm$ 1.0')
    """
    escaped = "".join(_LATEX.get(char, char) for char in cell)
    return re.sub(r"(?<!\S)([-+])(?=\d)", r"$\1$", escaped)


_LATEX = {char: f"\\{char}" for char in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "∞": r"$\infty$",
    "*": r"$^*$",
}
