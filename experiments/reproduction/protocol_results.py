"""Verdicts, tables and figures of the complete parts of docs/reproduction/protocol.md.

    python -m experiments.reproduction.protocol_results

A part with missing runs has no verdict: the command prints their number and writes nothing. Part D
is in ``theory_results``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.common import markdown_table
from experiments.reproduction import paper, protocol, protocol_theory, theory_results, verdicts
from fedjax_fair.results.intervals import format_p

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Claim", "claims", "compared", "missing", "write"]

PARTS = ("D", "A", "B")
ENDPOINTS = {
    "dissimilarity, all rounds": ("client_dissimilarity", None),
    "dissimilarity, last round": ("client_dissimilarity", 1),
    "dissimilarity, last five": ("client_dissimilarity", 5),
    "class-based dissimilarity, all rounds": ("client_dissimilarity_class_based", None),
    "class-based dissimilarity, last round": ("client_dissimilarity_class_based", 1),
    "class-based dissimilarity, last five": ("client_dissimilarity_class_based", 5),
    "worst 10 %, all rounds": ("accuracy_worst_10pct", None),
    "class-based worst 10 %, all rounds": ("accuracy_worst_10pct_class_based", None),
    "accuracy, all rounds": ("accuracy_mean_clients", None),
}
"""Column, and number of last evaluations; the first is the primary endpoint."""
PRIMARY = next(iter(ENDPOINTS))
SEARCHED = {"subtrunc:lam=0.95": -0.93, "unionfl:window=5": -0.30}
"""Published differences of part B."""


class Claim(NamedTuple):
    """A method is less dissimilar than a baseline.

    Attributes:
        group: Folder of runs.
        method: The method.
        baseline: The baseline.
        published: The published difference after the last round, in points.
    """

    group: str
    method: str
    baseline: str
    published: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Results of the complete parts of the protocol.")
    parser.add_argument("--output", type=Path, default=Path("docs/reproduction"))
    output = parser.parse_args().output
    for part in PARTS:
        if count := missing(part, output / "protocol"):
            print(f"{part}: {count} runs are missing, nothing is written")
        else:
            print(f"{part}: {write(part, output)}")


def missing(part: str, folder: Path) -> int:
    """Returns the number of runs of a part without a file."""
    if part == "D":
        return len(protocol_theory.missing(folder / "D"))
    return len(protocol.missing(part, folder))


def write(part: str, output: Path) -> str:
    """Writes tables and figures of a complete part, and returns its verdicts.

    Raises:
        ValueError: If the part has missing runs.
    """
    folder = output / "protocol"
    if count := missing(part, folder):
        raise ValueError(f"part={part!r}: {count} runs are missing.")
    if part == "D":
        return theory_results.write(folder / "D", output)
    found = []
    for family, wanted in claims(part, folder).items():
        table: Any = compared(part, wanted, folder)
        stem = output / f"protocol-{family}"
        table.to_csv(f"{stem}.csv", index=False, float_format="%.6g")
        Path(f"{stem}.md").write_text(markdown(table), "utf8")
        for baseline in dict.fromkeys(claim.baseline for claim in wanted):
            forest(table[table["baseline"] == baseline]).savefig(f"{stem}-{baseline}.png", dpi=90)
        counts = table[table["endpoint"] == PRIMARY]["verdict"].value_counts()
        found.append(f"{family} {counts.to_dict()}")
    if part == "B":
        scores: Any = protocol.screening(folder)
        scores.insert(0, "point", [protocol.name_of(point) for point in protocol.POINTS])
        scores.to_csv(output / "protocol-B-screening.csv", index=False, float_format="%.4f")
    return ", ".join(found)


def claims(part: str, folder: Path) -> dict[str, list[Claim]]:
    """Returns the families of a part with their claims."""
    if part == "B":
        return {
            "B": [
                Claim(f"test/{protocol.name_of(point)}", method, "divfl", SEARCHED[method])
                for point, methods in protocol.screened(folder).items()
                for method in methods
            ]
        }
    families = {}
    for family, data in (("A1", "mnist"), ("A2", "cifar10")):
        names = dict.fromkeys(
            cell.method for cell in protocol.cells("A", folder) if cell.group == data
        )
        variants = [name for name in names if name.startswith(("unionfl", "subtrunc"))]
        others = [name for name in names if name != "fedavg"]
        values = {name: paper.SELECTION[data][name]["dissimilarity"][0] for name in names}
        families[family] = [
            Claim(data, method, baseline, round(values[method] - values[baseline], 2))
            for baseline, methods in (("divfl", variants), ("fedavg", others))
            for method in methods
        ]
    return families


def compared(part: str, family: list[Claim], folder: Path) -> pd.DataFrame:
    """Tests the claims of a family on every endpoint, each a family of its own.

    Differences are in points and paired by seed. A seed with a value that is not finite is left out
    of the comparisons of its method.

    Returns:
        One row per endpoint and claim. Only the primary endpoint has a verdict.

    Raises:
        ValueError: If a run lacks evaluations.
    """
    measured = {group: _runs(part, group, folder) for group in {claim.group for claim in family}}
    rows = []
    for endpoint, (column, last) in ENDPOINTS.items():
        differences, means, left_out = {}, {}, {}
        for claim in family:
            values: Any = _summary(measured[claim.group], column, last)
            gaps = (values[claim.method] - values[claim.baseline]).to_numpy()
            finite = np.isfinite(gaps)
            differences[_name(claim)] = gaps[finite]
            means[_name(claim)] = float(values[claim.method].mean())
            left_out[_name(claim)] = int((~finite).sum())
        judged = verdicts.judge(differences, {_name(claim): claim.published for claim in family})
        for claim in family:
            name, result = _name(claim), judged[_name(claim)]
            rows.append({
                "endpoint": endpoint, **claim._asdict(), "here": means[name],
                "published": claim.published if "dissimilarity" in endpoint else np.nan,
                "seeds": differences[name].size, "left_out": left_out[name],
                "difference": result.mean, "low": result.low, "high": result.high, "p": result.p,
                "p_sign_flip": result.p_sign_flip,
                "verdict": result.verdict if endpoint == PRIMARY else "",
            })  # fmt: skip
    return pd.DataFrame(rows)


def markdown(table: Any) -> str:
    """Formats the differences, a table per endpoint with the primary one first."""
    headings = ("method", "less", "here", "difference", "95% CI", "published difference",
                "p, t test", "p, sign flip")  # fmt: skip
    family, lines = table["endpoint"].eq(PRIMARY).sum(), []
    for endpoint, rows in table.groupby("endpoint", sort=False):
        is_primary, cells = endpoint == PRIMARY, []
        for row in rows.to_dict("records"):
            point = row["group"].partition("/")[2]
            cells.append([
                f"`{row['method']}`" + (f", {point}" if point else ""), f"`{row['baseline']}`",
                f"{row['here']:.2f}", f"{row['difference']:+.2f}",
                f"{row['low']:+.2f} to {row['high']:+.2f}",
                "" if np.isnan(row["published"]) else f"{row['published']:+.2f}",
                format_p(row["p"]), format_p(row["p_sign_flip"]),
                *([row["verdict"]] if is_primary else []),
            ])  # fmt: skip
        lines += [f"{endpoint}{' (primary)' if is_primary else ''}:", ""]
        shown = (*headings, "verdict") if is_primary else headings
        lines += [*markdown_table(shown, cells), ""]
    seeds = " to ".join(map(str, sorted({table["seeds"].min(), table["seeds"].max()})))
    lines += [f"{seeds} seeds; p adjusted (Holm) for the {family} claims of the family; published "
              "differences are those after the last round.", ""]  # fmt: skip
    return "\n".join(lines)


def forest(table: Any) -> Figure:
    """Draws the differences to a baseline: primary endpoint and last round.

    Filled points have both adjusted p values below .05.
    """
    from fedjax_fair.report import forest

    panels, published = [], {}
    for endpoint in (PRIMARY, "dissimilarity, last round"):
        rows = table[table["endpoint"] == endpoint].copy()
        points = rows["group"].str.partition("/")[2]
        rows["algorithm"] = rows["method"] + points.where(points == "", " at " + points)
        rows["p"] = rows[["p", "p_sign_flip"]].max(axis=1, skipna=False)
        rows["is_significant"] = rows["p"] < verdicts.LEVEL
        published = rows.set_index("algorithm")["published"].to_dict()
        columns = ["difference", "low", "high", "p", "is_significant", "seeds"]
        one: Any = rows.set_index("algorithm")[columns].to_xarray()
        panels.append(one.assign_attrs(
            metric=endpoint, long_name=endpoint, units="points", paired=1,
            baseline=rows["baseline"].iloc[0],
        ))  # fmt: skip
    figure = forest.differences(panels, published)
    # Long names leave little room for the headings of the panels.
    figure.set_figwidth(8.2 + 0.075 * max(map(len, published)))
    return figure


def _name(claim: Claim) -> str:
    return f"{claim.group} {claim.method} {claim.baseline}"


def _runs(part: str, group: str, folder: Path) -> pd.DataFrame:
    """Returns the evaluations of a group after round 0."""
    cells = [cell for cell in protocol.cells(part, folder) if cell.group == group]
    tables = []
    for cell in cells:
        rounds: Any = cell.config.training.rounds
        table = pd.read_csv(cell.file(folder)).assign(method=cell.method)
        if table["round"].tolist() != list(range(rounds + 1)):
            raise ValueError(f"{cell.file(folder)}: expected rounds 0 to {rounds}.")
        tables.append(table[table["round"] > 0])
    return pd.concat(tables)


def _summary(measured: pd.DataFrame, column: str, last: int | None) -> pd.DataFrame:
    """Returns the mean over the last evaluations, or all of them, by seed and method, in %."""
    values = measured.pivot(index=["seed", "method"], columns="round", values=column)
    chosen = values if last is None else values.iloc[:, -last:]
    means: Any = chosen.mean(axis=1, skipna=False)
    return 100 * means.unstack("method")


if __name__ == "__main__":
    main()
