"""The log of a run, ``metrics.jsonl``: a line of JSON per evaluation, method and seed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_fair import metrics
from fedjax_fair.metrics import speed
from fedjax_fair.results.task_metrics import primary
from fedjax_fair.roles import PERSONALIZED

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["corrected_log", "format_line", "read_evaluations", "read_log"]

Place = tuple[str, int, int]
"""Method, seed and round."""

_PLACE = {"algorithm": str, "seed": int, "round": int}
_SUMMARY_NAMES = {
    f"{prefix}{metric.name}"
    for metric in metrics.ALL_SUMMARIES
    for prefix in ("", PERSONALIZED)
    if metric.is_of_model or not prefix
}


def format_line(place: Place, seconds: float | None, summaries: Mapping[str, Any]) -> str:
    """Formats the summary metrics of an evaluation; NaN and infinities become null."""
    values = {name: float(summaries[name]) for name in sorted(summaries)}
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    about = dict(zip(_PLACE, place, strict=True)) | {"seconds": seconds}
    return json.dumps(about | finite, allow_nan=False)


def read_log(path: Path) -> list[tuple[Place, dict[str, Any], str]]:
    """Reads the complete lines of a log: places, values and texts.

    Raises:
        ValueError: If a line is damaged.
    """
    if not path.exists():
        return []
    lines = []
    for number, content in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            values = json.loads(content)
            place = tuple(values[name] for name in _PLACE)
            if [type(part) for part in place] != list(_PLACE.values()):
                raise TypeError
            lines.append((place, values, content.decode()))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError(
                f"path={str(path)!r}: line {number} is damaged; expected JSON with algorithm, seed "
                "and round. Delete the file to write it again."
            ) from None
    return lines


def corrected_log(path: Path, algorithm: str, results: xr.Dataset) -> tuple[list[str], int]:
    """Returns the lines that a log should have, given the results of a method.

    Lines of other methods are unchanged. Missing and changed lines of the method are replaced, with
    unknown time; repeated lines and those of other evaluations are omitted.

    Returns:
        The lines, and the number of changed or repeated ones.
    """
    names = [
        str(name)
        for name, values in results.items()
        if name in _SUMMARY_NAMES
        # Metrics of the user; those of virtual time follow from the records of all rounds.
        or (
            "better" in values.attrs
            and set(values.dims) == {"round", "seed"}
            and name not in speed.DEFINITIONS
        )
    ]
    columns = {name: results[name].transpose("round", "seed").values for name in names}
    expected = {
        (algorithm, seed, done): {name: values[i, j] for name, values in columns.items()}
        for i, done in enumerate(results["round"].values.tolist())
        for j, seed in enumerate(results["seed"].values.tolist())
    }
    correct: dict[Place, str] = {}
    num_wrong, before, after = 0, [], []
    for place, values, text in read_log(path):
        if place[0] != algorithm:
            (after if correct else before).append(text)
        elif place in expected:
            seconds = values.get("seconds")
            is_time = seconds is None or (isinstance(seconds, float) and 0 <= seconds < math.inf)
            is_correct = is_time and text == format_line(place, seconds, expected[place])
            if is_correct and place not in correct:
                correct[place] = text
            else:
                num_wrong += 1
    lines = [
        correct.get(place) or format_line(place, None, summaries)
        for place, summaries in expected.items()
    ]
    return before + lines + after, num_wrong


def read_evaluations(path: Path) -> xr.Dataset:
    """Reads a log as a Dataset over ``algorithm``, ``seed`` and ``round``; NaN for missing lines.

    Raises:
        ValueError: If a line is damaged, or none has an accuracy.
    """
    import pandas as pd

    rows = {}
    for place, values, _ in read_log(path):
        summaries = {name: values[name] for name in values.keys() - {*_PLACE, "seconds"}}
        rows[place] = {k: v if isinstance(v, float) else math.nan for k, v in summaries.items()}
    index = pd.MultiIndex.from_tuples(rows, names=list(_PLACE))
    methods = list(dict.fromkeys(place[0] for place in rows))
    frame = pd.DataFrame(list(rows.values()), index).dropna(axis="columns", how="all")
    # A method of personalized models alone has no others.
    level = primary({str(name).removeprefix(PERSONALIZED): frame[name] for name in frame}).mean
    if level not in frame and f"{PERSONALIZED}{level}" not in frame:
        raise ValueError(
            f"path={str(path)!r}: expected evaluations with {level}; "
            "pass the metrics.jsonl of a run."
        )
    return frame.to_xarray().sel(algorithm=methods)
