"""Settings that a benchmark tries for each method, and their selection on validation data.

All methods get the same numbers of runs: the step sizes of `rates` find a window, in which each
block has settings of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_fair.app.settings.method import Range
from fedjax_fair.benchmark.protocol import CRITERIA, PARITY, SETTINGS

__all__ = [
    "RATE",
    "at_limits",
    "block_settings",
    "moved",
    "range_settings",
    "rates",
    "select",
    "window",
    "with_settings",
]

RATE = "learning_rate"
"""Setting that all methods have: the step size of local training."""

MEASURES = ("accuracy", "worst_10pct", "standard_deviation")

_LOWEST_RATE, _DECADES, _FACTOR = 0.003, 4, 10.0
_TOLERANCE = 0.01
_ROUNDING_ERROR = 1e-9
_DIGITS = 3


def rates(num: int) -> list[float]:
    """Returns step sizes from 0.003 upwards that divide four decades evenly.

    Examples:
        >>> rates(8)
        [0.003, 0.00949, 0.03, 0.0949, 0.3, 0.949, 3.0, 9.49]
    """
    return [_round(_LOWEST_RATE * 10 ** (_DECADES * j / num)) for j in range(num)]


def range_settings(ranges: Mapping[str, Range], num: int) -> list[dict[str, float]]:
    """Returns a setting for each of `rates`, with other settings at the center of their ranges.

    Examples:
        >>> range_settings({"q": Range(0.01, 1.0)}, 4)[:2]
        [{'learning_rate': 0.003, 'q': 0.1}, {'learning_rate': 0.03, 'q': 0.101}]
    """
    centers = {name: _value(values, 0.5) for name, values in ranges.items()}
    # Equal settings would be no batch axis, which is another program: neighbors alternate.
    steps = {name: 10.0 ** (math.floor(math.log10(value)) - 2) for name, value in centers.items()}
    return [
        {RATE: rate, **{name: _round(centers[name] + j % 2 * steps[name]) for name in ranges}}
        for j, rate in enumerate(rates(num))
    ]


def window(tried: Sequence[float], accuracies: Sequence[float]) -> Range:
    """Returns the range from a tenth to ten times the step size of the highest accuracy.

    Accuracies that are not finite are of diverged runs; if all are, the smallest step size counts.

    Examples:
        >>> window([0.01, 0.1, 1.0], [0.5, 0.7, float("nan")])
        Range(low=0.01, high=1.0, scale='log')
    """
    values = np.asarray(accuracies, float)
    best = tried[_first_max(values, np.isfinite(values))]
    return Range(_round(best / _FACTOR), _round(best * _FACTOR))


def block_settings(ranges: Mapping[str, Range], num_blocks: int) -> list[dict[str, float]]:
    """Returns the settings of all blocks, one block after the other.

    Blocks are successive parts of one Sobol sequence, so that each has a value in each eighth of
    every range, and no two blocks have the same values.

    Args:
        ranges: Ranges by name.
        num_blocks: Number of blocks.

    Raises:
        ValueError: If a range is invalid.

    Examples:
        >>> settings = block_settings({"learning_rate": Range(0.01, 1.0)}, 2)
        >>> [values["learning_rate"] for values in settings[8:]]
        [0.0274, 0.274, 0.866, 0.0866, 0.0487, 0.487, 0.154, 0.0154]
    """
    from scipy.stats import qmc

    for name, values in ranges.items():
        values.check(name)
    num = SETTINGS * num_blocks
    whole = 1 << (num - 1).bit_length()  # A Sobol sequence is balanced in powers of two.
    # Scrambling would depend on the random generator of SciPy.
    points = qmc.Sobol(len(ranges), scramble=False).random(whole)[:num] + 0.5 / whole
    return [
        {name: _value(ranges[name], u) for name, u in zip(ranges, point, strict=True)}
        for point in points
    ]


def with_settings(name: str, settings: Mapping[str, float]) -> str:
    """Returns the name of a method with settings.

    Examples:
        >>> with_settings("divfl+equitable", {"learning_rate": 0.05})
        'divfl+equitable:learning_rate=0.05'
    """
    written = ",".join(f"{key}={value}" for key, value in settings.items())
    return f"{name}{',' if ':' in name else ':'}{written}" if written else name


def at_limits(ranges: Mapping[str, Range], chosen: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """Returns the log-uniform settings that blocks chose at an end of their range.

    A third of the blocks or more chose a value in the same outer eighth, on a logarithmic scale.

    Args:
        ranges: Ranges by name.
        chosen: The setting that each block has chosen.

    Returns:
        -1 (low end) or 1 (high end) by name; of both ends the one with more blocks.

    Examples:
        >>> chosen = [{"learning_rate": rate} for rate in (0.9, 0.85, 0.2, 0.1)]
        >>> at_limits({"learning_rate": Range(0.01, 1.0)}, chosen)
        {'learning_rate': 1}
    """
    needed = math.ceil(len(chosen) / 3)
    found = {}
    for name, values in ranges.items():
        if values.scale == "log":
            place = np.array([math.log(one[name] / values.low) for one in chosen])
            place = SETTINGS * place / math.log(values.high / values.low)
            counts = {-1: np.sum(place < 1), 1: np.sum(place > SETTINGS - 1)}
            side = max(counts, key=lambda side: counts[side])
            if counts[side] >= needed:
                found[name] = side
    return found


def moved(values: Range, side: int) -> Range:
    """Moves a range by a factor of ten to one side, without a change of its width.

    Examples:
        >>> moved(Range(0.01, 1.0), 1)
        Range(low=0.1, high=10.0, scale='log')
    """
    factor = _FACTOR**side
    return Range(_round(values.low * factor), _round(values.high * factor))


def select(validation: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Selects the setting of each block by each criterion.

    The criteria are the highest mean accuracy over clients (``mean``), the lowest standard
    deviation over clients among settings whose mean accuracy is within 0.01 of the block's best
    (``fairest``), the highest accuracy at the operations of FedAvg (``compute``), and the smallest
    gap of groups among settings within 0.01 of the best (``parity``). A setting with a value that
    is not finite has diverged; if all have, the first one is selected. The first of equal settings
    is selected.

    Args:
        validation: ``accuracy`` and ``standard_deviation``, and where these criteria exist
            ``compute`` and ``parity``, each an array ``[blocks, settings]``.

    Returns:
        Indices ``[blocks]`` by criterion.

    Examples:
        >>> select({"accuracy": [[0.9, 0.895]], "standard_deviation": [[0.2, 0.1]]})
        {'mean': array([0]), 'fairest': array([1])}
    """
    values = {name: np.asarray(value, float) for name, value in validation.items()}
    accuracy, deviation = values["accuracy"], values["standard_deviation"]
    is_finite = np.isfinite(accuracy) & np.isfinite(deviation)
    best = np.max(accuracy, axis=1, keepdims=True, initial=-np.inf, where=is_finite)
    is_near = is_finite & (accuracy >= best - _TOLERANCE - _ROUNDING_ERROR)
    chosen = {
        "mean": _first_max(accuracy, is_finite),
        "fairest": _first_max(-deviation, is_near),
    }
    if "compute" in values:
        chosen["compute"] = _first_max(values["compute"], np.isfinite(values["compute"]))
    if PARITY in values:
        chosen[PARITY] = _first_max(-values[PARITY], is_near & np.isfinite(values[PARITY]))
    return {name: chosen[name] for name in (*CRITERIA, PARITY) if name in chosen}


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _value(values: Range, u: float) -> float:
    low, high, scale = values
    return _round(low * (high / low) ** u if scale == "log" else low + (high - low) * u)


def _first_max(values: np.ndarray, allowed: np.ndarray) -> Any:
    """Returns the first index of the highest allowed value of a row, up to rounding errors."""
    values = np.where(allowed, values, -np.inf)
    is_best = values >= values.max(axis=-1, keepdims=True) - _ROUNDING_ERROR
    return is_best.argmax(axis=-1)
