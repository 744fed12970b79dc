"""Tables and forest plots of the protocol's families.

A family has a page with all endpoints. Tables on other pages are named ``protocol-FAMILY-BASELINE``
or ``protocol-FAMILY-BASELINE-METHOD``: rows of these, of the primary endpoint and the last round;
``protocol-FAMILY-coincidence``; and ``protocol-FAMILY-verdicts``: one row per claim.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.common import markdown_table
from experiments.reproduction import forests, pages, verdicts
from fedjax_fair.results.formats import format_p

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "PAGES", "coincidence", "curves", "forest", "markdown", "rows_of", "screening", "short",
    "summary", "write",
]  # fmt: skip

PAGES = (*pages.PAGES, "README.md")

HEADINGS = (
    "method", "here", "published", "difference", "95% CI", "published difference", "p, t test",
    "p, sign flip",
)  # fmt: skip
VERDICT = ("equal rounds", "verdict")
SHOWN = 0.05
"""Share of equal rounds from which it is shown."""


def write(
    name: str, table: Any, gaps: Any, same: Any, others: Any, setting: tuple[str, str], output: Path
) -> None:
    """Writes the page of a family, and replaces its tables and figures on other pages.

    Args:
        name: The family.
        table: What ``protocol_results.compared`` returned.
        gaps: What ``protocol_results.over_rounds`` returned.
        same: What ``protocol_results.coincidences`` returned.
        others: Exploratory comparisons, or None.
        setting: Setting of the family, and the page about it.
        output: Folder of the pages.
    """
    title = f"# Family {name} of the [protocol](protocol.md): all endpoints\n\n"
    text = title + markdown(table)
    if shown := coincidence(same):
        text += f"\n## Rounds in which methods coincide\n\n{shown}"
    if others is not None:
        text += f"\n## Exploratory comparisons, not claims of the family\n\n{_exploratory(others)}"
    (output / f"protocol-{name}.md").write_text(text, "utf8")
    written = {
        f"protocol-{name}-coincidence": coincidence(same),
        f"protocol-{name}-verdicts": summary(name, table, *setting),
    }
    for page in (output / page for page in PAGES):
        if not page.exists():
            continue
        text = page.read_text("utf8")
        found = [block for block in pages.blocks(text) if block.startswith(f"protocol-{name}-")]
        own = [block for block in found if block not in written]
        for block in own:
            forest(rows_of(table, block)).savefig(output / f"{block}.png", dpi=90)
            drawn = curves(rows_of(gaps, block))
            drawn.savefig(output / f"curves-{block}.png", dpi=90)
        tables = {block: written.get(block) or short(table, block) for block in found}
        page.write_text(pages.replace_tables(text, tables), "utf8")


def markdown(table: Any) -> str:
    """Formats all differences, a table per endpoint with the primary one first."""
    note = "Differences are method minus baseline, in points. The papers report the last round."
    lines = [f"{note} {_note(table)}", ""]
    for endpoint, own in table.groupby("endpoint", sort=False):
        judged = own["verdict"].ne("").all()
        is_primary = endpoint == table["endpoint"].iloc[0]
        lines += [f"## {endpoint[0].upper()}{endpoint[1:]}{' (primary)' if is_primary else ''}", ""]
        headings = ("baseline", *HEADINGS, *(VERDICT if judged else []))
        cells = [[f"`{row['baseline']}`", *_cells(row)] for row in own.to_dict("records")]
        lines += [*markdown_table(headings, cells if judged else [row[:-2] for row in cells]), ""]
    return "\n".join(lines)


def screening(scores: Any) -> str:
    """Formats the scores of all points, with those of the two best points of a method in bold."""
    names = [name for name in scores if name != "point"]
    best = {name: set(scores[name].nsmallest(2).index) for name in names}
    headings = [part.partition("=")[0] for part in scores["point"].iloc[0].split(",")]
    cells = []
    for place, row in scores.iterrows():
        cell = [part.partition("=")[2] for part in row["point"].split(",")]
        shown = {name: f"{row[name]:+.2f}" for name in names}
        cells.append([*cell, *(f"**{shown[one]}**" if place in best[one] else shown[one]
                               for one in names)])  # fmt: skip
    return "\n".join([
        "", "## Screening", "",
        "Dissimilarity less DivFL's in points, mean over two seeds and all ten evaluations, on "
        "held-out training examples. The two lowest of a method, in bold, were tested.", "",
        *markdown_table((*headings, *(f"`{name}`" for name in names)), cells), "",
    ])  # fmt: skip


def short(table: Any, block: str) -> str:
    """Formats the differences of a table by its name, see the module."""
    lines = []
    chosen = rows_of(table, block)
    for (endpoint, _), own in chosen.groupby(["endpoint", "group"], sort=False):
        rounds, first = endpoint.rpartition(", ")[2], own.iloc[0].to_dict()
        published = first["published_value"] - first["published"]
        lines.append([
            rounds, _name(first, "baseline"), f"{first['baseline_here']:.2f}",
            pages.number(published, ".2f"), "baseline", *[""] * 6,
        ])  # fmt: skip
        lines += [[rounds, *_cells(row)] for row in own.to_dict("records")]
    shown = markdown_table(("endpoint", *HEADINGS, *VERDICT), lines)
    return "\n".join([*shown, "", _note(table), ""])


def forest(table: Any) -> Figure:
    """Draws differences to one baseline, with a panel per endpoint.

    Filled points have both adjusted p values below .05. The panel of the last round, which the
    published differences are of, comes first.
    """
    panels, published = {}, {}
    of_endpoint = sorted(table.groupby("endpoint"), key=lambda pair: "last round" not in pair[0])
    for endpoint, own in of_endpoint:
        points = own["group"].str.partition("/")[2]
        panels[endpoint] = own.assign(
            method=own["method"] + points.where(points == "", " at " + points),
            p=own[["p", "p_sign_flip"]].max(axis=1, skipna=False),
        )
        published = panels[endpoint].set_index("method")["published"].to_dict()
    drawn = forests.draw(panels, table["baseline"].iloc[0], published=published)
    return forests.share_axis(drawn)


def curves(gaps: Any) -> Figure:
    """Draws differences to one baseline over rounds."""
    points = gaps["group"].str.partition("/")[2]
    # Titles are broken at spaces.
    places = points.where(points == "", " at " + points.str.replace(",", ", "))
    named = gaps.assign(algorithm=gaps["method"] + places)
    values = named.set_index(["algorithm", "seed", "round"])["difference"].to_xarray()
    endpoint, baseline = gaps[["endpoint", "baseline"]].iloc[0]
    return pages.draw_gaps(
        values.sel(algorithm=named["algorithm"].unique()),
        f"{endpoint}, difference to {baseline} (points)",
    )


def rows_of(table: Any, block: str) -> Any:
    """Returns the rows of a table by its name, of the first two endpoints."""
    _, _, baseline, *method = block.split("-")
    wanted = table["endpoint"].isin(table["endpoint"].unique()[:2])
    wanted &= table["baseline"].str.partition(":")[0] == baseline
    if method:
        wanted &= table["method"].str.partition(":")[0] == method[0]
    return table[wanted]


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        _name(row, "method"),
        f"{row['here']:.2f}",
        pages.number(row["published_value"], ".2f"),
        f"{row['difference']:+.2f}",
        f"{row['low']:+.2f} to {row['high']:+.2f}",
        pages.number(row["published"], "+.2f"),
        format_p(row["p"]),
        format_p(row["p_sign_flip"]),
        _percent(row["coinciding"]) if row["coinciding"] > SHOWN else "",
        _verdict(row),
    ]


def _verdict(row: dict[str, Any]) -> str:
    found = row["verdict"]
    return f"undecided; detectable {row['detectable']:.2f}" if found == "undecided" else found


def _percent(share: float) -> str:
    return "" if np.isnan(share) else f"{100 * share:.0f}%"


def summary(name: str, table: Any, setting: str, page: str) -> str:
    """Formats the claims of a family, with the papers' endpoint and the average side by side."""
    rows = []
    metric = table["endpoint"].iloc[0].partition(",")[0]
    last_round, all_rounds = (
        table[table["endpoint"] == f"{metric}, {rounds}"].to_dict("records")
        for rounds in (verdicts.OF_PAPERS, "all rounds")
    )
    for last, average in zip(last_round, all_rounds, strict=True):
        relation = ">" if last["published"] > 0 else "<"
        size = pages.number(last["published"], "+.2f")
        rows.append([
            f"{_name(last, 'method')} {relation} `{last['baseline']}`{f' ({size})' * bool(size)}",
            setting, _tested(last), _verdict(last), _tested(average), _verdict(average),
            _percent(last["coinciding"]), f"[{name}](protocol-{name}.md), [{page}]({page})",
        ])  # fmt: skip
    headings = (
        "claim (published)", "setting", "last round: difference, 95% CI, p", "verdict",
        "average over rounds: difference, 95% CI, p", "verdict", "equal rounds", "page",
    )  # fmt: skip
    return "\n".join([*markdown_table(headings, rows), ""])


def _tested(row: dict[str, Any]) -> str:
    p = f"{format_p(row['p'])} / {format_p(row['p_sign_flip'])}"
    return f"{row['difference']:+.2f}, {row['low']:+.2f} to {row['high']:+.2f}; {p}"


def coincidence(same: Any) -> str:
    """Formats in how many rounds methods are equal, where that is more than 5% of the rounds."""
    cells = [
        [
            _name(row, "method"), f"`{row['baseline']}`", _percent(row["results"]),
            _percent(row["cohorts"]), f"{row['first']:g}", row["never"],
            f"{row['differing']:+.2f}, {row['low']:+.2f} to {row['high']:+.2f} ({row['seeds']})",
        ]
        for row in same[same["results"] > SHOWN].to_dict("records")
    ]  # fmt: skip
    headings = (
        "method", "baseline", "rounds with equal results", "with the same clients",
        "first round with other clients, median of seeds that have one", "seeds without one",
        "difference over the rounds that differ, 95% CI (seeds)",
    )  # fmt: skip
    return "\n".join([*markdown_table(headings, cells), ""]) if cells else ""


def _exploratory(others: Any) -> str:
    metric = others["endpoint"].iloc[0].partition(",")[0]
    chosen = others[others["endpoint"].isin([f"{metric}, last round", f"{metric}, all rounds"])]
    headings = ("endpoint", "method", "baseline", "difference", "95% CI", "published difference")
    cells = [
        [row["endpoint"], f"`{row['method']}`", f"`{row['baseline']}`", *_cells(row)[3:6]]
        for row in chosen.assign(p=np.nan, p_sign_flip=np.nan, verdict="").to_dict("records")
    ]
    return "\n".join([*markdown_table(headings, cells), "", "Intervals are not adjusted.", ""])


def _name(row: dict[str, Any], column: str) -> str:
    point = row["group"].partition("/")[2]
    return f"`{row[column]}`" + (f", {point}" if point else "")


def _note(table: Any) -> str:
    family = len(table) // table["endpoint"].nunique()
    seeds = " to ".join(map(str, sorted({table["seeds"].min(), table["seeds"].max()})))
    return (
        f"{seeds} seeds; p adjusted (Holm) for the {family} claims of the family; published "
        "differences are those after the last round."
    )
