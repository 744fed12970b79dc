"""Tasks of the American Community Survey, by state, of rows that the user downloaded.

The package folktables (the extra ``acs``) defines the tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.federated_tables import from_table
from fedjax_fair.data.partitions.partitioner import Partitioner
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["STATE", "TASKS", "acs", "survey_rows"]

STATE = "ST"
TASKS = {
    "income": "ACSIncome",
    "employment": "ACSEmployment",
    "public_coverage": "ACSPublicCoverage",
    "mobility": "ACSMobility",
    "travel_time": "ACSTravelTime",
}
"""Problems of folktables by task."""
_NUMERIC = {"AGEP", "WKHP", "PINCP", "JWMNP", "POVPIP"}
"""Columns that are no codes of categories."""


def acs(
    frame: pd.DataFrame,
    task: Literal["income", "employment", "public_coverage", "mobility", "travel_time"] = "income",
    *,
    client: str | Partitioner = STATE,
    sensitive_features: Sequence[str] = ("SEX", "RAC1P"),
    encoding: Literal["one_hot", "codes"] = "one_hot",
    test: float = 0.2,
    validation_fraction: float = 0.0,
    seed: int = 0,
) -> FederatedData:
    """Makes a federated dataset of a task of the American Community Survey.

    Nothing is downloaded. Rows of files that are there are read by
    ``ACSDataSource("2018", "1-Year", "person", root_dir).get_data(["CA", "NY"], download=False)``
    of folktables. Its filters select rows for each task. Missing values become 0. Clients are named
    by the code of the state, such as 06 for California.

    Args:
        frame: Rows with the columns of the survey, of 2018 or before; later years have renamed
            RELP, and ST in 2023.
        task: Income above 50,000 dollars, employment, public health insurance, the same address
            as a year before, or a way to work above 20 minutes.
        client: ``"ST"`` for one client of each state, or a partitioner, such as
            ``data.biased(50, ["SEX", "RAC1P"], "attribute")``; the state is then no feature.
        sensitive_features: Columns of codes. SEX is 1 for men and 2 for women; RAC1P has nine
            codes, which can be merged in the frame.
        encoding: As in `from_table`. OCCP and POBP have hundreds of codes, which make models with
            ``"one_hot"`` wide.
        test: Fraction of every client's rows held out for testing.
        validation_fraction: Fraction of the rest held out for validation.
        seed: Seed of the partition and of held-out rows.

    Raises:
        ImportError: If folktables is not installed.
        ValueError: If the task is unknown, a column is missing, or no rows are left.

    References:
        Ding, Hardt, Miller, Schmidt, *Retiring Adult: New Datasets for Fair Machine Learning*,
        2021, https://arxiv.org/abs/2108.04884
    """
    checks.one_of("task", task, tuple(TASKS))
    # `from_table` checks these too, but only after the rows of a survey have been selected.
    checks.unit_interval("test", test)
    checks.unit_interval("validation_fraction", validation_fraction)
    checks.non_negative_int("seed", seed)
    table, codes = survey_rows(frame, task, sensitive_features)
    return from_table(
        table,
        label=str(table.columns[-2]),
        client=client,
        sensitive_features=sensitive_features,
        categorical=codes,
        exclude=() if client == STATE else (STATE,),
        encoding=encoding,
        test=test,
        validation_fraction=validation_fraction,
        seed=seed,
        name=f"acs_{task}",
    )


def survey_rows(
    frame: pd.DataFrame, task: str, sensitive_features: Sequence[str] = ("SEX", "RAC1P")
) -> tuple[pd.DataFrame, list[str]]:
    """Selects the rows of a task, with its features, its label and the state as last columns.

    Args:
        frame: As for `acs`.
        task: A task.
        sensitive_features: Columns that are needed.

    Returns:
        The rows, and the columns that are codes of categories.

    Raises:
        ImportError: If folktables is not installed.
        ValueError: As for `acs`.
    """
    checks.installed("data.acs", "folktables", "acs")
    import pandas as pd

    problem = getattr(import_module("folktables"), TASKS[task])
    needed = dict.fromkeys([*problem.features, problem.target, *sensitive_features, STATE])
    if missing := [name for name in needed if name not in frame.columns]:
        raise ValueError(
            f"frame lacks {', '.join(missing)}: expected the columns of the survey of 2018 or "
            "before; RELP is RELSHIPP from 2019, and ST is STATE in 2023, so rename these."
        )
    parts = []
    for state, rows in frame.groupby(STATE):
        try:
            features, target, _ = problem.df_to_pandas(rows)
        except KeyError as error:
            raise ValueError(f"frame lacks {error}, by which rows of {task} are chosen.") from None
        # The function resets the index, and drops the state unless it is a feature.
        part = features.drop(columns=STATE, errors="ignore")
        part = part.assign(**{problem.target: target[problem.target].to_numpy(bool)})
        parts.append(part.assign(**{STATE: str(state).split(".")[0].zfill(2)}))
    table = pd.concat(parts, ignore_index=True)
    if table.empty:
        raise ValueError(f"frame has no rows for {task=}: expected some; look at its states.")
    codes = [name for name in problem.features if name not in _NUMERIC | {STATE}]
    return table.astype(dict.fromkeys(codes, np.int64)), codes
