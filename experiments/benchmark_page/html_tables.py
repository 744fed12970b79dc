"""Tables of the page as HTML: results per federation, ranking and verdicts."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from experiments.benchmark_page.drawings import svg
from experiments.benchmark_page.measure_texts import ABOUT, missing
from fedjax_fair.benchmark import measure_labels, report_figures
from fedjax_fair.benchmark.measure_labels import GROUPS, MEASURES
from fedjax_fair.benchmark.report_contents import (
    BASELINE,
    OVERALL,
    RANKED,
    Contents,
    shown_measures,
    unit_of,
)
from fedjax_fair.report.document import text
from fedjax_fair.results.intervals import format_p

__all__ = ["anchor", "federation_tables", "link", "minus", "ranking_tables", "verdict_table"]


def anchor(name: str) -> str:
    """Returns an identifier of a method's card for links.

    Examples:
        >>> anchor("divfl+equitable")
        'method-divfl-2b-equitable'
    """
    return "method-" + re.sub(r"[^a-zA-Z0-9_]", lambda found: f"-{ord(found[0]):x}-", name)


def link(method: str) -> str:
    """Returns a link to the card of a method, whose name may be wrapped at its parts.

    Examples:
        >>> link("by_size")
        '<a href="#method-by_size">by_<wbr>size</a>'
    """
    name = re.sub("([_+])", r"\1<wbr>", text(method))
    return f'<a href="#{anchor(method)}">{name}</a>'


def minus(number: str) -> str:
    """Escapes a formatted number, with minus signs; a missing one stays ``-``."""
    return (
        text(number) if number == measure_labels.MISSING else text(number).replace("-", "&minus;")
    )


def federation_tables(contents: Contents, federations: Any) -> str:
    """Renders a section per federation: its facts and a sortable table of results."""
    return "".join(_federation(contents, row) for row in federations.to_dict("records"))


def _federation(contents: Contents, about: dict[str, Any]) -> str:
    results = contents.results[contents.results["federation"] == about["name"]]
    shown = shown_measures(results)
    group_of = {name: place for place, names in enumerate(GROUPS.values()) for name in names}
    heads = "".join(
        f'<th scope="col" class="number" data-group="{group_of[name]}" '
        f'title="{text(ABOUT[name])}"><button type="button">{text(MEASURES[name].label)}'
        f"</button><small>{text(MEASURES[name].unit)}</small></th>"
        for name in shown
    )
    rows = "".join(_row(row, shown, group_of) for row in results.to_dict("records"))
    return (
        f'<section class="federation" data-federation="{text(about["name"])}">'
        f"<h3>{text(about['name'])}</h3><p>{text(about['summary'])}</p>{_facts(about)}"
        '<div class="scroll" tabindex="0"><table class="results"><thead><tr><th scope="col">'
        '<button type="button">method</button></th><th scope="col"><button type="button">kind'
        f"</button></th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<p class="note"><span class="count" aria-live="polite">{len(results)} methods.</span> '
        f"{text(_note(results, shown))}</p></section>"
    )


def _facts(about: dict[str, Any]) -> str:
    target = float(about["target"])
    facts = {
        "clients": f"{int(about['clients']):,} train, {int(about['unseen_clients']):,} unseen",
        "rounds": f"{int(about['rounds']):,}",
        "model": about["model"],
        "target accuracy": measure_labels.MISSING if np.isnan(target) else f"{100 * target:.1f}%",
        "constant prediction": f"{100 * float(about['constant_accuracy']):.1f}%",
        "data digest": str(about["data_digest"])[:16],
    }
    items = "".join(
        f"<div><dt>{name}</dt><dd>{text(fact)}</dd></div>" for name, fact in facts.items()
    )
    return f'<dl class="facts">{items}</dl>'


def _row(row: dict[str, Any], shown: list[str], group_of: dict[str, int]) -> str:
    details = [text(row["model"])] if row["model"] != "global" else []
    details += ["reference"] if row["is_reference"] else []
    if row["diverged"] > 0:
        details.append(f"{100 * row['diverged']:.0f}% of {int(row['seeds'])} seeds diverged")
    name, kind = text(row["method"]), text(row["kind"])
    cells = []
    for measure in shown:
        number = measure_labels.value(measure, row)
        reason = missing(measure)
        about = f' title="{text(reason)}"' if number == measure_labels.MISSING else ""
        order = "" if number == measure_labels.MISSING else f"{row[measure]:.6g}"
        cells.append(
            f'<td data-group="{group_of[measure]}" data-value="{order}"{about}>{minus(number)}</td>'
        )
    reference = ' class="reference"' if row["is_reference"] else ""
    small = f"<small>{', '.join(details)}</small>" if details else ""
    return (
        f'<tr data-kind="{kind}"{reference}><th scope="row" data-value="{name}">'
        f"{link(row['method'])}{small}</th>"
        f'<td data-value="{kind}">{kind}</td>{"".join(cells)}</tr>'
    )


def _note(results: Any, shown: list[str]) -> str:
    """Explains intervals and missing values."""
    low, high = int(results["seeds"].min()), int(results["seeds"].max())
    count = f"{low}" if low == high else f"{low} to {high}"
    parts = [f"Mean ± half of the 95% CI over {count} seeds."]
    missing = _by_reason([name for name in shown if results[name].isna().any()])
    absent = _by_reason([name for name in MEASURES if name not in shown])
    parts += [f"Missing (-): {'; '.join(missing)}."] if missing else []
    parts += [f"Not shown: {'; '.join(absent)}."] if absent else []
    return " ".join(parts)


def _by_reason(names: list[str]) -> list[str]:
    """Lists measures with the reason why they are missing."""
    reasons = dict[str, list[str]]()
    for name in names:
        reasons.setdefault(missing(name), []).append(MEASURES[name].label)
    return [f"{', '.join(dict.fromkeys(labels))} ({why})" for why, labels in reasons.items()]


def ranking_tables(contents: Contents) -> str:
    """Renders a ranking per scope, with a figure of its intervals."""
    scopes = [OVERALL, *contents.federations]
    return "".join(
        _ranking(contents, scope) for scope in scopes if (contents.ranking["scope"] == scope).any()
    )


def _ranking(contents: Contents, scope: str) -> str:
    table = contents.ranking[contents.ranking["scope"] == scope]
    unit, scale = unit_of(scope)
    letters = sorted(set("".join(map(str, table["letters"]))))
    rows = []
    for row in table.to_dict("records"):
        rank = measure_labels.MISSING if np.isnan(row["rank"]) else f"{row['rank']:.0f}"
        marks = "".join(
            f"<b>{text(letter)}</b>" if letter in str(row["letters"]) else "<i></i>"
            for letter in letters
        )
        cells = "".join(
            _difference(row, measure, scale, row["method"] == BASELINE) for measure in RANKED
        )
        rows.append(
            f'<tr><td class="number">{rank}</td><th scope="row">{link(row["method"])}</th>'
            f'<td class="letters" aria-label="letters {text(row["letters"])}">'
            f"{marks}</td>{cells}</tr>"
        )
    heads = "".join(
        f'<th scope="col">{MEASURES[name].label}, difference to {text(BASELINE)}'
        f"<small>{text(unit)}, 95% CI</small></th>"
        for name in RANKED
    )
    title = "All datasets" if scope == OVERALL else scope
    return (
        f'<section class="federation" data-federation="{text(scope)}"><h3>{text(title)}</h3>'
        '<div class="scroll" tabindex="0"><table class="ranking"><thead><tr>'
        '<th scope="col" class="number">rank</th><th scope="col">method</th><th scope="col">letters'
        f"</th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"{svg(report_figures.ranking(contents, scope), f'Differences, {title}')}</section>"
    )


def _difference(row: dict[str, Any], measure: str, scale: float, is_baseline: bool) -> str:
    point, low, high, p = (
        float(row[f"{measure}_{key}"]) for key in ("difference", "low", "high", "p")
    )
    if is_baseline:
        return "<td><small>baseline</small></td>"
    if np.isnan(point):
        return f'<td title="{missing(measure)}">-</td>'
    numbers = measure_labels.difference(point, scale)
    details = [measure_labels.interval(low, high, scale)]
    details += [] if np.isnan(p) else [f"p {format_p(p)}"]
    return (
        f"<td><span>{minus(numbers)}</span>"
        f"<small>{minus(', '.join(filter(None, details)))}</small></td>"
    )


def verdict_table(contents: Contents) -> str:
    """Renders the verdict on each method; empty without verdicts."""
    if contents.verdicts.empty:
        return ""
    unit, scale = unit_of(OVERALL)
    rows = []
    for row in contents.verdicts.to_dict("records"):
        accuracy = measure_labels.difference(row["accuracy_difference"], 100.0)
        spread, low, high = (
            float(row[f"standard_deviation_{part}"]) for part in ("difference", "low", "high")
        )
        rows.append(
            f'<tr><th scope="row">{link(row["method"])}</th>'
            f'<td>{text(row["verdict"])}</td><td class="number">{int(row["fairer_in"])} of 9</td>'
            f'<td class="number"><span>{minus(accuracy)}</span></td>'
            f'<td class="number"><span>{minus(measure_labels.difference(spread, scale))}</span>'
            f"<small>{minus(measure_labels.interval(low, high, scale))}</small></td></tr>"
        )
    return (
        '<div class="scroll" tabindex="0"><table class="verdicts"><thead><tr>'
        '<th scope="col">method</th><th scope="col">verdict</th>'
        '<th scope="col" class="number">fairer in</th>'
        '<th scope="col" class="number">accuracy<small>points</small></th>'
        '<th scope="col" class="number">SD'
        f"<small>{text(unit)}</small></th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        '<p class="how">Verdicts over all datasets, of the SD with settings of the highest mean '
        "accuracy. Fairer in: of the nine combinations of criterion (mean, worst, fairest) and "
        "measure (SD, worst 10%, Gini). No verdict: neither fairer nor less fair.</p>"
    )
