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
from fedjax_fair.metrics import paired

__all__ = [
    "FAMILIES", "Claim", "Coincidence", "Family", "claims", "coincidence", "compared", "missing",
    "over_rounds", "write",
]  # fmt: skip


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
        page: The page about it.
        setting: Its setting, and what differs from the paper.
        joint: Number of first endpoints whose p values are adjusted together.
    """

    part: str
    group: str
    endpoints: dict[str, tuple[str, int | None]]
    page: str
    setting: str
    joint: int = 1


_LENET = "50 steps of 0.01; the paper states no rounds, steps and step size"
_OF_LAST = "last round assumed, the paper states none"
FAMILIES = {
    "A1": Family("A", "mnist", DISSIMILARITY, "selection.md",
                 f"MNIST, LeNet, 20 seeds, 21 rounds, {_LENET}"),
    "A2": Family("A", "cifar10", DISSIMILARITY, "selection.md",
                 f"CIFAR-10, LeNet, ten seeds, 31 rounds, {_LENET.replace('0.01', '0.03')}"),
    "B": Family("B", "", DISSIMILARITY, "selection.md",
                "MNIST, LeNet, 20 seeds, ten rounds; searched settings, not in the paper"),
    "C1": Family("C", "mnist", SIGMA, "equitable.md",
                 "MNIST, MLP, ten seeds, 250 rounds, steps of 0.3, outside the paper's grid of "
                 f".001, .01 and .1; {_OF_LAST}"),
    "C3": Family("C", "cifar10", SIGMA, "equitable.md",
                  f"CIFAR-10, CNN, seven seeds, 60 rounds; published: 250; {_OF_LAST}"),
    "E": Family("E", "mnist", DISSIMILARITY, "selection.md",
                f"MNIST, LeNet, 40 seeds, 21 rounds, {_LENET}", joint=2),
}  # fmt: skip
OF_E = (
    (protocol.LITERAL, "divfl", -0.30), (protocol.MEAN, "divfl", -0.30),
    (protocol.MEAN, "rotation", np.nan), ("rotation", "divfl", np.nan),
    ("rotation", "fedavg", np.nan),
)  # fmt: skip
"""Methods, baselines and published differences of part E."""
GAIN = 0.47
"""Of UnionFL (window 5) over DivFL in A1, on average; half of it is the margin of part E."""
SEARCHED = {"subtrunc:lam=0.95": -0.93, "unionfl:window=5": -0.30}
"""Published differences of part B."""


class Claim(NamedTuple):
    """The difference of a method to a baseline has the published sign.

    Attributes:
        group: Folder of runs.
        method: The method.
        baseline: The baseline.
        published: The published difference after the last round, in points; NaN if there is none,
            for a claim that the difference is negative.
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
    part, group, *_ = FAMILIES[name]
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
    table, same = compared(name, folder), coincidences(name, folder)
    table.to_csv(output / f"protocol-{name}.csv", index=False, float_format="%.6g")
    same.to_csv(output / f"protocol-{name}-coincidence.csv", index=False, float_format="%.6g")
    others = None
    if name == "A1":
        others = compared(name, folder, exploratory(claims(name, folder)))
        others = others.drop(columns=["p", "p_sign_flip", "detectable", "verdict"])
        others.to_csv(output / f"protocol-{name}-others.csv", index=False, float_format="%.6g")
    setting = FAMILIES[name].setting, FAMILIES[name].page
    gaps = over_rounds(name, folder)
    protocol_pages.write(name, table, gaps, same, others, setting, output)
    if name == "B":
        scores: Any = protocol.screening(folder)
        scores.insert(0, "point", [protocol.name_of(point) for point in protocol.POINTS])
        scores.to_csv(output / "protocol-B-screening.csv", index=False, float_format="%.4f")
        with (output / "protocol-B.md").open("a", encoding="utf8") as page:
            page.write(protocol_pages.screening(scores))
    if name == "E":
        is_of_rotation = "yes" if of_rotation(table, folder) else "no"
        with (output / "protocol-E.md").open("a", encoding="utf8") as page:
            page.write(f"\nThe gain is that of rotation: {is_of_rotation}.\n")
    counts = table["verdict"].value_counts().drop("", errors="ignore")
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def claims(name: str, folder: Path) -> list[Claim]:
    """Returns the claims of a family."""
    part, group, *_ = FAMILIES[name]
    if name == "E":
        return [Claim(group, *one) for one in OF_E]
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


def exploratory(family: list[Claim]) -> list[Claim]:
    """Returns claims of Tables I and IV that no family has, of the methods of A1.

    All variants against Power-of-Choice; SubTrunc against UnionFL; the loss against its logarithm.
    """
    values = {one.method: one.published_value for one in family}
    variants = [name for name in values if name.startswith(("unionfl", "subtrunc"))]
    best, union = "subtrunc:lam=0.95", protocol.MEAN
    pairs = [(name, "power_of_choice") for name in variants]
    pairs += [(best, union), (f"{best},phi=identity", best)]
    return [
        Claim("mnist", one, other, round(values[one] - values[other], 2), values[one])
        for one, other in pairs
    ]


class Coincidence(NamedTuple):
    """In how many rounds two methods are equal.

    Attributes:
        results: Share of the evaluated rounds in which the metric is equal, within 1e-6.
        cohorts: Share of the rounds with equal sets of clients; NaN without cohorts.
        first: First round by seed with another set (another result without cohorts); NaN if none.
        differing: Mean difference of the metric over the rounds that differ, in points, by seed.
    """

    results: float
    cohorts: float
    first: pd.Series
    differing: pd.Series

    @property
    def never(self) -> int:
        """Number of seeds without a difference."""
        return int(self.first.isna().sum())


def coincidence(runs: pd.DataFrame, method: str, baseline: str, metric: str) -> Coincidence:
    """Compares the rounds of two methods with the same seeds.

    Args:
        runs: Evaluations after round 0, with the columns ``seed``, ``round``, ``method``, the
            metric and, if known, ``cohort``, ids separated by spaces.
        method: The one.
        baseline: The other.
        metric: Column of results.
    """
    index = ["seed", "round"]
    one, other = (runs[runs["method"] == name].set_index(index) for name in (method, baseline))
    gaps: Any = one[metric] - other[metric]
    is_equal = gaps.abs() <= 1e-6
    is_same: Any = is_equal
    cohorts = np.nan
    if "cohort" in runs:
        # The same clients may be listed in another order.
        sets = [
            part["cohort"].map(lambda ids: frozenset(str(ids).split())) for part in (one, other)
        ]
        is_same = sets[0] == sets[1]
        cohorts = is_same.mean()
    first: Any = is_same.groupby("seed").apply(
        lambda own: np.nan if own.all() else float(own.index.get_level_values("round")[~own][0])
    )
    differing = (100 * gaps[~is_equal]).groupby("seed").mean()
    return Coincidence(float(is_equal.mean()), float(cohorts), first, differing)


def coincidences(name: str, folder: Path) -> pd.DataFrame:
    """Returns in how many rounds the methods of each claim of a family are equal."""
    part, _, endpoints, *_ = FAMILIES[name]
    family = claims(name, folder)
    measured = _runs(part, {claim.group for claim in family}, folder)
    (metric, _), *_ = endpoints.values()
    rows = []
    for group, method, baseline, *_ in family:
        found = coincidence(measured[group], method, baseline, metric)
        gaps = paired.interval(found.differing.to_numpy())
        rows.append({
            "group": group, "method": method, "baseline": baseline, "results": found.results,
            "cohorts": found.cohorts, "first": found.first.median(), "never": found.never,
            "differing": gaps.mean, "low": gaps.low, "high": gaps.high,
            "seeds": found.differing.size,
        })  # fmt: skip
    return pd.DataFrame(rows)


def of_rotation(table: pd.DataFrame, folder: Path) -> bool:
    """Returns whether UnionFL's gain is that of rotation, by the rule of part E.

    Rotation is less dissimilar than DivFL (E4), and UnionFL is equivalent to rotation (E3) within
    half of its gain in A1, on average over rounds.
    """
    rows = table[table["endpoint"] == "dissimilarity, all rounds"]
    e4 = rows[(rows["method"] == "rotation") & (rows["baseline"] == "divfl")]["verdict"].item()
    means = _summary(_runs("E", {"mnist"}, folder)["mnist"], "client_dissimilarity", None)
    gaps = (means[protocol.MEAN] - means["rotation"]).to_numpy()
    return e4 == "same direction" and verdicts.equivalent(gaps, GAIN / 2)


def compared(name: str, folder: Path, family: list[Claim] | None = None) -> pd.DataFrame:
    """Tests claims on every endpoint, whose p values are adjusted separately, or jointly in part E.

    Differences are in points and paired by seed. A seed with a value that is not finite is left out
    of the comparisons of its method.

    Args:
        name: The family.
        folder: Folder of its runs.
        family: Its claims by default.

    Returns:
        One row per endpoint and claim, with the means of the method (``here``) and of its baseline
        over all seeds. Verdicts are those of the endpoints of the primary metric.

    Raises:
        ValueError: If a run lacks evaluations.
    """
    part, _, endpoints, _, _, joint = FAMILIES[name]
    family = claims(name, folder) if family is None else family
    measured = _runs(part, {claim.group for claim in family}, folder)
    (label, (primary, _)), *_ = endpoints.items()
    metric = f"{label.partition(',')[0]}, "
    coinciding = {
        _key(one): coincidence(measured[one.group], one.method, one.baseline, primary).results
        for one in family
    }
    means, comparisons = {}, {}
    for endpoint, (column, last) in endpoints.items():
        means[endpoint] = {group: _summary(runs, column, last) for group, runs in measured.items()}
        for one in family:
            of_group: Any = means[endpoint][one.group]
            comparisons[endpoint, _key(one)] = verdicts.Comparison(
                (of_group[one.method] - of_group[one.baseline]).to_numpy(),
                1 if one.published > 0 else -1,
                one.published, endpoint.removeprefix(metric), coinciding[_key(one)],
            )  # fmt: skip
    names = list(endpoints)
    judged = {}
    for together in (names[:joint], *([name] for name in names[joint:])):
        own = {
            key: one._replace(differences=one.differences[np.isfinite(one.differences)])
            for key, one in comparisons.items() if key[0] in together
        }  # fmt: skip
        judged |= verdicts.judge(own)
    rows = []
    for endpoint, (column, last) in endpoints.items():
        is_primary_metric = column == primary
        for claim in family:
            key, of_seeds = (endpoint, _key(claim)), means[endpoint][claim.group].mean()
            result, gaps = judged[key], comparisons[key].differences
            seeds = int(np.isfinite(gaps).sum())
            rows.append({
                "endpoint": endpoint, **claim._asdict(), "here": of_seeds[claim.method],
                "baseline_here": of_seeds[claim.baseline],
                "published": claim.published if is_primary_metric else np.nan,
                "published_value": (
                    claim.published_value if is_primary_metric and last == 1 else np.nan
                ),
                "seeds": seeds, "left_out": gaps.size - seeds,
                "difference": result.mean, "low": result.low, "high": result.high, "p": result.p,
                "p_sign_flip": result.p_sign_flip, "detectable": result.detectable,
                "coinciding": comparisons[key].coinciding,
                "verdict": result.verdict if is_primary_metric else "",
            })  # fmt: skip
    return pd.DataFrame(rows)


def over_rounds(name: str, folder: Path) -> pd.DataFrame:
    """Returns the paired differences of the primary endpoint's metric, in points, after round 0.

    Returns:
        One row per claim, seed and round, with the columns ``endpoint`` (name of the metric),
        ``group``, ``method``, ``baseline``, ``seed``, ``round`` and ``difference``.
    """
    part, _, endpoints, *_ = FAMILIES[name]
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
