"""Results of a benchmark in the columns that benchopt reads."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedjax_fair.benchmark import measures, tuning
from fedjax_fair.benchmark.federations import variables_of
from fedjax_fair.benchmark.runner import read_folder
from fedjax_fair.results.files import write_bytes
from fedjax_fair.results.formats import to_csv
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["frame", "write"]


def frame(folder: Path) -> pd.DataFrame:
    """Returns one row per method, criterion, seed and evaluated round.

    Returns:
        ``objective_name`` (the criterion of tuning), ``solver_name`` (the method),
        ``dataset_name``, ``p_solver_NAME`` for every setting, ``idx_rep`` (the seed), ``stop_val``
        (the round), ``time`` (NaN: simulated rounds have no duration), and ``objective_NAME``.

    Raises:
        ValueError: If the folder has no benchmark, or no finished method.
    """
    import pandas as pd

    read_folder(folder)
    rows: list[Any] = []
    for final in measures.finals(folder):
        variables = variables_of(final.quantity)
        objectives = {variables[name]: f"objective_{name}" for name in tuning.MEASURES}
        objectives["test_loss_mean_clients"] = "objective_loss"
        names = list(objectives)
        wide: Any = final.dataset[names].to_dataframe().reset_index()[["seed", "round", *names]]
        wide = wide.rename(columns={"seed": "idx_rep", "round": "stop_val"} | objectives)
        wide.insert(0, "dataset_name", final.federation)
        wide.insert(0, "solver_name", final.method)
        wide.insert(0, "objective_name", f"tuned by {final.criterion}")
        wide["time"] = float("nan")
        seeds = final.dataset["seed"].values.tolist()
        for name in final.settings[0]:
            values = [settings[name] for settings in final.settings]
            wide[f"p_solver_{name}"] = wide["idx_rep"].map(dict(zip(seeds, values, strict=True)))
        rows.append(wide)
    if not rows:
        raise ValueError(f"folder={str(folder)!r}: expected a finished method.")
    return pd.concat(rows, ignore_index=True)


def write(folder: Path, format: Literal["parquet", "csv"] = "parquet") -> Path:
    """Writes ``results.parquet`` or ``results.csv`` into the folder, and returns its path.

    Raises:
        ValueError: As `frame`.
        ImportError: If pyarrow is not installed, for Parquet.
    """
    checks.one_of("format", format, ("parquet", "csv"))
    if format == "parquet" and find_spec("pyarrow") is None:
        raise ImportError("format='parquet': expected the package pyarrow; csv needs none.")
    table = frame(folder)
    file = folder / f"results.{format}"
    if format == "csv":
        content = to_csv(table, float_format="%.6g").encode()
    else:
        content = table.to_parquet(index=False)
    write_bytes(file, content)
    return file
