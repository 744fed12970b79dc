"""Tables of pandas, Polars, Arrow and Hugging Face, and files of them, as tables of pandas."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fedjax_fair.data.conversion import one_line, require
from fedjax_fair.data.tables.hugging_face import (
    as_pandas,
    is_dataset,
    is_federated,
    join_partitions,
)

__all__ = ["Frame", "as_frame", "as_written", "is_table_file", "table_name"]

Frame: TypeAlias = Any
"""A table of pandas, of whose columns type checkers do not know that they are series."""

_FORMATS = (".csv", ".tsv", ".parquet", ".feather", ".arrow")
_COMPRESSIONS = ("", ".gz", ".bz2", ".xz", ".zip", ".zst")


def _format(path: str | os.PathLike[str]) -> str | None:
    """Returns the format of a file by its name, without that of its compression."""
    name = Path(path).name.lower()
    for kind in _FORMATS:
        if any(name.endswith(kind + compression) for compression in _COMPRESSIONS):
            return kind
    return None


def is_table_file(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file is a table by its name.

    Examples:
        >>> is_table_file("adult.csv.gz"), is_table_file("adult.npz")
        (True, False)
    """
    return _format(path) is not None


def table_name(path: str | os.PathLike[str]) -> str:
    """Returns the name of a file without its format and compression.

    Examples:
        >>> table_name("tables/adult.csv.gz"), table_name("stops.2017.parquet")
        ('adult', 'stops.2017')
    """
    name, kind = Path(path).name, _format(path)
    return name[: name.lower().rindex(kind)] if kind else Path(path).stem


def as_frame(argument: str, table: Any) -> Frame:
    """Converts a table, or reads a file, to a table of pandas.

    Args:
        argument: Name of the argument in errors.
        table: A table of pandas, Polars or Arrow (any with the Arrow C stream interface); a
            ``datasets.Dataset``; partitions of flwr-datasets (`join_partitions`); or the path of a
            CSV, TSV, Parquet or Feather file, text compressed or not.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is damaged or of another format, the table has another type, or names of
            columns are repeated or not strings.

    Examples:
        >>> import pyarrow
        >>> as_frame("table", pyarrow.table({"age": [20, 40]})).age.tolist()
        [20, 40]
    """
    import pandas as pd

    if isinstance(table, str | os.PathLike):
        frame, argument = _read(table), str(table)
    elif isinstance(table, pd.DataFrame):
        frame = table
    elif hasattr(table, "__arrow_c_stream__"):
        import pyarrow

        frame = pyarrow.table(table).to_pandas()
    elif is_dataset(table):
        frame = as_pandas(table)
    elif is_federated(table):
        frame = join_partitions(argument, table)
    else:
        hint = ""
        if isinstance(table, Mapping) and any(map(is_dataset, table.values())):
            hint = f" One of its datasets is {argument}[{next(iter(table))!r}]."
        raise ValueError(
            f"{argument} of type {type(table).__name__}: expected a table of pandas, Polars or "
            f"Arrow, a datasets.Dataset, or the path of a file.{hint}"
        )
    names = list(frame.columns)
    require(
        all(isinstance(name, str) for name in names),
        f"{argument} has columns {names[:5]}: expected names that are strings; rename them, such "
        "as by table.rename(columns=str).",
    )
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    require(
        not repeated,
        f"{argument} has the columns {repeated} repeatedly; expected each once; rename the copies.",
    )
    return frame


def _read(path: str | os.PathLike[str]) -> Frame:
    import pandas as pd

    kind = _format(path)
    require(
        kind is not None,
        f"{path}: expected a file ending in {', '.join(_FORMATS)}, text also compressed; convert "
        "it.",
    )
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file; correct the path.")
    try:
        if kind == ".parquet":
            return pd.read_parquet(path)
        if kind in (".feather", ".arrow"):
            return pd.read_feather(path)
        names = _header(path)
        frame = pd.read_csv(path, **_text_format(path))
    except Exception as error:  # Readers raise errors of many types.
        raise ValueError(
            f"{path}: expected a table in the format {kind} ({one_line(error)}); save it "
            "again, or correct the ending of its name."
        ) from None
    require(
        frame.index.equals(pd.RangeIndex(len(frame))),
        f"{path} has more values in a row than the {len(names)} names of columns; expected a name "
        "for each value; complete the first line.",
    )
    # Otherwise pandas renames copies to new columns.
    frame.columns = [name or pandas_name for name, pandas_name in zip(names, frame, strict=True)]
    return frame


def _text_format(path: str | os.PathLike[str]) -> dict[str, Any]:
    return {"sep": "," if _format(path) == ".csv" else "\t", "skipinitialspace": True}


def _header(path: str | os.PathLike[str]) -> list[str]:
    """Returns the names of columns in the first line of a text file, without spaces around."""
    import pandas as pd

    as_text: Any = {"dtype": str, "keep_default_na": False, "header": None, "nrows": 1}
    return pd.read_csv(path, **_text_format(path), **as_text).iloc[0].str.strip().tolist()


def as_written(table: Any, frame: Frame, names: Sequence[str]) -> Frame:
    """Returns columns of a table with the texts of its file, if it is a CSV or TSV file.

    Only empty cells are missing. Other tables have the values themselves.

    Args:
        table: The argument of `as_frame`.
        frame: Its result.
        names: Columns, which exist.
    """
    import pandas as pd

    names = [*dict.fromkeys(names)]
    is_file = isinstance(table, str | os.PathLike)
    if not names or not is_file or _format(table) not in (".csv", ".tsv"):
        return frame[names]
    places = sorted(frame.columns.get_loc(name) for name in names)
    as_text: Any = {"dtype": str, "keep_default_na": False, "na_values": [""], "usecols": places}
    texts = pd.read_csv(table, **_text_format(table), **as_text)
    texts.columns = frame.columns[places]
    return texts[names]
