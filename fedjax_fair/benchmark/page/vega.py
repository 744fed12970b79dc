"""Interactive charts by Altair, where the extra ``benchmark`` is installed; all is inline."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from fedjax_fair.benchmark.page import charts, measures
from fedjax_fair.benchmark.page.contents import Contents, Frame
from fedjax_fair.report.document import json_script, script

__all__ = ["curves_id", "is_installed", "scripts", "tradeoff_id"]

_PACKAGES = ("altair", "vl_convert")
_MAX_COLORS = 7
_SHAPES = ("circle", "square", "triangle-up", "diamond")
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2])
_TEXT = {"labelColor": "var(--muted)", "titleColor": "var(--muted)", "titleFontWeight": "normal"}
_CONFIG = {
    "background": "transparent",
    "font": "inherit",
    "view": {"stroke": None},
    "axisY": {"titlePadding": 16},  # Labels are wider than measured, by the font of the page.
    "axis": _TEXT
    | {"gridColor": "var(--line)", "domainColor": "var(--line)", "tickColor": "var(--line)"}
    | {"labelFontSize": 12, "titleFontSize": 12, "tickCount": 6},
    "legend": _TEXT | {"labelFontSize": 12, "labelColor": "var(--ink)"},
}
"""Colors are variables of the style sheet, which differ in dark mode."""

# The interpreter evaluates expressions without `eval`, which the policy of the page refuses.
_START = """
for (const [id, spec] of Object.entries(JSON.parse(document.getElementById("specs").textContent))) {
  const target = document.getElementById(id);
  vegaEmbed(target, spec, {ast: true, renderer: "svg", actions: false, tooltip: {theme: "custom"}});
}
"""


def is_installed() -> bool:
    """Returns whether all packages are installed."""
    return all(importlib.util.find_spec(name) for name in _PACKAGES)


def tradeoff_id(place: int) -> str:
    """Returns the identifier of a trade-off chart's element."""
    return f"vega-tradeoff-{place}"


def curves_id(place: int) -> str:
    """Returns the identifier of the element of a federation's curves."""
    return f"vega-curves-{place}"


def scripts(contents: Contents, kinds: Sequence[str]) -> str:
    """Returns script elements that draw all charts.

    Raises:
        ImportError: If a package is not installed.
    """
    vl_convert = import_module("vl_convert")

    specs: dict[str, Any] = {}
    for place, name in enumerate(contents.federations["name"]):
        results = contents.results[contents.results["federation"] == name]
        specs[tradeoff_id(place)] = _tradeoff(results, kinds)
        curves = contents.curves[contents.curves["federation"] == name]
        specs[curves_id(place)] = _curves(curves)
    bundle = vl_convert.javascript_bundle().replace("</script", "<\\/script")
    return json_script("specs", specs) + script(bundle) + script(_START)


def _tradeoff(results: Frame, kinds: Sequence[str]) -> dict[str, Any]:
    alt = import_module("altair")
    import pandas as pd

    labeled = charts.unsurpassed(results)
    rows = [
        {
            "method": row["method"],
            "kind": row["kind"],
            "is_reference": bool(row["is_reference"]),
            "label": row["method"] if row["method"] in labeled else "",
            "x": 100 * row["standard_deviation"],
            "y": 100 * row["accuracy"],
            **_ends("x", row, "standard_deviation"),
            **_ends("y", row, "accuracy"),
            "accuracy (%)": measures.value("accuracy", row),
            "SD (points)": measures.value("standard_deviation", row),
        }
        for row in results.to_dict("records")
    ]
    frame = pd.DataFrame(rows).dropna(subset=["x", "y"])
    places = range(len(kinds))
    colors = [f"var(--m{place % _MAX_COLORS})" for place in places]
    shapes = [_SHAPES[place % len(_SHAPES)] for place in places]
    kind = {"legend": None}
    base = alt.Chart(frame).encode(
        x=alt.X("x:Q", title="standard deviation over clients (points)").scale(zero=False),
        y=alt.Y("y:Q", title="accuracy (%)").scale(zero=False),
        color=alt.Color("kind:N", scale=alt.Scale(domain=list(kinds), range=colors), **kind),
    )
    across = base.mark_rule(opacity=0.45).encode(x="x_low:Q", x2="x_high:Q")
    up = base.mark_rule(opacity=0.45).encode(y="y_low:Q", y2="y_high:Q")
    marks = base.mark_point(size=90, filled=True).encode(
        shape=alt.Shape("kind:N", scale=alt.Scale(domain=list(kinds), range=shapes), **kind),
        opacity=alt.condition("datum.is_reference", alt.value(0.45), alt.value(1)),
        tooltip=["method:N", "kind:N", "accuracy (%):N", "SD (points):N"],
    )
    names = base.mark_text(align="left", dx=9, fontSize=11).encode(
        text="label:N", color=alt.value("var(--ink)")
    )
    chart = alt.layer(across, up, marks.interactive(), names)
    chart = chart.properties(width="container", height=280)
    return _spec(chart)


def _ends(axis: str, row: dict[str, Any], name: str) -> dict[str, float]:
    """Returns the ends of a 95% interval in percent."""
    mean, half = 100 * row[name], 100 * row.get(f"{name}_half", float("nan"))
    return {f"{axis}_low": mean - half, f"{axis}_high": mean + half}


def _curves(curves: Frame) -> dict[str, Any]:
    alt = import_module("altair")

    names = list(dict.fromkeys(curves["method"]))
    frame = curves[["method", "round"]].assign(accuracy=100 * curves["accuracy"]).dropna()
    colors = [f"var(--m{place % _MAX_COLORS})" for place in range(len(names))]
    dashes = [_DASHES[place // _MAX_COLORS % len(_DASHES)] for place in range(len(names))]
    chosen = alt.selection_point(fields=["method"], bind="legend")
    look = alt.Legend(title=None, orient="bottom", columns=2, labelLimit=170, symbolType="stroke")
    chart = (
        alt.Chart(frame)
        .mark_line(point=frame["round"].nunique() == 1, strokeWidth=2)
        .encode(
            x=alt.X("round:Q"),
            y=alt.Y("accuracy:Q", title="accuracy (%)").scale(zero=False),
            color=alt.Color("method:N", scale=alt.Scale(domain=names, range=colors), legend=look),
            strokeDash=alt.StrokeDash("method:N", scale=alt.Scale(domain=names, range=dashes)),
            opacity=alt.condition(chosen, alt.value(1), alt.value(0.12)),
            tooltip=["method:N", "round:Q", alt.Tooltip("accuracy:Q", format=".1f")],
        )
        .properties(width="container", height=260)
        .add_params(chosen)
    )
    return _spec(chart)


def _spec(chart: Any) -> dict[str, Any]:
    """Returns the specification with its data, without an address to load a schema from."""
    spec = json.loads(chart.to_json())
    spec.pop("$schema", None)
    spec["config"] = _CONFIG
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec
