"""Figures of the report as inline SVG."""

from __future__ import annotations

import io
import re
from typing import Any

from fedjax_fair.report.document import text

__all__ = ["share_styles", "svg"]


def svg(figure: Any, about: str) -> str:
    """Returns a matplotlib figure as an element; empty for None.

    Args:
        figure: The figure, or None.
        about: Description for readers who do not see it, different for each figure of the page.
    """
    if figure is None:
        return ""
    import matplotlib as mpl

    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.locator_params(axis="x", nbins=3)
        axes.tick_params(bottom=False, left=False)  # Lines of the grid mark the same places.
        axes.patch.set_visible(False)
    file = io.StringIO()
    # Text stays text. The salt keeps identifiers of figures on one page apart.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": about}):
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Type")))
    drawn = file.getvalue()
    drawn = re.sub(r"\s*\n\s*", " ", drawn[drawn.index("<svg ") :]).replace("> <", "><")
    # What has no effect here would be most of the page: all of it is inside of its axes.
    for without in (
        r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->|<clipPath.*?</clipPath>",
        r' clip-path="[^"]*"| font-family: [^;"]*;?| transform="rotate\(-0 [^"]*"',
        r'</?g\b[^>]*>|<defs></defs>| version="[^"]*"| xmlns="[^"]*"',
    ):
        drawn = re.sub(without, "", drawn)
    used = set(re.findall(r'href="#([^"]*)', drawn))
    drawn = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", drawn)
    drawn = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d+", _tenths, tag[0]), drawn)
    drawn = re.sub(
        r' d="[^"]*"', lambda path: re.sub(r" ?([MLCQz]) ?| (?=\")", r"\1", path[0]), drawn
    )
    return drawn.replace("<svg ", f'<svg class="figure" role="img" aria-label="{text(about)}" ', 1)


def _tenths(number: re.Match[str]) -> str:
    return f"{round(float(number[0]), 1):g}"


def share_styles(body: str) -> tuple[str, str]:
    r"""Replaces styles of elements, which repeat in all figures of a page, by classes.

    Returns:
        The body, and a style sheet.

    Examples:
        >>> share_styles('<path style="fill: red"/>')
        ('<path class="s0"/>', '.s0 { fill: red }\n')
    """
    found = dict.fromkeys(re.findall(r' style="([^"]*)"', body))
    names = {style: f"s{place}" for place, style in enumerate(found)}
    body = re.sub(r' style="([^"]*)"', lambda style: f' class="{names[style[1]]}"', body)
    return body, "".join(f".{name} {{ {style} }}\n" for style, name in names.items())
