"""Verdicts, tables and figures of the complete families of docs/reproduction/protocol.md.

    python -m experiments.reproduction.protocol_results

A family with missing runs has no verdict: the command prints their number and writes nothing. Part
D is in ``theory_results``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.reproduction import (
    paper,
    protocol,
    protocol_pages,
    protocol_theory,
    theory_results,
    verdicts,
)

__all__ = ["FAMILIES", "Claim", "Family", "claims", "compared", "missing", "over_rounds", "write"]


def _spread(name: str, column: str) -> dict[str, tuple[str, int | None]]:
    last = {"all rounds": None, "last round": 1, "last five": 5}
    return {f"{name}, {rounds}": (column, count) for rounds, count in last.items()}


DISSIMILARITY = {
    **_spread("dissimilarity", "client_dissimilarity"),
    **_spread("class-based dissimilarity", "client_dissimilarity_class_based"),
    "worst 10%, all rounds": ("accuracy_worst_10pct", None),
    "class-based worst 10%, all rounds": ("accuracy_worst_10pct_class_based", None),
    "accuracy, all rounds": ("accuracy_mean_clients", None),
}
SIGMA = {
    **_spread("sigma_acc", "sigma_acc"),
    **_spread("sigma_acc of groups", "group_sigma_acc"),
    "worst 10%, all rounds": ("accuracy_worst_10pct", None),
    "worst group, all rounds": ("group_accuracy_minimum", None),
    "accuracy, all rounds": ("accuracy_mean_clients", None),
}


class Family(NamedTuple):
    """Claims whose p values are adjusted together.

    Attributes:
        part: Part of the protocol.
        group: Folder of its runs; of all runs of the part if empty.
        endpoints: Column, and number of last evaluations; the first is the primary endpoint.
    """

    part: str
    group: str
    endpoints: dict[str, tuple[str, int | None]]


FAMILIES = {
    "A1": Family("A", "mnist", DISSIMILARITY),
    "A2": Family("A", "cifar10", DISSIMILARITY),
    "B": Family("B", "", DISSIMILARITY),
    "C1": Family("C", "mnist", SIGMA),
    "C3": Family("C", "cifar10", SIGMA),
}
SEARCHED = {"subtrunc:lam=0.95": -0.93, "unionfl:window=5": -0.30}
"""Published differences of part B."""


class Claim(NamedTuple):
    """The difference of a method to a baseline has the published sign.

    Attributes:
        group: Folder of runs.
        method: The method.
        baseline: The baseline.
        published: The published difference after the last round, in points.
        published_value: The published value of the method, in the same setting.
    """

    group: str
    method: str
    baseline: str
    published: float
    published_value: float = np.nan


def main() -> None:
    parser = argparse.ArgumentParser(description="Results of complete families of the protocol.")
    parser.add_argument("--output", type=Path, default=Path("docs/reproduction"))
    output = parser.parse_args().output
    for name in ("D", *FAMILIES):
        if count := missing(name, output / "protocol"):
            print(f"{name}: {count} runs are missing, nothing is written")
        else:
            print(f"{name}: {write(name, output)}")


def missing(name: str, folder: Path) -> int:
    """Returns the number of runs of a family, or of part D, without a file."""
    if name == "D":
        return len(protocol_theory.missing(folder / "D"))
    part, group, _ = FAMILIES[name]
    cells = (*protocol.missing(part, folder), *protocol.not_yet_known(part, folder))
    return sum(not group or cell.group == group for cell in cells)


def write(name: str, output: Path) -> str:
    """Writes tables and figures of a complete family, or of part D, and returns its verdicts.

    Raises:
        ValueError: If runs are missing.
    """
    folder = output / "protocol"
    if count := missing(name, folder):
        raise ValueError(f"name={name!r}: {count} runs are missing.")
    if name == "D":
        return theory_results.write(folder / "D", output)
    table = compared(name, folder)
    table.to_csv(output / f"protocol-{name}.csv", index=False, float_format="%.6g")
    protocol_pages.write(name, table, over_rounds(name, folder), output)
    if name == "B":
        scores: Any = protocol.screening(folder)
        scores.insert(0, "point", [protocol.name_of(point) for point in protocol.POINTS])
        scores.to_csv(output / "protocol-B-screening.csv", index=False, float_format="%.4f")
        with (output / "protocol-B.md").open("a", encoding="utf8") as page:
            page.write(protocol_pages.screening(scores))
    counts = table["verdict"].value_counts().drop("", errors="ignore")
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def claims(name: str, folder: Path) -> list[Claim]:
    """Returns the claims of a family."""
    part, group, _ = FAMILIES[name]
    if name == "B":
        return [
            Claim(f"test/{protocol.name_of(point)}", method, "divfl", SEARCHED[method])
            for point, methods in protocol.screened(folder).items()
            for method in methods
        ]
    names = list(
        dict.fromkeys(cell.method for cell in protocol.cells(part, folder) if cell.group == group)
    )
    if part == "A":
        values = {one: paper.SELECTION[group][one]["dissimilarity"][0] for one in names}
        variants = [one for one in names if one.startswith(("unionfl", "subtrunc"))]
        others = [one for one in names if one != "fedavg"]
        pairs = [("divfl", one) for one in variants] + [("fedavg", one) for one in others]
    else:
        published = paper.EQUITABLE[group]
        values = {one: published[one.partition(":")[0]]["sigma"][0] for one in names}
        baseline = next(one for one in names if one.startswith("fedprox"))
        pairs = [(baseline, one) for one in names if one != baseline]
    return [
        Claim(group, method, baseline, round(values[method] - values[baseline], 2), values[method])
        for baseline, method in pairs
    ]


def compared(name: str, folder: Path) -> pd.DataFrame:
    """Tests the claims of a family on every endpoint, whose p values are adjusted separately.

    Differences are in points and paired by seed. A seed with a value that is not finite is left out
    of the comparisons of its method.

    Returns:
        One row per endpoint and claim, with the means of the method (``here``) and of its baseline
        over all seeds. Only the primary endpoint has verdicts.

    Raises:
        ValueError: If a run lacks evaluations.
    """
    part, _, endpoints = FAMILIES[name]
    family = claims(name, folder)
    measured = _runs(part, {claim.group for claim in family}, folder)
    published = {_key(claim): claim.published for claim in family}
    (primary, _), *_ = endpoints.values()
    rows = []
    for place, (endpoint, (column, last)) in enumerate(endpoints.items()):
        means = {group: _summary(runs, column, last) for group, runs in measured.items()}
        gaps: Any = {_key(one): means[one.group][one.method] - means[one.group][one.baseline]
                for one in family}  # fmt: skip
        finite = {key: values[np.isfinite(values)].to_numpy() for key, values in gaps.items()}
        judged = verdicts.judge(finite, published)
        is_primary_metric = column == primary
        for claim in family:
            key, of_seeds = _key(claim), means[claim.group].mean()
            result, seeds = judged[key], finite[key].size
            rows.append({
                "endpoint": endpoint, **claim._asdict(), "here": of_seeds[claim.method],
                "baseline_here": of_seeds[claim.baseline],
                "published": claim.published if is_primary_metric else np.nan,
                "published_value": (
                    claim.published_value if is_primary_metric and last == 1 else np.nan
                ),
                "seeds": seeds, "left_out": gaps[key].size - seeds,
                "difference": result.mean, "low": result.low, "high": result.high, "p": result.p,
                "p_sign_flip": result.p_sign_flip, "verdict": "" if place else result.verdict,
            })  # fmt: skip
    return pd.DataFrame(rows)


def over_rounds(name: str, folder: Path) -> pd.DataFrame:
    """Returns the paired differences of the primary endpoint's metric, in points, after round 0.

    Returns:
        One row per claim, seed and round, with the columns ``endpoint`` (name of the metric),
        ``group``, ``method``, ``baseline``, ``seed``, ``round`` and ``difference``.
    """
    part, _, endpoints = FAMILIES[name]
    family = claims(name, folder)
    measured = _runs(part, {claim.group for claim in family}, folder)
    (endpoint, (column, _)), *_ = endpoints.items()
    label = endpoint.partition(",")[0]
    rows = []
    for group, method, baseline, *_ in family:
        by_method: Any = measured[group].pivot(
            index=["seed", "round"], columns="method", values=column
        )
        gaps = (100 * (by_method[method] - by_method[baseline])).reset_index(name="difference")
        gaps = gaps.assign(endpoint=label, group=group, method=method, baseline=baseline)
        rows.append(gaps)
    return pd.concat(rows, ignore_index=True)


def _key(claim: Claim) -> str:
    return f"{claim.group} {claim.method} {claim.baseline}"


def _runs(part: str, groups: Iterable[str], folder: Path) -> dict[str, pd.DataFrame]:
    """Returns the evaluations of groups after round 0."""
    tables: dict[str, list] = {group: [] for group in groups}
    for cell in protocol.cells(part, folder):
        if cell.group not in tables:
            continue
        rounds, every = cell.config.training.rounds or 0, cell.config.training.eval_every or 1
        table = pd.read_csv(cell.file(folder)).assign(method=cell.method)
        if table["round"].tolist() != list(range(0, rounds + 1, every)):
            raise ValueError(f"{cell.file(folder)}: expected rounds 0 to {rounds}, every {every}.")
        tables[cell.group].append(table[table["round"] > 0])
    return {group: pd.concat(found) for group, found in tables.items()}


def _summary(measured: pd.DataFrame, column: str, last: int | None) -> pd.DataFrame:
    """Returns the mean over the last evaluations, or all of them, by seed and method, in %."""
    values = measured.pivot(index=["seed", "method"], columns="round", values=column)
    chosen = values if last is None else values.iloc[:, -last:]
    means: Any = chosen.mean(axis=1, skipna=False)
    return 100 * means.unstack("method")


if __name__ == "__main__":
    main()
