"""Selection from the table of measures: one value per federation, method and seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["HIGHER_IS_BETTER", "Runs", "check_method", "direction", "replace_diverged", "select"]

HIGHER_IS_BETTER = (
    "accuracy",
    "worst_10pct",
    "unseen_accuracy",
    "unseen_worst_10pct",
    "adapted_accuracy",
    "adapted_worst_10pct",
)
"""Measures of which a higher value is better; of all others, a lower one is."""

_COLUMNS = ("federation", "method", "criterion", "seed", "measure", "value", "is_diverged")

Constants = Mapping[tuple[str, str], float]
"""Values of the constant predictor by federation and measure."""


class Runs(NamedTuple):
    """Values of one measure under one criterion.

    Attributes:
        values: Per federation, a table of methods (rows) and seeds (columns); NaN is missing.
        diverged: Per federation, the share of diverged runs of each method.
    """

    values: dict[str, pd.DataFrame]
    diverged: dict[str, pd.Series]

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods of all federations, in the order of the table."""
        return tuple(dict.fromkeys(name for table in self.values.values() for name in table.index))


def direction(measure: str) -> int:
    """Returns 1 if a higher value of the measure is better, and -1 if a lower one is.

    Examples:
        >>> direction("accuracy"), direction("gini")
        (1, -1)
    """
    return 1 if measure in HIGHER_IS_BETTER else -1


def replace_diverged(measures: pd.DataFrame, constants: Constants) -> pd.DataFrame:
    """Replaces the values of diverged runs by those of the constant predictor.

    Args:
        measures: Table of measures.
        constants: Values by federation and measure. Without an entry, a value stays as it is.

    Returns:
        A copy of the table.

    Examples:
        >>> import pandas as pd
        >>> table = pd.DataFrame(
        ...     {
        ...         "federation": ["digits", "digits"],
        ...         "measure": ["accuracy", "loss"],
        ...         "value": [float("nan"), 9.0],
        ...         "is_diverged": [True, True],
        ...     }
        ... )
        >>> replace_diverged(table, {("digits", "accuracy"): 0.1}).value.tolist()
        [0.1, 9.0]
    """
    replaced: Any = measures.copy()
    replaced["value"] = [
        constants.get((federation, measure), value) if is_diverged else value
        for federation, measure, value, is_diverged in zip(
            measures["federation"],
            measures["measure"],
            measures["value"].astype(float),
            measures["is_diverged"].astype(bool),
            strict=True,
        )
    ]
    return replaced


def select(
    measures: pd.DataFrame, measure: str, criterion: str, constants: Constants | None = None
) -> Runs:
    """Selects one measure of the runs chosen by one criterion.

    Args:
        measures: Table of measures.
        measure: A measure of the table.
        criterion: A criterion of the table.
        constants: As for `replace_diverged`.

    Raises:
        ValueError: If a column, the measure or the criterion is missing, if a federation, method
            and seed have two values, or if there are fewer than two seeds.

    Examples:
        >>> import pandas as pd
        >>> run = {"federation": "digits", "method": "fedavg", "criterion": "mean"}
        >>> run |= {"measure": "accuracy", "is_diverged": False}
        >>> table = pd.DataFrame([run | {"seed": 100 + n, "value": 0.5 + n / 4} for n in range(2)])
        >>> select(table, "accuracy", "mean").values["digits"].loc["fedavg"].tolist()
        [0.5, 0.75]
    """
    missing = [name for name in _COLUMNS if name not in measures]
    if missing:
        raise ValueError(
            f"measures: expected the columns {', '.join(_COLUMNS)}; {', '.join(missing)} missing."
        )
    checks.one_of("measure", measure, tuple(measures["measure"].unique()))
    checks.one_of("criterion", criterion, tuple(measures["criterion"].unique()))
    chosen: Any = measures[(measures["measure"] == measure) & (measures["criterion"] == criterion)]
    chosen = replace_diverged(chosen, constants or {})
    keys = ["federation", "method", "seed"]
    if (repeated := chosen.duplicated(keys)).any():
        first = ", ".join(f"{name}={chosen.loc[repeated, name].iloc[0]}" for name in keys)
        raise ValueError(
            f"measures: expected one value of {measure!r} per run, got two of {first}."
        )
    seeds = chosen.loc[chosen["value"].notna(), "seed"].nunique()
    if seeds < 2:
        raise ValueError(f"measures: expected two or more seeds with {measure!r}, got {seeds}.")
    values, diverged = {}, {}
    for federation, runs in chosen.groupby("federation", sort=False):
        table = runs.pivot(index="method", columns="seed", values="value")
        order = list(dict.fromkeys(runs["method"]))
        values[str(federation)] = table.loc[order]
        shares = runs["is_diverged"].astype(float).groupby(runs["method"]).mean()
        diverged[str(federation)] = shares.loc[order]
    return Runs(values, diverged)


def check_method(name: str, method: str, runs: Runs) -> None:
    """Checks that a method has runs in some federation.

    Args:
        name: Name of the argument, for the message.
        method: Value of the argument.
        runs: Runs of all methods.

    Raises:
        ValueError: If it has none.
    """
    checks.one_of(name, method, runs.methods)
