"""The page of a maximization: how good each method's set is, what it cost, and what is in it."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_fair.report.document import details, document, section, text
from fedjax_fair.report.intervals import as_text, student
from fedjax_fair.submodular.federated.comparison import GREEDY, POPULAR

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["page"]

_COLUMNS = {
    "share": "% of centralized",
    "beyond": "% beyond popular",
    "rounded": "% by random rounding",
    "rounds": "rounds",
    "contacted": "clients contacted",
    "up": "Mbit up",
    "down": "Mbit down",
}


def page(results: xr.Dataset, config: dict[str, Any], environment: dict[str, Any]) -> str:
    """Writes a maximization as an HTML page that needs no other file and no network.

    Args:
        results: What ``maximize.solve`` returned.
        config: The configuration.
        environment: Versions and device.

    Returns:
        The page.

    Examples:
        >>> import xarray as xr
        >>> over = ("algorithm", "seed", "round")
        >>> values, bits = np.array([[[0, 2.0]], [[0, 1.0]]]), np.array([[[0, 0]], [[0, 8]]])
        >>> one = np.array([[2.0], [1.0]])
        >>> solved = xr.Dataset(
        ...     {"value": (over, values), "bits_up": (over, bits), "bits_down": (over, bits),
        ...      "final_value": (over[:2], one), "rounded": (over[:2], one), "contacted": (over, bits),
        ...      "rounds": ("algorithm", [0, 1]),
        ...      "chosen": ((*over[:2], "item"), np.ones((2, 1, 1), bool))},
        ...     {"algorithm": [GREEDY, POPULAR], "seed": [0], "label": ("item", ["a movie"])},
        ...     {"data": "movies", "k": 1, "clients": 3})
        >>> "a movie" in page(solved, {}, {})
        True
    """
    measured = _measured(results)
    attrs = results.attrs
    title = f"Federated maximization on {attrs['data']}"
    seeds = results.sizes["seed"]
    half = " ±: half of the 95 % interval of the mean over seeds." if seeds > 1 else ""
    body = f"""<h1>{text(title)}</h1>
<p><b>Which method finds {attrs["k"]:,} of {results.sizes["item"]:,} items that serve
{attrs["clients"]:,} clients best, and how much has to be sent for it?</b></p>
<p>{text(", ".join(map(str, results["algorithm"].values)))}; {seeds} seed{"s" if seeds > 1 else ""}.
</p>
<p id="finding">{text(_finding(results, measured))}</p>
{_table(results, measured)}
<p class="note">Centralized greedy sees all data and is the reference; popular takes the items that
are best alone.{half}</p>
<div class="legend" id="legend" role="group" aria-label="methods"></div>
{
        section(
            "bits",
            "How much has to be sent?",
            "Value of the set as a share of that of centralized greedy, after so many bits to and "
            "from all clients. Methods that send nothing are level lines.",
        )
    }
<div class="wide"><h2>What was chosen?</h2><div class="controls">
<label>method <select id="choose-method"></select></label>
<label>seed <select id="choose-seed"></select></label></div>
<p class="how" id="items-note"></p><ul class="items" id="items"></ul></div>
{details(config, environment)}"""
    return document(title, body, _contents(results, measured), ("charts", "maximize"))


def _measured(results: xr.Dataset) -> dict[str, xr.DataArray]:
    """The columns of the table, over ``algorithm`` and mostly ``seed``."""
    found = results["final_value"]
    greedy, popular = (found.sel(algorithm=name, drop=True) for name in (GREEDY, POPULAR))
    return {
        "share": 100 * found / greedy,
        "beyond": 100 * ((found - popular) / (greedy - popular)).where(greedy > popular),
        "rounded": 100 * results["rounded"] / greedy,
        "rounds": results["rounds"],
        "contacted": results["contacted"].max("round"),
        "up": results["bits_up"].max("round") / 1e6,
        "down": results["bits_down"].max("round") / 1e6,
    }


def _table(results: xr.Dataset, measured: dict[str, xr.DataArray]) -> str:
    head = "".join(f'<th class="number" scope="col">{text(c)}</th>' for c in _COLUMNS.values())
    rows = []
    for method in results["algorithm"].values:
        cells = "".join(
            f'<td class="number" data-label="{text(heading)}"><span>'
            f"{_cell(name, measured[name].sel(algorithm=method).values)}</span></td>"
            for name, heading in _COLUMNS.items()
        )
        rows.append(f'<tr><th scope="row">{text(method)}</th>{cells}</tr>')
    return (
        '<div class="scroll"><table class="cards"><thead><tr><th scope="col">method</th>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(name: str, values: np.ndarray) -> str:
    mean = float(np.mean(values))
    if name in ("rounds", "contacted"):
        return f"{mean:,.0f}"
    return f"{mean:.3g}" if name in ("up", "down") else as_text(values)


def _finding(results: xr.Dataset, measured: dict[str, xr.DataArray]) -> str:
    sent = (measured["up"] + measured["down"]).mean("seed")
    share = measured["share"].mean("seed").where((sent > 0) & (sent["algorithm"] != POPULAR))
    if share.isnull().all():
        return ""
    best = str(share["algorithm"].values[int(np.nanargmax(share.values))])
    return (
        f"Of those that keep data with the clients, {best} comes closest to centralized greedy: "
        f"{float(share.max()):.1f} % of its value, for {float(sent.sel(algorithm=best)):.3g} Mbit."
    )


def _contents(results: xr.Dataset, measured: dict[str, xr.DataArray]) -> dict[str, Any]:
    ordered = results.transpose("algorithm", "seed", "round", ...)
    greedy = ordered["final_value"].sel(algorithm=GREEDY).values[:, None]
    shares = 100 * ordered["value"].values / greedy
    bits = (ordered["bits_up"] + ordered["bits_down"]).values.mean(axis=1)
    masks = ordered["chosen"].values.astype(bool)
    items = np.flatnonzero(masks.any(axis=(0, 1)))
    found: dict[str, Any] = {
        "methods": [str(name) for name in ordered["algorithm"].values],
        "seeds": ordered["seed"].values.tolist(),
        "bits": [_curve(*pair) for pair in zip(bits, shares, strict=True)],
        "level": np.round(measured["share"].mean("seed").values, 3).tolist(),
        "items": [str(label) for label in ordered["label"].values[items]],
        "chosen": [[np.flatnonzero(run[items]).tolist() for run in method] for method in masks],
    }
    if "picture" in ordered:
        pictures = ordered["picture"].values[items].astype(np.uint8)
        found["side"] = list(pictures.shape[1:])
        found["pictures"] = base64.b64encode(pictures.tobytes()).decode()
    return found


def _curve(bits: np.ndarray, shares: np.ndarray) -> list[list[float | None]] | None:
    """Bits, means and ends of intervals; None for a method that sends nothing."""
    with np.errstate(invalid="ignore"):
        used = (bits > 0) & (shares > 0).all(axis=0)
    if not used.any():
        return None
    columns = student(shares[:, used].T)
    return [
        [None if np.isnan(value) else round(float(value), 3) for value in column]
        for column in (bits[used], *columns)
    ]
