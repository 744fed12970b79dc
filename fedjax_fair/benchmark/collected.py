"""Results of a benchmark as tables, of one folder or joined with published ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedjax_fair.app.settings.named_methods import method_parts
from fedjax_fair.app.settings.registry import GROUPS
from fedjax_fair.benchmark import measures, plugin_methods, run_cells, runner
from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.pool_errors import baseline_answers, pool_errors
from fedjax_fair.benchmark.protocol import BASELINE, CRITERIA, MEGABYTES

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BASELINES", "CRITERION", "Collected", "check_data", "collect", "units_of"]

CRITERION = CRITERIA[0]
"""Criterion of the settings that the page shows; verdicts use all criteria."""

BASELINES = ("fedavg", "centralized", "local", "local_converged", "fine_tuned")
"""Methods that show what is possible without federated training, or without fairness."""

_UNIT = ["federation", "method"]
_BY_UNIT = ("runs", "clients", "losses", "settings", "curves", "answers", "pool_errors", "cells")
"""Tables with rows of units."""


class Collected(NamedTuple):
    """Results of a benchmark.

    Attributes:
        track: Name of the track.
        environments: Versions and device, of one benchmark or several joined ones.
        failures: Federated dataset, method and reason of each unit without results.
        runs: Table of `measures.table`.
        clients: Table of `measures.clients`.
        losses: The same of losses, without rows of methods of earlier reports.
        settings: A row per federated dataset, method, criterion and block, with the settings, the
            round of the model that counts, how often the ranges moved, and the settings of which
            many blocks chose a limit in the end.
        curves: Table of `measures.curves`.
        answers: Table of `pool_errors.baseline_answers`, empty of earlier reports.
        pool_errors: Table of `pool_errors.pool_errors`, without rows of federated datasets without
            answers of FedAvg.
        federations: A row per federated dataset, with the measures of the constant predictor.
        methods: A row per method: kind, summary, paper, command, and its Python file, if any.
        cells: A row per run, also of tuning, with accuracies after the last round.
    """

    track: str
    environments: list[dict[str, Any]]
    failures: list[list[str]]
    runs: pd.DataFrame
    clients: pd.DataFrame
    losses: pd.DataFrame
    settings: pd.DataFrame
    curves: pd.DataFrame
    answers: pd.DataFrame
    pool_errors: pd.DataFrame
    federations: pd.DataFrame
    methods: pd.DataFrame
    cells: pd.DataFrame

    @property
    def constants(self) -> dict[tuple[str, str], float]:
        """Measures of the constant predictor by federated dataset and measure."""
        return {
            (row["federation"], name): row[f"constant_{name}"]
            for row in self.federations.to_dict("records")
            for name in measures.CONSTANTS
        }

    @property
    def all_runs(self) -> pd.DataFrame:
        """``runs`` with the measures that compare them with other methods."""
        import pandas as pd

        parts = [self.runs, measures.relative(self.runs, self.clients, self.losses)]
        return pd.concat(parts, ignore_index=True)

    @property
    def data_digests(self) -> dict[str, str]:
        """Digest of the examples by federated dataset."""
        names = self.federations["federation"]
        return dict(zip(names, self.federations["data_digest"], strict=True))


def collect(folder: Path, published: Collected | None = None) -> Collected:
    """Collects the results of a benchmark, together with published ones of other methods.

    Args:
        folder: Folder of a benchmark.
        published: Results of a report (`published.read`). Of methods in both, those of ``folder``
            are taken: on each federated dataset, and of methods of plugins on all of them.

    Raises:
        ValueError: If the folder has no benchmark, no finished method or damaged files, or if
            published results are of another track, other data or other partitions.
    """
    import pandas as pd

    described = runner.read_folder(folder)
    found = list(measures.finals(folder))
    if not found:
        raise ValueError(f"folder={str(folder)!r}: expected a finished method.")
    track = str(described["track"])
    equal = []
    if published is None or MEGABYTES in set(published.runs["criterion"]):
        equal = measures.at_megabytes(found, _budgets(published))
    answers = baseline_answers(found)
    own = Collected(
        track=track,
        environments=[described["environment"]],
        failures=[list(failure) for failure in runner.failed_units(folder)],
        runs=measures.table([*found, *equal]),
        clients=measures.clients(found),
        losses=measures.clients(found, losses=True),
        settings=pd.DataFrame(_settings(found)),
        curves=measures.curves(found),
        answers=answers,
        pool_errors=pool_errors(found, answers),
        federations=pd.DataFrame(_federations(found)),
        methods=pd.DataFrame(_methods(folder, found, track)),
        cells=pd.json_normalize(run_cells.gather(folder)),
    )
    if published is None:
        return own
    _check_same(own, published)
    theirs: Any = published.answers
    others = pool_errors(found, theirs[~theirs["federation"].isin(own.answers["federation"])])
    joined: Any = pd.concat([own.pool_errors, others], ignore_index=True)
    return _join(own._replace(pool_errors=joined), published)


def _budgets(published: Collected | None) -> dict[str, float]:
    """Returns the megabytes of FedAvg by federated dataset of published results."""
    if published is None:
        return {}
    runs: Any = published.runs
    is_own = (runs["method"] == BASELINE) & (runs["criterion"] == CRITERION)
    sent = runs[is_own & runs["measure"].isin(["megabytes_up", "megabytes_down"])]
    both = sent.groupby(["federation", "seed"])["value"].sum()
    return both.groupby("federation").mean().to_dict()


def check_data(digests: Mapping[str, str], published: Collected) -> None:
    """Verifies that results are of the published examples.

    Args:
        digests: Digests of the examples by federated dataset.
        published: Results of a report.

    Raises:
        ValueError: If a digest differs.
    """
    for name, digest in published.data_digests.items():
        if digests.get(name, digest) != digest:
            raise ValueError(
                f"published: expected results on the same examples of {name!r}; their SHA-256 is "
                f"{digest}, here it is {digests[name]}. Use the files that the page of the data "
                "describes, or leave published results out."
            )


def _check_same(own: Collected, published: Collected) -> None:
    """Raises ``ValueError`` if the track, the examples or a seed's partition are others."""
    if own.track != published.track:
        raise ValueError(
            f"published: expected results of the track {own.track!r}, got {published.track!r}."
        )
    check_data(own.data_digests, published)
    keys = ["federation", "seed"]
    mine, theirs = (
        each.cells[[*keys, "partition_digest"]].drop_duplicates() for each in (own, published)
    )
    both: Any = mine.merge(theirs, on=keys, suffixes=("", "_published"))
    differs: Any = both[both["partition_digest"] != both["partition_digest_published"]]
    if len(differs):
        raise ValueError(
            f"published: expected the same partition of {differs['federation'].iloc[0]!r} with "
            f"seed {differs['seed'].iloc[0]}; its digest differs. Use the published versions of "
            "the package and of NumPy, or leave published results out."
        )


def units_of(table: Any) -> list[tuple[str, str]]:
    """Returns the federated dataset and the method of each row."""
    return list(zip(table["federation"], table["method"], strict=True))


def _join(own: Collected, published: Collected) -> Collected:
    """Adds methods of a report to those of a benchmark."""
    import pandas as pd

    units = set(units_of(own.settings))
    methods = {method for _, method in units}
    # Another method may have the name of a plugin's method, so that its results are not mixed.
    replaced = set(own.methods.loc[own.methods["file"] != "", "method"])

    def kept(table: Any) -> Any:
        return table[[u not in units and u[1] not in replaced for u in units_of(table)]]

    theirs = {name: kept(getattr(published, name)) for name in _BY_UNIT}
    known = set(units_of(theirs["settings"]))
    own = own._replace(cells=own.cells[[unit not in known for unit in units_of(own.cells)]])
    joined: dict[str, Any] = {}
    for name in _BY_UNIT:
        rows: Any = pd.concat([getattr(own, name), theirs[name]])
        joined[name] = rows.sort_values(_UNIT, kind="stable", ignore_index=True)
    others: Any = published.methods
    is_shown = [name in {method for _, method in known} - methods for name in others["method"]]
    of_methods: Any = pd.concat([own.methods, others[is_shown]])
    is_other = ~published.federations["federation"].isin(own.federations["federation"])
    of_federations: Any = pd.concat([own.federations, published.federations[is_other]])
    order = of_federations["federation"].map({name: i for i, name in enumerate(FEDERATIONS)})
    environments = [each for each in published.environments if each not in own.environments]
    return Collected(
        track=own.track,
        environments=[*own.environments, *environments],
        failures=_failures(own, published, units | known),
        methods=of_methods.sort_values("method", ignore_index=True),
        federations=of_federations.iloc[order.argsort()].reset_index(drop=True),
        **joined,
    )


def _failures(
    own: Collected, published: Collected, finished: set[tuple[str, str]]
) -> list[list[str]]:
    """Joins the units without results."""
    reasons: dict[tuple[str, str], str] = {}
    for federation, method, reason in (*own.failures, *published.failures):
        reasons.setdefault((federation, method), reason)
    return [[*unit, reason] for unit, reason in reasons.items() if unit not in finished]


def _settings(found: list[measures.Final]) -> list[dict[str, Any]]:
    return [
        {
            "federation": final.federation,
            "method": final.method,
            "criterion": final.criterion,
            "seed": seed,
            "settings": ", ".join(f"{k}={v:g}" for k, v in settings.items()),
            "round": float(f"{round:.{measures.DIGITS}g}"),
            "window": int(final.dataset.attrs["window"]),
            "at_limit": ", ".join(json.loads(final.dataset.attrs["at_limit"])),
        }
        for final in found
        for seed, settings, round in zip(
            final.dataset["seed"].values.tolist(), final.settings, final.rounds, strict=True
        )
    ]


def _federations(found: list[measures.Final]) -> list[dict[str, Any]]:
    constants = measures.constants(found)
    firsts = {final.federation: final.dataset for final in reversed(found)}
    return [
        {
            "federation": name,
            "clients": firsts[name].sizes["client"],
            "unseen_clients": max(
                int(final.dataset.attrs["unseen_clients"])
                for final in found
                if final.federation == name
            ),
            "data_digest": firsts[name].attrs["data_digest"],
            "test_digest": firsts[name].attrs["test_digest"],
            **{f"constant_{measure}": constants[name, measure] for measure in measures.CONSTANTS},
        }
        for name in FEDERATIONS
        if name in firsts
    ]


def _methods(folder: Path, found: list[measures.Final], track: str) -> list[dict[str, Any]]:
    rows = []
    for name in sorted({final.method for final in found}):
        parts = [plugin_methods.read(folder, part) for part in method_parts(name)]
        known = [part for part in parts if part.paper]
        rows.append(
            {
                "method": name,
                "kind": _kind(name),
                "summary": "; ".join(part.summary for part in parts) + ".",
                "paper": "; ".join(part.paper for part in known),
                "link": known[0].link if known else "",
                "command": _command(track, name, parts),
                "file": next((part.file for part in parts if part.file), ""),
            }
        )
    return rows


def _kind(method: str) -> str:
    """Returns the group of a method in the registry; pairs are combinations."""
    if "+" in method:
        return "combination"
    if method in BASELINES:
        return "reference"
    base = method.partition(":")[0]
    return next((kind for kind, entries in GROUPS.items() if base in entries), "plugin")


def _command(track: str, name: str, parts: list[plugin_methods.Description]) -> str:
    if files := [part.file for part in parts if part.file]:
        if name.isidentifier():
            of_track = "" if track == "embedded" else f" --track {track}"
            return f"fedjax-fair benchmark enter {files[0]}{of_track}"
        options = "".join(f" --plugin {file}" for file in dict.fromkeys(files))
        return f"fedjax-fair benchmark {track}{options} --methods {name} --resume"
    return f"fedjax-fair benchmark {track} --methods {name} --resume"
