"""Page and figures of a maximization: values of sets, communication, and selected items."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.report import drawing
from fedjax_fair.report.contents import curve_of
from fedjax_fair.report.document import details, drawn_document, html_table, section, text
from fedjax_fair.results.formats import Table, format_mean
from fedjax_fair.submodular.federated.method_comparison import GREEDY, POPULAR
from fedjax_fair.utils.terminal import escape_control_chars

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["chosen_pictures", "figures", "maximization_table", "page", "value_against_bits"]

_GUARANTEED = "guaran-\nteed\n%"


def page(results: xr.Dataset, config: dict[str, Any], environment: dict[str, Any]) -> str:
    """Renders a maximization as an HTML page that needs no other file and no network.

    Args:
        results: What ``maximize.solve`` returned.
        config: The configuration.
        environment: Versions and device.
    """
    attrs, seeds = results.attrs, results.sizes["seed"]
    table = maximization_table(results)
    title = f"Federated maximization on {attrs['data']}"
    bits = section(
        "bits",
        "How many bits are sent?",
        "Value of the set as a share of that of centralized greedy, against bits to and from all "
        "clients. Methods that send nothing are horizontal lines.",
    )
    body = f"""<h1>{text(title)}</h1>
<p><b>Which method selects the best {attrs["k"]:,} of {results.sizes["item"]:,} items for
{attrs["clients"]:,} clients, and with how much communication?</b></p>
<p>{text(", ".join(map(str, results["algorithm"].values)))}; {seeds} seed{"s" if seeds > 1 else ""}.
</p>
<p id="finding">{text(_finding(results))}</p>
{html_table(table)}
<p class="note">{text(table.note)}</p>
<div class="legend" id="legend" role="group" aria-label="methods"></div>
{bits}
<div class="wide"><h2>Which items are selected?</h2><div class="controls">
<label>method <select id="choose-method"></select></label>
<label>seed <select id="choose-seed"></select></label></div>
<p class="how" id="items-note"></p><ul class="items" id="items"></ul></div>
{details({"Configuration": config, "Environment": environment})}"""
    return drawn_document(title, body, _contents(results), ("charts", "maximize"))


def maximization_table(results: xr.Dataset) -> Table:
    """Summarizes a maximization: values, shares of that of centralized greedy, communication."""
    final = results["final_value"]
    greedy, popular = (final.sel(algorithm=name, drop=True) for name in (GREEDY, POPULAR))
    shares = {
        "share\n%": _shares(results),
        "beyond\npopular\n%": 100
        * ((final - popular) / (greedy - popular)).where(greedy > popular),
    }
    note = (
        "Share: of the value of centralized greedy, which has all data. Beyond popular: the same, "
        "less the value of the items that are best alone."
    )
    if "rounded" in results:
        shares["random\nrounding\n%"] = 100 * results["rounded"] / greedy
    if "guaranteed_error" in results:
        bound = results["guaranteed_factor"] * greedy - results["guaranteed_error"]
        shares[_GUARANTEED] = 100 * bound / greedy
        note += (
            " Guaranteed: what theorem 3.2, 3.5 (with a cohort), 4.3 (fedcg+) or 5.1 (discrete "
            "greedy) promises, with centralized greedy as the optimum; < 0: nothing."
        )
    if "upper_bound" in results:
        limit = float(results["upper_bound"].min() / greedy.mean())
        note += f" No set has more than {100 * limit:.4g}%, as the gradients of a run show."
    if "importance_factor" in results:  # Which older results lack.
        factors = results["importance_factor"].values
        note += (
            f" Importance factors (algorithms 4 and 5): their sum is {factors.sum():.4g}, the "
            f"largest {factors.max():.3g}, of client {factors.argmax()}."
        )
    totals = {
        "rounds": (results["rounds"], ",.0f"),
        "clients\ncontacted": (results["contacted"].max("round"), ",.0f"),
        "Mbit\nup": (results["bits_up"].max("round") / 1e6, ".3g"),
        "Mbit\ndown": (results["bits_down"].max("round") / 1e6, ".3g"),
    }
    names = final["algorithm"].values.tolist()
    columns = {
        "value": [f"{value:.4g}" for value in final.mean("seed").values],
        **{
            heading: [
                "< 0"
                if heading == _GUARANTEED and np.mean(runs) < 0
                else format_mean(runs).replace(" ± ", "\n± ")
                for runs in share.transpose("algorithm", "seed").values
            ]
            for heading, share in shares.items()
        },
        **{
            heading: [
                format(np.mean(total.sel(algorithm=name).values), form)
                for name in final["algorithm"]
            ]
            for heading, (total, form) in totals.items()
        },
    }
    attrs, seeds = results.attrs, results.sizes["seed"]
    if seeds > 1:
        note += f" Means over {seeds} seeds; ±: half of their 95% CI (Student's t)."
    title = (
        f"{attrs['k']} of {results.sizes['item']:,} items for {attrs['clients']:,} clients "
        f"({escape_control_chars(attrs['data'])})"
    )
    rows = list(zip(map(escape_control_chars, names), *columns.values(), strict=True))
    return Table(title, ("method", *columns), rows, note)


def _shares(results: xr.Dataset) -> xr.DataArray:
    final = results["final_value"]
    return 100 * final / final.sel(algorithm=GREEDY, drop=True)


def _finding(results: xr.Dataset) -> str:
    sent = (results["bits_up"].max("round") + results["bits_down"].max("round")).mean("seed")
    shares = _shares(results).mean("seed").where((sent > 0) & (sent["algorithm"] != POPULAR))
    if shares.isnull().all():
        return ""
    best = str(shares["algorithm"].values[int(np.nanargmax(shares.values))])
    return (
        f"Of the methods that keep data on clients, {best} comes closest to centralized greedy: "
        f"{float(shares.max()):.1f}% of its value, for {float(sent.sel(algorithm=best)) / 1e6:.3g} "
        "Mbit."
    )


def _contents(results: xr.Dataset) -> dict[str, Any]:
    """Data for the script."""
    ordered = results.transpose("algorithm", "seed", "round", ...)
    greedy = ordered["final_value"].sel(algorithm=GREEDY).values[:, None]
    shares = 100 * ordered["value"].values / greedy
    bits = (ordered["bits_up"] + ordered["bits_down"]).values.mean(axis=1)
    masks = ordered["chosen"].values.astype(bool)
    items = np.flatnonzero(masks.any(axis=(0, 1)))
    numbers: dict[str, Any] = {
        "methods": [str(name) for name in ordered["algorithm"].values],
        "seeds": ordered["seed"].values.tolist(),
        "bits": [_curve(*pair) for pair in zip(bits, shares, strict=True)],
        "level": np.round(_shares(results).mean("seed").values, 3).tolist(),
        "items": [str(label) for label in ordered["label"].values[items]],
        "chosen": [[np.flatnonzero(run[items]).tolist() for run in method] for method in masks],
    }
    if "picture" in ordered:
        pictures = ordered["picture"].values[items].astype(np.uint8)
        numbers["side"] = list(pictures.shape[1:])
        numbers["pictures"] = base64.b64encode(pictures.tobytes()).decode()
    return numbers


def _curve(bits: np.ndarray, shares: np.ndarray) -> list[list[float | None]] | None:
    """The curve of a method, without rounds of value 0; None for one that sends nothing."""
    with np.errstate(invalid="ignore"):
        used = (bits > 0) & (shares > 0).all(axis=0)
    return curve_of(bits[used], shares[:, used]) if used.any() else None


def figures(results: xr.Dataset) -> dict[str, Figure]:
    """Returns the figures of a maximization by name."""
    drawn = {"value-against-bits": value_against_bits(results)}
    return drawn | ({"chosen": chosen_pictures(results)} if "picture" in results else {})


def value_against_bits(results: xr.Dataset) -> Figure:
    """Plots the value of the set, as a share of that of centralized greedy, against bits sent.

    Methods that send nothing are horizontal lines.
    """
    means = results.mean("seed")
    shares = means["value"] / means["final_value"].sel(algorithm=GREEDY, drop=True)
    totals = means["bits_up"] + means["bits_down"]
    figure, axes = drawing.single_axes(4.2, results)
    for share, total, look in zip(shares, totals, drawing.styles(shares), strict=True):
        values, bits = share.values, total.values
        sent = (bits > 0) & (values > 0)
        if sent.any():
            axes.plot(bits[sent], values[sent], marker=".", **look)
        else:
            last = values[np.isfinite(values)][-1]
            axes.axhline(last, **look | {"linewidth": 1, "linestyle": ":"})
    drawing.style_axes(axes)
    axes.set(xscale="log", xlabel="Bits to and from all clients so far")
    axes.set_ylabel("Value of the set / that of centralized greedy")
    drawing.add_legend(figure)
    return figure


def chosen_pictures(results: xr.Dataset) -> Figure:
    """Plots the items that every method selected with the first seed, a row per method.

    Items, which must have pictures, are in the order of their labels.
    """
    from matplotlib.figure import Figure

    first = results.isel(seed=0)
    pictures = results["picture"].values
    order = np.argsort(results["label"].values, kind="stable")
    rows = [order[mask[order]] for mask in first["chosen"].values.astype(bool)]
    columns = max(map(len, rows))
    # A layout engine would make room for titles, which are wider than pictures.
    figure = Figure(figsize=(max(3.5, 0.7 * columns), 0.95 * len(rows)))
    figure.subplots_adjust(left=0.01, right=0.99, top=0.96, bottom=0.01, hspace=0.45, wspace=0.1)
    panels = figure.subplots(len(rows), columns, squeeze=False)
    shares = first["final_value"] / first["final_value"].sel(algorithm=GREEDY, drop=True)
    for share, row, items in zip(shares, panels, rows, strict=True):
        title = drawing.escape_mathtext(share["algorithm"].item())
        title += f": {100 * share.item():.1f}% of centralized greedy"
        row[0].set_title(title, loc="left", size=8)
        for axes, item in zip(row, items, strict=False):
            axes.imshow(pictures[item], cmap="gray_r")
        for axes in row:
            axes.set_axis_off()
    return figure
