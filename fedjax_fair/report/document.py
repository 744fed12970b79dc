"""One HTML file that needs no other: styles, scripts and numbers are within it."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any

from fedjax_fair.text import escape_control_chars

__all__ = ["collapsible", "details", "document", "section", "text"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What a browser may load: nothing from a network."""


def document(title: str, body: str, numbers: dict[str, Any], scripts: tuple[str, ...]) -> str:
    """Puts a page together.

    Args:
        title: Plain text.
        body: HTML.
        numbers: What the scripts draw; they find it in the element ``numbers``.
        scripts: Names of files in ``web``, without their ending.

    Returns:
        The page.
    """
    code = "\n".join(_file(f"{name}.js") for name in scripts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{text(title)}</title>
<style>
{_file("page.css")}</style>
</head>
<body>
<main>
{body}
<noscript><p>The pictures on this page need JavaScript. Others lie in the folder <code>plots</code>.
</p></noscript>
</main>
<script type="application/json" id="numbers">{_json(numbers)}</script>
<script>
{code}</script>
</body>
</html>
"""


def section(name: str, question: str, explanation: str, extra: str = "") -> str:
    """A picture and what it answers; the script draws into the element ``name``.

    Args:
        name: A word.
        question: Plain text.
        explanation: How to read the picture, plain text.
        extra: HTML between the two.
    """
    return (
        f'<section><h2>{text(question)}</h2><p class="how">{text(explanation)}</p>{extra}'
        f'<div class="chart" id="{name}" role="img" aria-label="{text(question)}"></div></section>'
    )


def collapsible(summary: str, content: str) -> str:
    """Something that a click shows."""
    return f"<details><summary>{text(summary)}</summary>{content}</details>"


def details(config: dict[str, Any], environment: dict[str, Any]) -> str:
    """What a run was made with."""
    return "".join(
        collapsible(
            name, f"<pre>{text(json.dumps(values, indent=2, default=str), lines=True)}</pre>"
        )
        for name, values in {"Configuration": config, "Environment": environment}.items()
    )


def text(value: object, lines: bool = False) -> str:
    r"""Something that others chose, of which a browser reads nothing as markup.

    Examples:
        >>> text("<b>\x1b")
        '&lt;b&gt;\\x1b'
    """
    parts = str(value).split("\n") if lines else [str(value)]
    return "\n".join(html.escape(escape_control_chars(part)) for part in parts)


def _json(numbers: dict[str, Any]) -> str:
    """JSON in which nothing ends a script or begins a comment."""
    shown = json.dumps(numbers, allow_nan=False, separators=(",", ":"))
    for mark in "<>&":
        shown = shown.replace(mark, f"\\u{ord(mark):04x}")
    return shown


def _file(name: str) -> str:
    return (resources.files("fedjax_fair.report") / "web" / name).read_text(encoding="utf8")
