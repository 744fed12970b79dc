"""Tables and forest plots of exploratory claims on the pages of the reproductions.

    python -m experiments.reproduction.pages

Replaces the tables between ``<!-- claim NAME -->`` and ``<!-- end -->`` in ``selection.md`` and
``equitable.md``, which are computed from committed runs, draws their figures, and writes
``claims.csv``. Tables whose name starts with ``protocol-`` are those of ``protocol_results``.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from experiments.common import markdown_table
from experiments.reproduction import forests, paper, runs
from experiments.reproduction.cross import SETTINGS, pairs_of
from experiments.reproduction.equitable import short, varied
from fedjax_fair import results
from fedjax_fair.app.settings.paper_presets import ABLATIONS, PAPERS, SELECTION_TABLES
from fedjax_fair.report.drawing import draw_curves, styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CLAIMS", "Claim", "blocks", "compared", "draw_gaps", "number", "table"]

FOLDER = Path("docs/reproduction")
PAGES = ("selection.md", "equitable.md")
BLOCK = re.compile(r"<!-- claim ([\w-]+) -->\n(.*?)<!-- end -->", re.DOTALL)
DISSIMILARITY = ("client_dissimilarity", "dissimilarity")
ACCURACY = ("accuracy_mean_clients", "accuracy")
SIGMA = ("sigma_acc", "sigma")
EXAMPLES = ("accuracy_mean_examples", "accuracy")
CONFIRMED = ("mnist-methods", "mnist-weights", "mnist-windows", "cifar10-methods")
"""Claims that pages show with runs of the protocol."""


class Claim(NamedTuple):
    """Differences to a baseline that a claim is about.

    Attributes:
        file: File of runs.
        methods: Methods, without the baseline.
        baseline: The baseline.
        metric: Variable of the runs, and name of the papers' value.
        published: The papers' values.
        factor: 100 for percent.
    """

    file: str
    methods: tuple[str, ...]
    baseline: str
    metric: tuple[str, str]
    published: Mapping[str, Mapping[str, Any]] = {}
    factor: float = 100


def _selection_claims() -> dict[str, Claim]:
    claims = {}
    for data, presets in SELECTION_TABLES.items():
        suffix = "" if data == "mnist" else f"-{data}"
        names = {
            name: presets[f"{name}{suffix}"].methods
            for name in ("table1", "table2", "table3", "table4")
        }
        file, published = f"selection-{data}-runs.csv", paper.SELECTION[data]
        of_weights = tuple(name for name in names["table2"] if name.startswith("subtrunc"))
        of_windows = tuple(name for name in names["table3"] if name.startswith("unionfl"))
        best, of_loss = (name for name in names["table4"] if name.startswith("subtrunc"))
        others = tuple(name for name in names["table1"] if name != "fedavg")
        for claim, methods, baseline, metric in (
            ("methods", others, "fedavg", DISSIMILARITY),
            ("weights", of_weights, "divfl", DISSIMILARITY),
            ("windows", of_windows, "divfl", DISSIMILARITY),
            ("utility", (of_loss, "divfl"), best, DISSIMILARITY),
            ("weights-accuracy", of_weights, "divfl", ACCURACY),
        ):
            if f"{data}-{claim}" not in CONFIRMED:
                claims[f"{data}-{claim}"] = Claim(file, methods, baseline, metric, published)
    readings = SELECTION_TABLES["mnist"]["sensitivity"].methods
    claims["mnist-readings"] = Claim(
        "selection-mnist-runs.csv",
        tuple(name for name in readings if name not in ("fedavg", "divfl")),
        "divfl",
        DISSIMILARITY,
    )
    return claims


def _equitable_claims() -> dict[str, Claim]:
    claims = {}
    for data in ("mnist", "cifar10"):
        file, published = f"equitable-table-{data}-runs.csv", paper.EQUITABLE[data]
        methods = tuple(PAPERS[f"equitable-{data}"].config.methods)
        if data == "cifar10":  # The others have one seed.
            several = ("fedprox", "clustered_by_similarity", "power_of_choice", "equitable")
            methods = tuple(name for name in methods if name.partition(":")[0] in several)
        baseline = next(name for name in methods if name.startswith("fedprox"))
        others = tuple(name for name in methods if name != baseline)
        claims[f"equitable-{data}"] = Claim(file, others, baseline, SIGMA, published)
        claims[f"equitable-{data}-accuracy"] = Claim(file, others, baseline, EXAMPLES, published)
    for name in ABLATIONS:
        first, *others = PAPERS[f"equitable-{name}-mnist"].config.methods
        metric, factor = (SIGMA, 100) if name == "clusters" else (("client_disagreement", ""), 1)
        claims[f"equitable-{name}"] = Claim(
            "equitable-ablations-mnist-runs.csv", tuple(others), first, metric, {}, factor
        )
        if name == "clusters":
            by_disagreement = claims["equitable-clusters"]._replace(
                metric=("client_disagreement", ""), factor=1
            )
            claims["equitable-clusters-disagreement"] = by_disagreement
    return claims


CLAIMS = {**_selection_claims(), **_equitable_claims()}
"""By the name of their block."""
CURVES = ("equitable-mnist", "equitable-cifar10")
"""Claims with a figure over rounds."""
CROSSED = tuple(SETTINGS)
"""Claims ``cross-NAME``: each selector with equitable weights less without."""
WITHOUT = "selection without equitable weights"
"""Baseline of these claims."""
HEADINGS = (
    "endpoint",
    "method",
    "here",
    "published",
    "difference",
    "95% CI",
    "published difference",
    "p",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables and forest plots of claims.")
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("--no-figures", action="store_true", help="write the tables only")
    options = parser.parse_args()
    for page in PAGES:
        path = options.output / page
        text = path.read_text("utf8")
        path.write_text(
            replace_tables(text, {name: table(name) for name in exploratory(text)}), "utf8"
        )
    numbers().to_csv(options.output / "claims.csv", index=False, float_format="%.4f")
    for page in () if options.no_figures else PAGES:
        for name in exploratory((options.output / page).read_text("utf8")):
            figure(name).savefig(options.output / f"claim-{name}.png", dpi=90)
            if name in CURVES:
                curves(name).savefig(options.output / f"curves-{name}.png", dpi=90)


def numbers() -> pd.DataFrame:
    """Returns the differences of all claims."""
    rows = []
    for name in (*CLAIMS, *(f"cross-{data}" for data in CROSSED)):
        for one in compared(name):
            columns = one[["mean", "difference", "low", "high", "p"]].to_dataframe().reset_index()
            columns.insert(0, "claim", name)
            columns.insert(1, "endpoint", one.attrs["endpoint"])
            rows.append(columns.rename(columns={"algorithm": "method"}))
    return pd.concat(rows, ignore_index=True)


def blocks(text: str) -> dict[str, str]:
    """Returns the tables on a page, by the name of their claim."""
    return {found[1]: found[2] for found in BLOCK.finditer(text)}


def exploratory(text: str) -> list[str]:
    """Returns the names of a page's tables that are of this module; others are the protocol's."""
    return [name for name in blocks(text) if not name.startswith("protocol-")]


def replace_tables(text: str, tables: Mapping[str, str]) -> str:
    r"""Replaces tables of a page by name, and keeps the others.

    Examples:
        >>> replace_tables("<!-- claim a -->\nold\n<!-- end -->", {"a": "new\n"})
        '<!-- claim a -->\nnew\n<!-- end -->'
    """
    return BLOCK.sub(
        lambda found: f"<!-- claim {found[1]} -->\n{tables.get(found[1], found[2])}<!-- end -->",
        text,
    )


def compared(name: str) -> list[xr.Dataset]:
    """Returns the differences of a claim after the last round and over all evaluations.

    Round 0, the untrained model, is excluded. P values are adjusted (Holm) per endpoint.
    """
    if name.startswith("cross-"):
        return _crossed(name.removeprefix("cross-"))
    claim = CLAIMS[name]
    measured, baseline = _measured(claim)
    found = []
    for endpoint, values in _endpoints(measured).items():
        one = results.differences(values, baseline)
        # The papers evaluate the last round.
        of_paper = claim.published if endpoint == "last round" else {}
        values = [_published(of_paper, str(method), claim) for method in one["algorithm"].values]
        one["published"] = ("algorithm", values)
        one["published_difference"] = one["published"] - one["published"].sel(algorithm=baseline)
        found.append(_labeled(one, claim, endpoint, baseline))
    return found


def _measured(claim: Claim) -> tuple[xr.DataArray, str]:
    """Returns the metric without round 0, and the baseline, which is the first method."""
    wanted = [claim.baseline, *claim.methods]
    values = claim.factor * runs.collect(wanted, FOLDER / claim.file)[claim.metric[0]]
    values = values.sel(round=slice(1, None))
    if claim.file.startswith("equitable"):
        rename = varied if "ablations" in claim.file else short
        values = rename(values.to_dataset())[claim.metric[0]]
    return values, str(values["algorithm"].values[0])


def _published(published: Mapping[str, Mapping[str, Any]], method: str, claim: Claim) -> float:
    value = published.get(method, {}).get(claim.metric[1])
    return np.nan if value is None else value[0]


def _endpoints(measured: xr.DataArray) -> dict[str, xr.DataArray]:
    return {"last round": measured.isel(round=-1), "all rounds": measured.mean("round")}


def _labeled(one: xr.Dataset, claim: Claim, endpoint: str, baseline: str) -> xr.Dataset:
    names = {
        "client_dissimilarity": "dissimilarity", "client_disagreement": "disagreement",
        "accuracy_mean_clients": "accuracy", "accuracy_mean_examples": "accuracy",
    }  # fmt: skip
    label = f"{names.get(claim.metric[0], claim.metric[0])}, {endpoint}"
    units = "points" if claim.factor == 100 else "nat"
    return one.assign_attrs(
        metric=endpoint, endpoint=endpoint, baseline=baseline, paired=1, long_name=label,
        units=units,
    )  # fmt: skip


def curves(name: str) -> Figure:
    """Draws the paired differences of a claim over rounds, without round 0."""
    measured, baseline = _measured(CLAIMS[name])
    methods = [method for method in map(str, measured["algorithm"].values) if method != baseline]
    gaps = measured.sel(algorithm=methods) - measured.sel(algorithm=baseline, drop=True)
    return draw_gaps(gaps, f"{CLAIMS[name].metric[0]}, difference to {baseline} (points)")


def draw_gaps(gaps: xr.DataArray, label: str) -> Figure:
    """Draws differences over rounds and their 95% CI, in a panel per method with the same axes.

    Args:
        gaps: Paired differences, ``(algorithm, seed, round)``.
        label: Name of their axis.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    methods = gaps["algorithm"].values
    width = min(len(methods), 6)
    height = -(-len(methods) // width)
    drawn = Figure(figsize=(2.1 * width + 0.6, 2.1 * height + 0.3), layout="constrained")
    panels = drawn.subplots(height, width, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, method in zip(panels, methods, strict=False):
        own = gaps.sel(algorithm=[method]).transpose("algorithm", "seed", "round")
        looks = styles(own)
        draw_curves(axes, own, looks)
        axes.axhline(0, color="0.5", linewidth=1)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_title(_wrapped(looks[0]["label"], 26), size=8)
    for place in range(len(methods), len(panels)):
        panels[place].remove()
        panels[place - width].tick_params(labelbottom=True)
    drawn.supxlabel("Communication round", size=9)
    drawn.supylabel(textwrap.fill(label, 15 * height + 20), size=9)
    return drawn


def _wrapped(name: str, width: int) -> str:
    """Breaks the name of a method, if it is longer, at spaces and before settings."""
    if len(name) > width:
        name = re.sub(r"(?<=[:,])(?=\S)", " ", name)
    return textwrap.fill(name, width, break_long_words=False)


def _crossed(data: str) -> list[xr.Dataset]:
    """Differences of the combination to the selector alone, as rows of one comparison."""
    config = SETTINGS[data]
    measured = (
        100 * runs.collect(config.methods, FOLDER / f"cross-{data}-runs.csv")["group_sigma_acc"]
    )
    measured = measured.sel(round=slice(1, None))
    pairs = pairs_of(config.methods)
    claim, found = Claim("", (), "", ("sigma_acc of groups", "")), []
    for endpoint, values in _endpoints(measured).items():
        own = [
            values.sel(algorithm=both) - values.sel(algorithm=alone)
            for alone, both in pairs.values()
        ]
        gaps = xr.concat(own, "algorithm", coords="minimal", compat="override")
        gaps = gaps.assign_coords(algorithm=list(pairs))
        zero = xr.zeros_like(gaps.isel(algorithm=[0])).assign_coords(algorithm=[WITHOUT])
        one = results.differences(xr.concat([zero, gaps], "algorithm"), WITHOUT)
        one["mean"] = (
            "algorithm",
            [np.nan, *(float(values.sel(algorithm=both).mean()) for _, both in pairs.values())],
        )
        one["published"] = one["published_difference"] = one["mean"] * np.nan
        found.append(_labeled(one, claim, endpoint, WITHOUT))
    return found


def table(name: str) -> str:
    """Returns the table of a claim, as Markdown with the seeds and the family below it."""
    rows, digits = [], 3 if CLAIMS.get(name, Claim("", (), "", ("", ""))).factor == 1 else 2
    found = compared(name)
    for one in found:
        for method in map(str, one["algorithm"].values):
            row = {str(key): float(one[key].sel(algorithm=method)) for key in one}
            is_baseline = method == one.attrs["baseline"]
            if is_baseline and method == WITHOUT:
                continue
            rows.append([
                one.attrs["endpoint"], f"`{method}`", number(row["mean"], f".{digits}f"),
                number(row["published"], f".{digits}f"),
                *(["baseline", "", "", ""] if is_baseline else [
                    number(row["difference"], f"+.{digits}f"),
                    _interval(row, digits),
                    number(row["published_difference"], f"+.{digits}f"),
                    "< .001" if row["p"] < 5e-4 else number(row["p"], ".3f"),
                ]),
            ])  # fmt: skip
    seeds, family = int(found[0]["seeds"].max()), found[0].sizes["algorithm"] - 1
    note = f"{seeds} seeds; p adjusted (Holm) for the {family} comparisons of an endpoint."
    return "\n".join([*markdown_table(HEADINGS, rows), "", note, ""])


def number(value: float, form: str) -> str:
    """Formats a number, and NaN as an empty text."""
    return "" if np.isnan(value) else f"{value:{form}}"


def _interval(row: Mapping[str, float], digits: int) -> str:
    if row["difference_deviation"] == 0:
        return "equal in every seed"
    return f"{row['low']:+.{digits}f} to {row['high']:+.{digits}f}"


def figure(name: str) -> Figure:
    """Draws the forest plot of a claim, with published differences as diamonds."""
    from fedjax_fair.report import forest

    found = []
    for one in compared(name):
        kept = [method for method in one["algorithm"].values if method != one.attrs["baseline"]]
        found.append(one.sel(algorithm=kept))
    reported = found[0]["published_difference"].dropna("algorithm").to_series().to_dict()
    return forests.share_axis(forest.differences(found, reported))


if __name__ == "__main__":
    main()
