"""Settings that a benchmark tries for each method, and their selection on validation data.

All methods get the same number of settings, and the same learning rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.method import Range
from fedjax_fair.app.settings.named_methods import resolve_method
from fedjax_fair.benchmark.protocol import CRITERIA

__all__ = [
    "CRITERIA",
    "LEARNING_RATES",
    "select",
    "settings_of",
    "sobol_settings",
    "with_settings",
]

LEARNING_RATES = Range(0.005, 1.0)
"""Learning rates of a federated dataset that specifies no others."""

MEASURES = ("accuracy", "worst_10pct", "standard_deviation")

_TOLERANCE = 0.01
_ROUNDING_ERROR = 1e-9


def sobol_settings(ranges: Mapping[str, Range], num: int) -> list[dict[str, float]]:
    """Spreads settings over ranges with a Sobol sequence, without randomness.

    Each range is divided into ``num`` equal parts on its scale, and each part has one value, its
    center. The values of the first range do not depend on the others.

    Args:
        ranges: Ranges by name.
        num: Number of settings, a power of two.

    Returns:
        Values by name, with three significant digits.

    Raises:
        ValueError: If there is no range, one is invalid, or ``num`` is no power of two.

    Examples:
        >>> sobol_settings({"learning_rate": Range(0.01, 1.0)}, 2)
        [{'learning_rate': 0.0316}, {'learning_rate': 0.316}]
    """
    from scipy.stats import qmc

    if num < 1 or num & (num - 1):
        raise ValueError(f"{num=}: expected a power of two; use 16 or 32.")
    if not ranges:
        raise ValueError(f"{ranges=}: expected one or more ranges.")
    for name, values in ranges.items():
        values.check(name)
    # Scrambling would depend on the random generator of SciPy.
    points = qmc.Sobol(len(ranges), scramble=False).random(num) + 0.5 / num
    return [
        {name: _value(ranges[name], u) for name, u in zip(ranges, point, strict=True)}
        for point in points
    ]


def settings_of(
    name: str, config: Config, num: int, learning_rates: Range = LEARNING_RATES
) -> list[dict[str, float]]:
    """Returns the settings that a benchmark tries for a method.

    Args:
        name: Name of the method, such as ``"divfl+equitable"``.
        config: A resolved configuration.
        num: Number of settings, a power of two.
        learning_rates: Range of the learning rate.

    Raises:
        ValueError: If there is no such method, or it does not use one of its settings.

    Examples:
        >>> from fedjax_fair.app.settings import presets
        >>> settings_of("q_fedavg", presets.resolve(Config()), 2)
        [{'learning_rate': 0.0188, 'q': 0.0111}, {'learning_rate': 0.266, 'q': 1.36}]
    """
    method, _ = resolve_method(config, name)
    settings = sobol_settings({"learning_rate": learning_rates, **method.ranges}, num)
    for values in settings:
        resolve_method(config, with_settings(name, values))
    return settings


def with_settings(name: str, settings: Mapping[str, float]) -> str:
    """Returns the name of a method with settings.

    Examples:
        >>> with_settings("divfl+equitable", {"learning_rate": 0.05})
        'divfl+equitable:learning_rate=0.05'
    """
    written = ",".join(f"{key}={value}" for key, value in settings.items())
    return f"{name}{',' if ':' in name else ':'}{written}" if written else name


def select(validation: Mapping[str, Any]) -> dict[str, int]:
    """Selects the index of a setting by each criterion.

    The criteria are the highest mean accuracy over clients (``mean``), the highest accuracy of the
    worst 10% of clients (``worst``), and the lowest standard deviation over clients among settings
    whose mean accuracy is within 0.01 of the best (``fairest``). Measures are averaged over seeds.
    A setting with a value that is not finite has diverged; if all have, the first one is selected.
    The first of equal settings is selected.

    Args:
        validation: ``accuracy``, ``worst_10pct`` and ``standard_deviation``, each an array
            ``[settings, seeds]``, or a dataset of them.

    Raises:
        ValueError: If a measure is missing, or shapes differ or are empty.

    Examples:
        >>> worst, deviation = [[0.5], [0.6]], [[0.2], [0.1]]
        >>> measures = {"worst_10pct": worst, "standard_deviation": deviation}
        >>> select({"accuracy": [[0.9], [0.8]], **measures})
        {'mean': 0, 'worst': 1, 'fairest': 0}
    """
    values = [_measure(validation, name) for name in MEASURES]
    if len(shapes := {value.shape for value in values}) > 1:
        raise ValueError(f"validation: shapes {sorted(shapes)}; expected one shape.")
    is_finite = np.all([np.isfinite(value).all(axis=1) for value in values], axis=0)
    if not is_finite.any():
        return dict.fromkeys(CRITERIA, 0)
    mean, worst, deviation = (value.mean(axis=1) for value in values)
    best = mean[is_finite].max()
    is_near = is_finite & (mean >= best - _TOLERANCE - _ROUNDING_ERROR)
    indices = (
        _first_max(mean, is_finite),
        _first_max(worst, is_finite),
        _first_max(-deviation, is_near),
    )
    return dict(zip(CRITERIA, indices, strict=True))


def _value(values: Range, u: float) -> float:
    low, high, scale = values
    value = low * (high / low) ** u if scale == "log" else low + (high - low) * u
    return float(f"{value:.3g}")


def _measure(validation: Mapping[str, Any], name: str) -> np.ndarray:
    if name not in validation:
        raise ValueError(f"validation: no {name}; expected {', '.join(MEASURES)}.")
    value = np.asarray(validation[name], float)
    if value.ndim != 2 or not value.size:
        raise ValueError(f"validation: {name} of shape {value.shape}; expected [settings, seeds].")
    return value


def _first_max(values: np.ndarray, allowed: np.ndarray) -> int:
    """Returns the first index of the highest allowed value, up to rounding errors."""
    values = np.where(allowed, values, -np.inf)
    return int(np.flatnonzero(values >= values.max() - _ROUNDING_ERROR)[0])
