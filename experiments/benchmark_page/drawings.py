"""Figures of the report as inline SVG."""

from __future__ import annotations

import io
import re
from typing import Any

from fedjax_fair.report.document import text

__all__ = ["svg"]


def svg(figure: Any, about: str) -> str:
    """Returns a matplotlib figure as an element; empty for None.

    Args:
        figure: The figure, or None.
        about: Description for readers who do not see it, different for each figure of the page.
    """
    if figure is None:
        return ""
    import matplotlib as mpl

    file = io.StringIO()
    # Text stays text. The salt keeps identifiers of figures on one page apart.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": about}):
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Type")))
    drawn = file.getvalue()
    drawn = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", drawn, flags=re.S)
    used = set(re.findall(r'(?:url\(|href=")#([^")]*)', drawn))
    drawn = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", drawn)
    # Digits beyond a hundredth of a point and names of fonts would be most of the page.
    drawn = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), drawn)
    drawn = re.sub(r"'DejaVu Sans'[^;\"]*", "sans-serif", drawn)
    drawn = re.sub(r"\n\s*", "\n", drawn[drawn.index("<svg ") :])
    return drawn.replace("<svg ", f'<svg class="figure" role="img" aria-label="{text(about)}" ', 1)
