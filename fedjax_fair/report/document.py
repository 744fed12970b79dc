"""Self-contained HTML files: styles, scripts and data are within."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any

from fedjax_fair.results.formats import Table
from fedjax_fair.utils.terminal import escape_control_chars

__all__ = [
    "collapsible",
    "details",
    "document",
    "drawn_document",
    "html_table",
    "json_script",
    "script",
    "section",
    "text",
    "web_file",
]

_PACKAGE = "fedjax_fair.report"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Content security policy: the page loads nothing from a network."""


def document(title: str, body: str, scripts: str = "", styles: str = "") -> str:
    """Assembles a page.

    Args:
        title: Plain text.
        body: HTML.
        scripts: Script elements.
        styles: Styles in addition to the common ones.

    Examples:
        >>> document("<b>", "<h1>a</h1>").splitlines()[7]
        '<title>&lt;b&gt;</title>'
    """
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{text(title)}</title>
<style>
{web_file(_PACKAGE, "page.css")}{styles}</style>
</head>
<body>
<main>
{body}
</main>
{scripts}</body>
</html>
"""


# The page is drawn in the browser, for its width and color scheme, from numbers computed in Python,
# without a chart library.
def drawn_document(title: str, body: str, numbers: dict[str, Any], scripts: tuple[str, ...]) -> str:
    """Assembles a page whose charts are drawn by scripts.

    Args:
        title: Plain text.
        body: HTML.
        numbers: Data for the scripts, as JSON in the element ``numbers``.
        scripts: Names of files in ``web``, without ``.js``.
    """
    note = (
        "<noscript><p>The charts of this page need JavaScript. The folder <code>plots</code> has "
        "others.</p></noscript>"
    )
    code = "\n".join(web_file(_PACKAGE, f"{name}.js") for name in scripts)
    return document(title, f"{body}\n{note}", json_script("numbers", numbers) + script(code))


def script(code: str) -> str:
    """Returns an element that runs JavaScript."""
    return f"<script>\n{code}</script>\n"


def json_script(name: str, data: Any) -> str:
    r"""Returns an element with data for scripts.

    Examples:
        >>> json_script("numbers", {"a": "</script>"})
        '<script type="application/json" id="numbers">{"a":"\\u003c/script\\u003e"}</script>\n'
    """
    content = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for char in "<>&":  # Text of the data must not end the script or begin a comment.
        content = content.replace(char, f"\\u{ord(char):04x}")
    return f'<script type="application/json" id="{name}">{content}</script>\n'


def section(name: str, question: str, explanation: str) -> str:
    """Returns a chart with its title and explanation; the script draws into the element ``name``.

    Args:
        name: An identifier.
        question: Title, plain text.
        explanation: How to read the chart, plain text.
    """
    return (
        f'<section><h2>{text(question)}</h2><p class="how">{text(explanation)}</p>'
        f'<div class="chart" id="{name}" data-title="{text(question)}"></div></section>'
    )


def html_table(table: Table) -> str:
    """Renders a table; on narrow screens each row becomes a card."""
    first, *headings = (text(heading.replace("\n", " ")) for heading in table.headings)
    head = "".join(f'<th class="number" scope="col">{heading}</th>' for heading in headings)
    rows = []
    for name, *cells in table.rows:
        columns = "".join(
            f'<td class="number" data-label="{heading}">{_lines(cell)}</td>'
            for heading, cell in zip(headings, cells, strict=True)
        )
        rows.append(f'<tr><th scope="row">{_lines(name)}</th>{columns}</tr>')
    return (
        f'<div class="scroll"><table class="cards"><thead><tr><th scope="col">{first}</th>{head}'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _lines(cell: str) -> str:
    if not cell:
        return ""  # The style sheet hides empty cells of cards.
    first, *others = map(text, cell.split("\n"))
    return f"<span>{first}</span>" + "".join(f"<small>{line}</small>" for line in others)


def collapsible(summary: str, content: str) -> str:
    """Returns HTML that a click shows or hides."""
    return f"<details><summary>{text(summary)}</summary>{content}</details>"


def details(sections: dict[str, dict[str, Any] | None]) -> str:
    """Returns nested dictionaries by title, collapsed; None is omitted."""
    parts = []
    for name, values in sections.items():
        if values is None:
            continue
        lines = "\n".join(map(text, json.dumps(values, indent=2, default=str).split("\n")))
        parts.append(collapsible(name, f"<pre>{lines}</pre>"))
    return "".join(parts)


def text(value: object) -> str:
    r"""Escapes text for HTML.

    Examples:
        >>> text("<b>\x1b")
        '&lt;b&gt;\\x1b'
    """
    return html.escape(escape_control_chars(value))


def web_file(package: str, name: str) -> str:
    """Reads a file of the folder ``web`` of a package."""
    return (resources.files(package) / "web" / name).read_text(encoding="utf8")
