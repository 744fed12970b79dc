"""Results of a benchmark as tables, from its result files or from the folder of a report.

A report writes these tables, so that reports of further methods need no result files of those that
are published.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedjax_fair.app.registry import GROUPS
from fedjax_fair.app.settings import method_parts
from fedjax_fair.benchmark import cells, measures, plugin_methods, runner
from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.protocol import CRITERIA, VERSION

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BASELINES", "CRITERION", "Collected", "collect", "read", "write"]

CRITERION = CRITERIA[0]
"""Criterion of the settings that the page shows; verdicts use all criteria."""

BASELINES = ("fedavg", "centralized", "local", "local_converged", "fine_tuned")
"""Methods that show what is possible without federated training, or without fairness."""

_RUN = ("federation", "method", "model", "criterion", "seed", "is_diverged")
_CONSTANTS = ("accuracy", "worst_10pct", "standard_deviation")
_COLUMNS = {
    "runs": _RUN,
    "clients": ("federation", "method", "seed"),
    "settings": ("federation", "method", "criterion", "settings", "round"),
    "curves": ("federation", "method", "round", "accuracy", "low", "high"),
    "federations": (
        "federation", "clients", "unseen_clients", "data_digest",
        *(f"constant_{name}" for name in _CONSTANTS),
    ),
    "methods": ("method", "kind", "summary", "paper", "link", "command"),
    "cells": ("protocol", *cells.KEYS[:3], "seed", "data_digest", "status"),
}  # fmt: skip
"""Columns that each file has."""
_DIGITS = {"clients": "%.9g", "cells": "%.9g"}
"""Formats of numbers with which float32 is exact: ties of clients and settings stay ties."""
_DESCRIPTION = "benchmark.json"


class Collected(NamedTuple):
    """Results of a benchmark.

    Attributes:
        track: Name of the track.
        environment: Versions and device.
        failures: Reasons why methods have no results.
        runs: Table of `measures.table`.
        clients: A row per federated dataset, method and seed, with the test accuracies of clients
            in the columns ``"0"``, ``"1"``, ..., with the settings of `CRITERION`.
        settings: A row per federated dataset, method and criterion, with the settings and the round
            of the model that counts.
        curves: Table of `measures.curves`.
        federations: A row per federated dataset, with the measures of the constant predictor.
        methods: A row per method: kind, summary, paper and command.
        cells: A row per run, also of tuning.
    """

    track: str
    environment: dict[str, Any]
    failures: tuple[str, ...]
    runs: pd.DataFrame
    clients: pd.DataFrame
    settings: pd.DataFrame
    curves: pd.DataFrame
    federations: pd.DataFrame
    methods: pd.DataFrame
    cells: pd.DataFrame

    @property
    def constants(self) -> dict[tuple[str, str], float]:
        """Measures of the constant predictor by federated dataset and measure."""
        return {
            (row["federation"], name): row[f"constant_{name}"]
            for row in self.federations.to_dict("records")
            for name in _CONSTANTS
        }

    @property
    def references(self) -> measures.References:
        """What other methods are compared to run by run."""
        operations: Any = self.runs[self.runs["method"] == "fedavg"]
        operations = operations[operations["criterion"] == CRITERION]
        operations = operations[operations["measure"] == "operations"]
        rows: Any = self.clients[self.clients["method"].isin(measures.REFERENCES)]
        served = {
            key: own.set_index("seed").drop(columns=["federation", "method"]).astype("float32")
            for key, own in rows.groupby(["federation", "method"])
        }
        first = operations.drop_duplicates("federation").set_index("federation")["value"]
        return measures.References(served, first.to_dict())


def collect(folder: Path, published: Path | None = None) -> Collected:
    """Collects the results of a benchmark, together with published ones of other methods.

    Args:
        folder: Folder of a benchmark.
        published: Folder of the report of another one. Of methods in both, results of ``folder``
            are taken, on each federated dataset.

    Raises:
        ValueError: If the folder has no benchmark, no finished method or damaged files, or if
            published results are of another protocol, track or other data.
    """
    import pandas as pd

    described = runner.read_folder(folder)
    found = list(measures.finals(folder))
    if not found:
        raise ValueError(f"folder={str(folder)!r}: expected a finished method.")
    track = str(described["track"])
    others = None if published is None else read(published, track)
    own = Collected(
        track=track,
        environment=described["environment"],
        failures=tuple(runner.failures(folder)),
        runs=measures.table(found, None if others is None else others.references),
        clients=measures.clients(found, CRITERION),
        settings=pd.DataFrame(_settings(found)),
        curves=measures.curves(found, CRITERION),
        federations=pd.DataFrame(_federations(found)),
        methods=pd.DataFrame(_methods(folder, found, track)),
        cells=pd.json_normalize(cells.gather(folder)),
    )
    return own if others is None or published is None else _join(own, others, published)


def _join(own: Collected, others: Collected, place: Path) -> Collected:
    """Adds methods of a benchmark to another one."""
    import pandas as pd

    digests = {row["federation"]: row["data_digest"] for row in own.federations.to_dict("records")}
    for row in others.federations.to_dict("records"):
        name = row["federation"]
        if digests.get(name, row["data_digest"]) != row["data_digest"]:
            raise ValueError(
                f"published={str(place)!r}: expected results of the same examples of {name!r}; its "
                "digest differs."
            )
    have: dict[tuple[str, ...], set[tuple[Any, ...]]] = {
        keys: set(zip(*(own.settings[key] for key in keys), strict=True))
        for keys in (("federation",), ("method",), ("federation", "method"))
    }

    def joined(name: str, *keys: str) -> Any:
        mine, theirs = getattr(own, name), getattr(others, name)
        rows = zip(*(theirs[key] for key in keys), strict=True)
        is_new = [row not in have[keys] for row in rows]
        whole: Any = pd.concat([mine, theirs[is_new]], ignore_index=True)
        # In the order of results of one folder.
        return whole.sort_values(list(keys), kind="stable", ignore_index=True)

    tables = ("runs", "clients", "settings", "curves", "cells")
    return own._replace(
        failures=tuple(dict.fromkeys([*own.failures, *others.failures])),
        federations=joined("federations", "federation"),
        methods=joined("methods", "method"),
        **{name: joined(name, "federation", "method") for name in tables},
    )


def write(found: Collected, folder: Path) -> None:
    """Writes the tables, and a description of the benchmark, into the folder of a report."""
    keys, in_order = list(_RUN), list(dict.fromkeys(found.runs["measure"]))
    runs: Any = found.runs.pivot(index=keys, columns="measure", values="value")
    rows = found.runs[keys].drop_duplicates()
    files = found._asdict() | {"runs": rows.merge(runs[in_order].reset_index(), on=keys)}
    for name in _COLUMNS:
        files[name].to_csv(
            folder / f"{name}.csv", index=False, lineterminator="\n",
            float_format=_DIGITS.get(name, "%.7g"),
        )  # fmt: skip
    described = {
        "protocol": VERSION,
        "track": found.track,
        "environment": found.environment,
        "failures": found.failures,
    }
    text = json.dumps(described, indent=2) + "\n"
    (folder / _DESCRIPTION).write_text(text, encoding="utf8", newline="\n")


def read(folder: Path, track: str) -> Collected:
    """Reads the tables of a report.

    Args:
        folder: Folder of the report.
        track: Name of the track that results are expected of.

    Raises:
        ValueError: If a file is missing or damaged, or of another version of the protocol or
            another track.
    """
    import pandas as pd

    described = runner.read_folder(folder)
    if described["track"] != track:
        raise ValueError(
            f"folder={str(folder)!r}: expected results of the track {track!r}, got "
            f"{described['track']!r}."
        )
    tables: dict[str, Any] = {}
    for name, columns in _COLUMNS.items():
        file = folder / f"{name}.csv"
        try:
            table: Any = pd.read_csv(file, dtype={"protocol": str}, keep_default_na=False,
                                     na_values=[""], low_memory=False)  # fmt: skip
            missing = [column for column in columns if column not in table]
            if missing:
                raise ValueError(f"missing columns {', '.join(missing)}")
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"path={str(file)!r}: expected a table of a report ({reason})."
            ) from None
        tables[name] = table
    runs = tables["runs"].melt(list(_RUN), var_name="measure", value_name="value")
    texts = ["summary", "paper", "link", "command"]
    return Collected(
        track=track,
        environment=dict(described["environment"]),
        failures=tuple(described.get("failures", ())),
        **tables
        | {
            "runs": runs.dropna(subset="value", ignore_index=True),
            "methods": tables["methods"].fillna(dict.fromkeys(texts, "")),
            "settings": tables["settings"].fillna({"settings": ""}),
        },
    )


def _settings(found: list[measures.Final]) -> list[dict[str, Any]]:
    return [
        {
            "federation": final.federation,
            "method": final.method,
            "criterion": final.criterion,
            "settings": ", ".join(f"{k}={v:g}" for k, v in final.settings.items()),
            "round": final.round,
        }
        for final in found
    ]


def _federations(found: list[measures.Final]) -> list[dict[str, Any]]:
    constants = measures.constants(found)
    firsts = {final.federation: final.dataset for final in reversed(found)}
    return [
        {
            "federation": name,
            "clients": firsts[name].sizes["client"],
            "unseen_clients": firsts[name].sizes.get("unseen_client", 0),
            "data_digest": firsts[name].attrs["data_digest"],
            **{f"constant_{measure}": constants[name, measure] for measure in _CONSTANTS},
        }
        for name in FEDERATIONS
        if name in firsts
    ]


def _methods(folder: Path, found: list[measures.Final], track: str) -> list[dict[str, Any]]:
    rows = []
    for name in dict.fromkeys(final.method for final in found):
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
            }
        )
    return rows


def _kind(method: str) -> str:
    """Returns the group of a method in the registry; pairs are combinations."""
    if "+" in method:
        return "combination"
    if method in BASELINES:
        return "reference"
    return next((kind for kind, entries in GROUPS.items() if method in entries), "plugin")


def _command(track: str, name: str, parts: list[plugin_methods.Description]) -> str:
    if files := [part.file for part in parts if part.file]:
        if name.isidentifier():
            of_track = "" if track == "embedded" else f" --track {track}"
            return f"fedjax-fair benchmark enter {files[0]}{of_track}"
        options = "".join(f" --plugin {file}" for file in dict.fromkeys(files))
        return f"fedjax-fair benchmark {track}{options} --methods {name} --resume"
    return f"fedjax-fair benchmark {track} --methods {name} --resume"
