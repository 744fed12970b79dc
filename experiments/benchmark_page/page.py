"""The page of a benchmark: what is known, results, ranking, trade-offs and a card per method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.benchmark_page import html_tables as tables
from experiments.benchmark_page.drawings import share_styles, svg
from fedjax_fair.benchmark import published, report, report_figures, runner
from fedjax_fair.benchmark.collected import CRITERION, Collected
from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.measure_labels import GROUPS, MEASURES
from fedjax_fair.benchmark.protocol import TRACKS, VERSION
from fedjax_fair.benchmark.ranking import ORDERS
from fedjax_fair.benchmark.report_contents import (
    BASELINE,
    OVERALL,
    SETTINGS_ARE,
    Contents,
    by_method,
)
from fedjax_fair.benchmark.report_tables import verdict_of
from fedjax_fair.report.document import collapsible, details, document, script, text

__all__ = ["About", "describe", "page", "write"]


class About(NamedTuple):
    """Facts on the page of a benchmark, next to the contents of its report.

    Attributes:
        title: Title of the page.
        protocol: Version of the protocol.
        track: Name of the track.
        environment: Versions and device.
        settings: How methods were tuned and evaluated, in words.
        command: Command that reproduces everything.
        federations: A row per federation: ``name``, ``summary``, ``clients``, ``unseen_clients``,
            ``rounds``, ``model``, ``target`` (accuracy, or NaN), ``constant_accuracy`` (of the most
            frequent class) and ``data_digest``.
        methods: A row per method: ``kind``, ``summary``, ``paper`` (citation), ``tuned``
            (dictionary of text by federation), ``command``, and optionally ``link`` (address of
            the paper) and ``formula`` (text).
        failures: Reasons why methods have no results, each with the names of method and federation.
    """

    title: str
    protocol: str
    track: str
    environment: dict[str, Any]
    settings: str
    command: str
    federations: Any
    methods: Any
    failures: tuple[str, ...] = ()


def write(folder: Path) -> Path:
    """Writes ``index.html`` into the folder of a report, from its tables; returns the page."""
    track = json.loads((folder / "benchmark.json").read_bytes())["track"]
    found = published.read(folder, track)
    path = folder / "index.html"
    path.write_text(page(report.contents(found), describe(found)), encoding="utf8")
    return path


def describe(found: Collected) -> About:
    """Returns what the page says of a benchmark."""
    budget = TRACKS[found.track]
    return About(
        title=f"Benchmark of fair federated learning, {found.track} track",
        protocol=VERSION,
        track=found.track,
        environment=_environment(found),
        settings=(
            f"Each of {len(budget.final_seeds)} blocks tuned every method over settings of its "
            f"own, with one of the seeds {budget.tuning_seeds[0]} to {budget.tuning_seeds[-1]}. "
            f"Results are of one final seed per block, {budget.final_seeds[0]} to "
            f"{budget.final_seeds[-1]}. Test examples took no part in training or selection."
        ),
        command=f"fedjax-fair benchmark {found.track} --resume",
        federations=pd.DataFrame(_federations(found)),
        methods=_methods(found),
        failures=tuple(runner.failures(found.failures)),
    )


def _federations(found: Collected) -> list[dict[str, Any]]:
    measured = found.federations.set_index("federation").to_dict("index")
    rows = []
    for name in (name for name in FEDERATIONS if name in measured):
        federation, own = FEDERATIONS[name], measured[name]
        rows.append(
            {
                "name": name,
                "summary": federation.summary,
                "clients": own["clients"],
                "unseen_clients": own["unseen_clients"],
                "rounds": federation.config.training.rounds,
                "model": federation.config.model.name,
                "target": federation.target,
                "constant_accuracy": own["constant_accuracy"],
                "data_digest": own["data_digest"],
            }
        )
    return rows


def _methods(found: Collected) -> pd.DataFrame:
    """Returns methods with the settings of their blocks by federated dataset."""
    primary: Any = found.settings[found.settings["criterion"] == CRITERION]
    tuned: dict[str, dict[str, str]] = {}
    for (method, federation), own in primary.groupby(["method", "federation"], sort=False):
        tuned.setdefault(method, {})[federation] = "; ".join(dict.fromkeys(own["settings"]))
    return found.methods.assign(tuned=[tuned[name] for name in found.methods["method"]])


def _environment(found: Collected) -> dict[str, Any]:
    """Returns versions and device; of several benchmarks by their number."""
    if len(found.environments) == 1:
        return found.environments[0]
    return {str(place): each for place, each in enumerate(found.environments, start=1)}


def page(contents: Contents, about: About) -> str:
    """Renders the page."""
    kinds = list(dict.fromkeys(about.methods["kind"]))
    kinds += [kind for kind in dict.fromkeys(contents.results["kind"]) if kind not in kinds]
    names = contents.federations
    scopes = [name for name in (OVERALL, *names) if len(by_method(contents, name))]
    groups = dict(zip(map(str, range(len(GROUPS))), GROUPS, strict=True))
    compared = tables.comparisons(contents)
    scope = _select("scope", "dataset", dict.fromkeys(scopes), next(iter(scopes), ""))
    body = f"""<h1>{text(about.title)}</h1>
<p class="note">{text(_subtitle(contents, about))}</p>
{_navigation()}
<h2 id="known-title">What is known</h2>
<div class="headline" id="findings">{_findings(contents)}</div>
{compared["statements"]}
<h2 id="ranking-title">Ranking</h2>
{compared["ranking"]}
{compared["orders"]}
<h2 id="differences-title">Differences to {text(BASELINE)}</h2>
<div class="controls">{scope}</div>
<div id="ranking">{compared["differences"]}</div>
<h2 id="undecided-title">What could not be decided</h2>
{compared["undecided"]}
<h2>How to read this page</h2>
{_key(contents, about)}
<h2 id="results-title">Results</h2>
<p class="how">Select a heading to sort. Settings were selected by: {text(SETTINGS_ARE)}.</p>
<div class="controls">
{_select("federation", "dataset", dict.fromkeys(names), names[0])}
{_select("kind", "kind", {"": "all kinds"} | dict(zip(kinds, kinds, strict=True)), "")}
{_select("group", "measures", groups | {"": "all measures"}, "0")}
<label>search<input type="search" id="search" placeholder="method or kind"></label>
</div>
<div id="results">{tables.federation_tables(contents, about.federations)}</div>
{_failures(about)}
<h2 id="tradeoffs-title">Does fairness cost accuracy?</h2>
<p class="how">Test examples; upper left is best. Lines: 95% intervals. Names of methods that no
other surpasses in both measures are written.</p>
{svg(report_figures.tradeoffs(contents), "Accuracy and standard deviation")}
{_curves(contents)}
<h2 id="methods-title">Methods</h2>
{"".join(_card(contents, row) for row in about.methods.to_dict("records"))}
<h2 id="reproduce">Reproduce</h2>
<pre>{text(about.command)}</pre>
{details({"Environment": about.environment})}"""
    code, styles = (
        Path(__file__).with_name(f"benchmark.{kind}").read_text("utf8") for kind in ("js", "css")
    )
    body, shared = share_styles(body)
    return document(about.title, body, script(code), styles + shared)


def _subtitle(contents: Contents, about: About) -> str:
    seeds = contents.results["seeds"]
    low, high = int(seeds.min()), int(seeds.max())
    count = f"{low}" if low == high else f"{low} to {high}"
    counts = ", ".join(
        f"{len(table)} {noun}{'s' * (len(table) != 1)}"
        for noun, table in (("method", about.methods), ("dataset", about.federations))
    )
    return f"Protocol {about.protocol}, {about.track} track: {counts}, {count} blocks."


def _navigation() -> str:
    links = {
        "known-title": "What is known",
        "ranking-title": "Ranking",
        "differences-title": "Differences",
        "undecided-title": "Undecided",
        "results-title": "Results",
        "tradeoffs-title": "Trade-offs",
        "methods-title": "Methods",
        "reproduce": "Reproduce",
    }
    parts = "".join(f'<a href="#{name}">{label}</a>' for name, label in links.items())
    return f'<nav aria-label="sections">{parts}</nav>'


def _findings(contents: Contents) -> str:
    """Returns the methods by claim over all datasets, as HTML."""
    known: dict[str, list[str]] = {}
    for row in contents.statements.to_dict("records"):
        if row["scope"] == OVERALL:
            measure = MEASURES[ORDERS[row["order"]].measure].label
            claim = f"{verdict_of(row)} than {BASELINE}, rank by {measure}"
            known.setdefault(claim, []).append(tables.link(row["method"]))
    parts = [
        f"<b>{text(claim[0].upper() + claim[1:])}</b>: {', '.join(who)}."
        for claim, who in known.items()
    ]
    count = len(contents.statements) - sum(map(len, known.values()))
    parts += [] if known else ["No method differs over all datasets."]
    parts += [f"{count} claims on single datasets; {len(contents.undecided)} questions are open."]
    parts += ["Claims are about these datasets, not about all."]
    return "".join(f"<p>{part}</p>" for part in parts)


def _key(contents: Contents, about: About) -> str:
    shown = [name for name in MEASURES if name in contents.results]
    items = "".join(
        f"<dt>{text(MEASURES[name].label)} ({text(MEASURES[name].unit)})</dt>"
        f"<dd>{text(MEASURES[name].about)}</dd>"
        for name in shown
    )
    return (
        f"<p>{text(about.settings)}</p>"
        '<p class="how">±: half of the 95% CI over blocks. Diverged runs count as a constant '
        "predictor; their share is below the method's name. Personalized models serve clients "
        "where it says so, global models elsewhere. - is a missing value, with its reason below "
        "the table.</p>"
        f'<details><summary>Measures</summary><dl class="about">{items}</dl></details>'
    )


def _failures(about: About) -> str:
    items = "".join(f"<li>{text(reason)}</li>" for reason in about.failures)
    return items and collapsible(f"Not run ({len(about.failures)})", f"<ul>{items}</ul>")


def _select(name: str, label: str, options: dict[str, Any], chosen: str) -> str:
    parts = "".join(
        f'<option value="{text(key)}"{" selected" if key == chosen else ""}>'
        f"{text(shown or key)}</option>"
        for key, shown in options.items()
    )
    return f'<label>{label}<select id="{name}">{parts}</select></label>'


def _curves(contents: Contents) -> str:
    figure = svg(report_figures.curves(contents), "Validation accuracy by round")
    return figure and (
        '<h2>How fast does each method learn?</h2><p class="how">Validation accuracy in %, mean '
        f"over blocks and 95% CI.</p>{figure}"
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
    compared = contents.curves[contents.curves["method"].isin([BASELINE, name])]
    federations = set(compared.loc[compared["method"] == name, "federation"])
    of_method = contents._replace(
        federations=[one for one in contents.federations if one in federations], curves=compared
    )
    about = f"Validation accuracy by round of {name} and {BASELINE}"
    figure = report_figures.curves(of_method) if federations else None
    for axes in figure.axes if figure else ():
        axes.locator_params(axis="y", nbins=3)
    curves = svg(figure, about)
    return (
        f'<details class="card" id="{tables.anchor(name)}"><summary>{text(name)}'
        f"<span>{text(row['kind'])}</span></summary><p>{text(row['summary'])}</p>"
        f'<dl class="about">{facts}</dl>{curves}<p class="how">Reproduces its rows:</p>'
        f"<pre>{text(row['command'])}</pre></details>"
    )
