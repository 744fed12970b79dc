"""The HTML file: styles and scripts are within, nothing is loaded."""

from __future__ import annotations

from importlib import resources

from fedjax_fair.report.document import text

__all__ = ["document"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Content security policy: the page loads nothing from a network."""


def document(title: str, body: str, scripts: str = "") -> str:
    """Assembles the page.

    Args:
        title: Plain text.
        body: HTML.
        scripts: Script elements after the page's own script.

    Examples:
        >>> document("<b>", "<h1>a</h1>").splitlines()[7]
        '<title>&lt;b&gt;</title>'
    """
    styles = _file("fedjax_fair.report", "page.css") + _file(__package__, "benchmark.css")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{text(title)}</title>
<style>
{styles}</style>
</head>
<body>
<main>
{body}
</main>
<script>
{_file(__package__, "benchmark.js")}</script>
{scripts}</body>
</html>
"""


def _file(package: str | None, name: str) -> str:
    folder = resources.files(package or "fedjax_fair.benchmark.page")
    return (folder / "web" / name).read_text(encoding="utf8")
