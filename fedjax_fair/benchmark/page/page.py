"""The page of a benchmark: findings, results, ranking, trade-offs and a card per method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_fair.benchmark.page import charts, tables, vega
from fedjax_fair.benchmark.page.contents import OVERALL, Contents, check
from fedjax_fair.benchmark.page.measures import GROUPS, MEASURES
from fedjax_fair.report.document import (
    collapsible,
    details,
    document,
    script,
    text,
    web_file,
)

__all__ = ["page", "write"]

_PACKAGE = "fedjax_fair.benchmark.page"


def write(contents: Contents, folder: Path, interactive: bool | None = None) -> Path:
    """Writes ``index.html`` into a folder.

    Args:
        contents: What the page shows.
        folder: An existing folder, or a new one.
        interactive: Whether trade-offs and curves are Altair charts; by default, if the packages of
            the extra ``benchmark`` are installed.

    Returns:
        Path of the page.

    Raises:
        ValueError: If the contents lack a column, or do not fit together.
    """
    html = page(contents, interactive)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    path.write_text(html, encoding="utf8")
    return path


def page(contents: Contents, interactive: bool | None = None) -> str:
    """Renders the page, see `write`."""
    check(contents)
    interactive = vega.is_installed() if interactive is None else interactive
    kinds = list(dict.fromkeys(contents.methods["kind"]))
    kinds += [kind for kind in dict.fromkeys(contents.results["kind"]) if kind not in kinds]
    names = list(contents.federations["name"])
    scopes = [name for name in (OVERALL, *names) if (contents.ranking["scope"] == name).any()]
    groups = dict(zip(map(str, range(len(GROUPS))), GROUPS, strict=True))
    how_ranked = MEASURES[contents.ranked_by].label
    findings = "".join(f"<p>{part}</p>" for part in _findings(contents))
    scope = _select("scope", "dataset", dict.fromkeys(scopes), next(iter(scopes), ""))
    body = f"""<h1>{text(contents.title)}</h1>
<p class="note">{text(_subtitle(contents))}</p>
{_navigation()}
<div class="headline" id="findings">{findings}</div>
{tables.verdict_table(contents)}
<h2>How to read this page</h2>
{_key(contents)}
<h2 id="results-title">Results</h2>
<p class="how">Select a heading to sort. Settings were selected by: {text(contents.criterion)}.</p>
<div class="controls">
{_select("federation", "dataset", dict.fromkeys(names), names[0])}
{_select("kind", "kind", {"": "all kinds"} | dict(zip(kinds, kinds, strict=True)), "")}
{_select("group", "measures", groups | {"": "all measures"}, "0")}
<label>search<input type="search" id="search" placeholder="method or kind"></label>
</div>
<div id="results">{tables.federation_tables(contents)}</div>
{_failures(contents)}
<h2 id="ranking-title">Ranking</h2>
<p class="how">By {text(how_ranked)}. p: tests against {text(contents.baseline)}, paired by seed,
with Holm's adjustment over methods. Methods with a letter in common are not separated in tests of
all pairs, with Holm's adjustment over pairs. Filled: the interval excludes zero.</p>
<div class="controls">{scope}</div>
<div id="ranking">{tables.ranking_tables(contents)}</div>
<h2 id="tradeoffs-title">Does fairness cost accuracy?</h2>
<p class="how">Test examples; upper left is best. Lines: 95% intervals. Names of methods that no
other surpasses in both measures are written; point at a marker, or select it, to see its
name.</p>
{charts.legend(kinds)}
<div class="plots">{_tradeoffs(contents, kinds, interactive)}</div>
{_all_curves(contents) if interactive else ""}
<h2 id="methods-title">Methods</h2>
{"".join(_card(contents, row) for row in contents.methods.to_dict("records"))}
<h2 id="reproduce">Reproduce</h2>
<pre>{text(contents.command)}</pre>
{details({"Environment": contents.environment})}"""
    scripts = script(web_file(_PACKAGE, "benchmark.js"))
    scripts += vega.scripts(contents, kinds) if interactive else ""
    return document(contents.title, body, scripts, web_file(_PACKAGE, "benchmark.css"))


def _subtitle(contents: Contents) -> str:
    seeds = contents.results["seeds"]
    low, high = int(seeds.min()), int(seeds.max())
    count = f"{low}" if low == high else f"{low} to {high}"
    counts = ", ".join(
        f"{len(table)} {noun}{'s' * (len(table) != 1)}"
        for noun, table in (("method", contents.methods), ("dataset", contents.federations))
    )
    return f"Protocol {contents.protocol}, {contents.track} track: {counts}, {count} seeds."


def _navigation() -> str:
    links = {
        "results-title": "Results",
        "ranking-title": "Ranking",
        "tradeoffs-title": "Trade-offs",
        "methods-title": "Methods",
        "reproduce": "Reproduce",
    }
    parts = "".join(f'<a href="#{name}">{label}</a>' for name, label in links.items())
    return f'<nav aria-label="sections">{parts}</nav>'


def _findings(contents: Contents) -> list[str]:
    """Returns sentences about the ranking and the verdicts, as HTML."""
    parts = []
    ranked = contents.ranking[contents.ranking["scope"] == OVERALL]
    ranked = ranked[ranked["rank"].notna()].sort_values("rank")
    measure = MEASURES[contents.ranked_by].label
    if len(ranked):
        best = ranked.iloc[0]
        letters = set(str(best["letters"]))
        same = [
            row["method"]
            for row in ranked.iloc[1:].to_dict("records")
            if letters & set(str(row["letters"]))
        ]
        first = tables.link(str(best["method"]))
        others = ", ".join(map(tables.link, same))
        parts.append(
            f"<b>{text(measure).capitalize()}</b>, all datasets: {first} ranks first"
            + (f". Not separated from it: {others}." if same else ", separated from all others.")
        )
    for verdict, rows in contents.verdicts.groupby("verdict", sort=False):
        names = ", ".join(map(tables.link, rows["method"]))
        about = text(str(verdict)).capitalize()
        parts.append(f"<b>{about}</b>, against {text(contents.baseline)}: {names}.")
    parts.append(text(contents.limits))
    return parts


def _key(contents: Contents) -> str:
    shown = [name for name in MEASURES if name in contents.results]
    items = "".join(
        f"<dt>{text(measure.label)} ({text(measure.unit)})</dt><dd>{text(measure.about)}</dd>"
        for measure in (MEASURES[name] for name in shown)
    )
    return (
        f"<p>{text(contents.settings)}</p>"
        '<p class="how">±: half of the 95% CI over seeds. Diverged runs count as a constant '
        "predictor; their share is below the method's name. Personalized models serve clients "
        "where it says so, global models elsewhere. - is a missing value, with its reason below "
        "the table.</p>"
        f'<details><summary>Measures</summary><dl class="about">{items}</dl></details>'
    )


def _failures(contents: Contents) -> str:
    items = "".join(f"<li>{text(reason)}</li>" for reason in contents.failures)
    return items and collapsible(f"Not run ({len(contents.failures)})", f"<ul>{items}</ul>")


def _select(name: str, label: str, options: dict[str, Any], chosen: str) -> str:
    parts = "".join(
        f'<option value="{text(key)}"{" selected" if key == chosen else ""}>'
        f"{text(shown or key)}</option>"
        for key, shown in options.items()
    )
    return f'<label>{label}<select id="{name}">{parts}</select></label>'


def _tradeoffs(contents: Contents, kinds: list[str], interactive: bool) -> str:
    parts = []
    for place, name in enumerate(contents.federations["name"]):
        rows = contents.results[contents.results["federation"] == name]
        chart = charts.tradeoff(rows, kinds)
        if interactive:
            chart = f'<div class="vega" id="{vega.tradeoff_id(place)}">{chart}</div>'
        parts.append(
            f"<figure><figcaption>{text(name)}</figcaption>{chart}"
            '<output class="readout how"></output></figure>'
        )
    return "".join(parts)


def _all_curves(contents: Contents) -> str:
    parts = "".join(
        f"<figure><figcaption>{text(name)}</figcaption>"
        f'<div class="vega" id="{vega.curves_id(place)}"></div></figure>'
        for place, name in enumerate(contents.federations["name"])
    )
    return (
        '<h2>How fast does each method learn?</h2><p class="how">Validation accuracy in %, mean '
        "over seeds. Select methods in the legend; several with the shift key.</p>"
        f'<div class="plots">{parts}</div>'
    )


def _card(contents: Contents, row: dict[str, Any]) -> str:
    """The details of a method: summary, paper, settings, curves and command."""
    name = str(row["method"])
    link = str(row.get("link") or "")
    paper = text(row["paper"])
    if link.startswith(("https://", "http://")):
        paper = f'<a href="{text(link)}" rel="noreferrer">{paper}</a>'
    items = {"paper": paper}
    if row.get("formula"):
        items["formula"] = f"<code>{text(row['formula'])}</code>"
    for federation, tuned in (row["tuned"] or {}).items():
        items[f"tuned, {text(federation)}"] = text(tuned)
    facts = "".join(f"<dt>{key}</dt><dd>{fact or '-'}</dd>" for key, fact in items.items())
    curves = _curves(contents, name)
    if curves:
        gray = f"; gray: {contents.baseline}" if name != contents.baseline else ""
        about = f"Validation accuracy (%) by round, mean and 95% CI{gray}."
        curves = f'<p class="how">{text(about)}</p><div class="small-plots">{curves}</div>'
    return (
        f'<details class="card" id="{tables.anchor(name)}"><summary>{text(name)}'
        f"<span>{text(row['kind'])}</span></summary><p>{text(row['summary'])}</p>"
        f'<dl class="about">{facts}</dl>{curves}<p class="how">Reproduces its rows:</p>'
        f"<pre>{text(row['command'])}</pre></details>"
    )


def _curves(contents: Contents, method: str) -> str:
    parts = []
    for federation in contents.federations["name"]:
        rows = contents.curves[contents.curves["federation"] == federation]
        one = rows[rows["method"] == method]
        if one.empty or not np.isfinite(one["accuracy"].to_numpy(float)).any():
            continue
        baseline = rows[rows["method"] == contents.baseline]
        if method == contents.baseline:
            baseline = baseline.iloc[:0]
        parts.append(charts.curve(one, baseline, federation))
    return "".join(parts)
