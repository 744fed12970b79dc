"""Tables of the page as HTML: results per federation, and comparisons with the baseline."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from experiments.benchmark_page.drawings import svg
from fedjax_fair.benchmark import measure_labels, report_figures
from fedjax_fair.benchmark.measure_labels import GROUPS, MEASURES
from fedjax_fair.benchmark.report_contents import OVERALL, Contents, by_method, shown_measures
from fedjax_fair.benchmark.report_tables import comparison_tables
from fedjax_fair.report.document import text
from fedjax_fair.results.formats import Table

__all__ = ["anchor", "comparisons", "federation_tables", "link", "minus"]


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
        f'title="{text(MEASURES[name].about)}"><button type="button">{text(MEASURES[name].label)}'
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
    details += ["settings at a limit"] if row["at_limit"] else []
    if row["diverged"] > 0:
        details.append(f"{100 * row['diverged']:.0f}% of {int(row['seeds'])} blocks diverged")
    name, kind = text(row["method"]), text(row["kind"])
    cells = []
    for measure in shown:
        number = measure_labels.value(measure, row)
        reason = _reason(measure)
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
    parts = [f"Mean ± half of the 95% CI over {count} blocks."]
    missing = _by_reason([name for name in shown if results[name].isna().any()])
    absent = _by_reason([name for name in MEASURES if name not in shown])
    parts += [f"Missing (-): {'; '.join(missing)}."] if missing else []
    parts += [f"Not shown: {'; '.join(absent)}."] if absent else []
    return " ".join(parts)


def _by_reason(names: list[str]) -> list[str]:
    """Lists measures with the reason why they are missing."""
    reasons = dict[str, list[str]]()
    for name in names:
        reasons.setdefault(_reason(name), []).append(MEASURES[name].label)
    return [f"{', '.join(dict.fromkeys(labels))} ({why})" for why, labels in reasons.items()]


def _reason(measure: str) -> str:
    """Returns why a value of a measure is missing."""
    if measure.startswith(("worse_than_", "loss_gap_")):
        return "the reference was not run"
    if measure in GROUPS["unseen clients"]:
        return "the federation has no unseen clients, or the method has no such model"
    if measure in GROUPS["group fairness"]:
        return "the federation has no sensitive feature"
    if measure == "trained_share":
        return "the whole network is trained"
    return "the target was not reached" if measure.endswith("_to_target") else "not measured"


def comparisons(contents: Contents) -> dict[str, str]:
    """Renders what is known, rankings, the differences per scope, and what is undecided.

    Returns:
        HTML of the tables ``statements``, ``ranking``, ``orders`` and ``undecided``, and of
        ``differences``, a section per scope with a figure of its intervals.
    """
    tables = comparison_tables(contents)
    names = ("statements", "ranking", "orders", "undecided")
    found = {name: _table(tables[name], name) for name in names}
    scopes = [name for name in (OVERALL, *contents.federations) if len(by_method(contents, name))]
    return found | {"differences": "".join(_scope(contents, tables, name) for name in scopes)}


def _scope(contents: Contents, tables: dict[str, Table], scope: str) -> str:
    title = "All datasets" if scope == OVERALL else scope
    parts = [
        _table(tables[name], "ranking")
        for name in (f"differences-{scope}", f"group-gaps-{scope}")
        if name in tables
    ]
    figure = svg(report_figures.ranking(contents, scope), f"Differences, {title}")
    return (
        f'<section class="federation" data-federation="{text(scope)}"><h3>{text(title)}</h3>'
        f"{''.join(parts)}{figure}</section>"
    )


def _table(table: Table, name: str) -> str:
    """Renders a table of text with its note; empty without rows."""
    if not table.rows:
        return ""
    place = table.headings.index("method")
    heads = "".join(f'<th scope="col">{text(heading)}</th>' for heading in table.headings)
    rows = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{link(cell)}</th>' if at == place else f"<td>{_cell(cell)}</td>"
            for at, cell in enumerate(row)
        )
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table class="{name}"><thead><tr>{heads}</tr></thead>'
        f'<tbody>{rows}</tbody></table></div><p class="how">{text(table.note)}</p>'
    )


def _cell(cell: str) -> str:
    is_number = cell.lstrip("+-")[:1].isdigit()
    return minus(cell) if is_number else text(cell)
