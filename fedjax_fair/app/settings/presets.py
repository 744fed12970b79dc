"""Presets and defaults of data sets; ``paper_presets`` has those of published tables."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedjax_fair.app.overview import PRESET_TABLES
from fedjax_fair.app.settings.config import Config, DataConfig, Preset
from fedjax_fair.app.settings.config_files import set_values
from fedjax_fair.app.settings.registry import SYNTHETIC
from fedjax_fair.app.settings.source_defaults import find_source, is_table_file

__all__ = ["PRESETS", "resolve"]


PRESETS: dict[str, Preset] = {
    name: Preset(
        table["summary"],
        set_values(Config(), {key: value for key, value in table.items() if key != "summary"}),
    )
    for name, table in PRESET_TABLES.items()
}
"""Presets of ``fedjax-fair run NAME``."""


def resolve(config: Config) -> Config:
    """Replaces None by the defaults of the data set.

    Local steps replace the default epochs. Evaluations are after every tenth of the rounds. A
    leading ``~`` of folders is expanded; that of the data becomes absolute.

    Raises:
        FileNotFoundError: If the file of the data is missing, which is named before what its
            settings lack.
        ValueError: If a table lacks its label or clients.

    Examples:
        >>> config = resolve(Config(data=DataConfig(name="mnist")))
        >>> config.model.name, config.training.rounds, config.training.eval_every
        ('lenet', 100, 10)
    """
    data = config.data
    if data.file is None and data.name == "table":
        raise ValueError("data.file=None: expected a file with data.name='table'; set data.file.")
    for name in ("file", "central_test"):  # Named before what other settings lack.
        path = getattr(data, name)
        if path is not None and "*" not in path and not Path(path).expanduser().exists():
            raise FileNotFoundError(
                f"data.{name}={path!r}: no such file; expected a table, an .npz file or LEAF's "
                "JSON; correct the path."
            )
    is_table = is_table_file(data.file)
    file = Path(data.file or "").expanduser()
    # Before settings of tables, which other files do not use.
    if not is_table and not file.is_dir() and file.suffix.lower() not in (".npz", ".json"):
        raise ValueError(
            f"data.file={data.file!r}: expected a table as .csv, .tsv, .parquet or .feather, an "
            ".npz file, or LEAF's .json; convert it."
        )
    has_partition = data.file is None or is_table or data.partition is not None
    if has_partition and data.client is not None:
        data = _fill(data, partition="by_column")
    if data.file is None:
        source = find_source(data.name)
        data = _fill(data, partition=source.partition)
        if data.partition == "by_column":
            data = _fill(data, client=source.client)
    else:  # A file that is no table has the defaults of digits, which also fit a small data set.
        source, data = find_source("adult" if is_table else "digits"), _of_file(data, data.file)
    # Others determine the number of clients.
    if has_partition and data.partition not in ("planted_clusters", "by_column"):
        data = _fill(data, clients=source.num_clients)
    data = _with_absolute(data, "dir", "central_test")
    solver = _fill(config.solver, learning_rate=source.learning_rate, batch_size=source.batch_size)
    if solver.steps is None:
        solver = _fill(solver, epochs=source.epochs)
    training = _fill(config.training, rounds=source.rounds)
    if isinstance(training.rounds, int):  # Others are checked later.
        training = _fill(training, eval_every=max(1, training.rounds // 10))
    return replace(
        config,
        output=os.path.expanduser(config.output),
        data=data,
        model=_fill(config.model, name=source.model),
        solver=solver,
        timing=_with_absolute(config.timing, "table", "online"),
        training=training,
    )


def _with_absolute(section: Any, *names: str) -> Any:
    """Makes paths absolute; `SYNTHETIC` is none."""
    paths = {name: getattr(section, name) for name in names}
    given = {name: path for name, path in paths.items() if path not in (None, SYNTHETIC)}
    absolute = {name: str(Path(path).expanduser().absolute()) for name, path in given.items()}
    return replace(section, **absolute)


def _of_file(data: DataConfig, file: str) -> DataConfig:
    """Names data after its file, whose path becomes absolute; checks what a table needs."""
    name, others = Path(file).stem, ()
    if is_table_file(file):
        if not data.label:
            raise ValueError(f"data.label=None: expected the column of {file!r} to predict.")
        if data.partition is None:
            raise ValueError(
                "data.client=None: expected a column whose values are the clients, or "
                "data.partition, such as 'dirichlet' or 'iid'."
            )
        from fedjax_fair.data.tables.table_files import table_name

        name, others = table_name(file), ("table",)
    if data.name not in (DataConfig.name, name, *others):
        raise ValueError(f"data.name={data.name!r} is not used with data.file; remove it.")
    return replace(data, name=name, file=str(Path(file).expanduser().absolute()))


def _fill(section: Any, **defaults: Any) -> Any:
    """Replaces fields that are None."""
    return replace(section, **{k: v for k, v in defaults.items() if getattr(section, k) is None})
