"""Tables of pandas, Polars, Arrow and Hugging Face, and files of them, as tables of pandas."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fedjax_fair.data.conversion import one_line, require
from fedjax_fair.data.tables.hugging_face import (
    as_pandas,
    class_names,
    is_dataset,
    is_federated,
    join_partitions,
    name_classes,
)
from fedjax_fair.utils.warning import warn

__all__ = ["Frame", "as_frame", "as_written", "is_table", "is_table_file", "table_name"]

Frame: TypeAlias = Any
"""A table of pandas, of whose columns type checkers do not know that they are series."""

_FORMATS = (".csv", ".tsv", ".parquet", ".feather", ".arrow")
_SHARDED = (".parquet", ".feather", ".arrow")
"""Formats that have types, so that the files of one table fit together."""
_COMPRESSIONS = ("", ".gz", ".bz2", ".xz", ".zip", ".zst")


def _format(path: str | os.PathLike[str]) -> str | None:
    """Returns the format of a file by its name, without that of its compression."""
    name = Path(path).name.lower()
    for kind in _FORMATS:
        if any(name.endswith(kind + compression) for compression in _COMPRESSIONS):
            return kind
    return None


def is_table_file(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file is a table by its name, or a folder has files of one.

    Examples:
        >>> is_table_file("adult.csv.gz"), is_table_file("adult.npz")
        (True, False)
    """
    folder = Path(path).expanduser()
    return _format(path) is not None or (folder.is_dir() and bool(_files_in(folder)))


def is_table(values: Any) -> bool:
    """Returns whether values are a table of pandas, Polars, Arrow or Hugging Face."""
    return hasattr(values, "columns") or is_dataset(values)


def table_name(path: str | os.PathLike[str]) -> str:
    """Returns the name of a file without its format, compression and the ``*`` of a pattern.

    Examples:
        >>> table_name("tables/adult.csv.gz"), table_name("stops.2017.parquet")
        ('adult', 'stops.2017')
        >>> table_name("photos/train-*.parquet"), table_name("photos/*.parquet")
        ('train', 'photos')
    """
    name, kind = Path(path).name, _format(path)
    stem = name[: name.lower().rindex(kind)] if kind else Path(path).stem
    return stem.partition("*")[0].rstrip("-_.") or Path(path).absolute().parent.name


def as_frame(argument: str, table: Any) -> Frame:
    """Converts a table, or reads a file, to a table of pandas.

    Args:
        argument: Name of the argument in errors.
        table: A table of pandas, Polars or Arrow (any with the Arrow C stream interface); a
            ``datasets.Dataset``; partitions of flwr-datasets (`join_partitions`); the path of a
            CSV, TSV, Parquet or Feather file, text compressed or not; or the shards of a Parquet or
            Feather table, as a list of paths, a folder, or a pattern such as ``train-*.parquet``.

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
    elif isinstance(table, list | tuple) and all(
        isinstance(one, str | os.PathLike) for one in table
    ):
        require(table, f"{argument}={table!r}: expected the path of one or more files.")
        frame = _read_shards(list(map(Path, table)))
    elif isinstance(table, pd.DataFrame):
        frame = table
    elif hasattr(table, "__arrow_c_stream__"):
        import pyarrow

        try:
            frame = pyarrow.table(table).to_pandas()
        except (pyarrow.ArrowException, TypeError) as error:  # A single column.
            raise ValueError(
                f"{argument} of type {type(table).__name__}: expected a table, with columns "
                f"({one_line(error)}); pass all columns."
            ) from None
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

    if Path(path).is_dir():
        return _read_shards(_shards_in(Path(path)))
    kind = _format(path)
    require(
        kind is not None,
        f"{path}: expected a file ending in {', '.join(_FORMATS)}, text also compressed; convert "
        "it.",
    )
    if "*" in Path(path).name and not Path(path).exists():
        files = sorted(Path(path).parent.glob(Path(path).name))
        if not files:
            raise FileNotFoundError(f"{path}: no file has such a name; correct the pattern.")
        return _read_shards(files)
    if kind in _SHARDED:
        return _read_shards([Path(path)])
    _check_file(Path(path))
    try:
        names = _header(path)
    except Exception as error:  # Readers raise errors of many types.
        raise _damaged(path, error) from None
    separators = [each for each in ";|\t," if each in names[0]]
    require(
        len(names) > 1 or not separators,
        f"{path} has the single column {names[0]!r}: expected columns between "
        f"{'commas' if _format(path) == '.csv' else 'tabs'}, not {''.join(separators)!r}; save it "
        "again, such as by pandas.read_csv(path, sep=None).to_csv(path, index=False).",
    )
    try:
        frame = pd.read_csv(path, **_text_format(path))
    except Exception as error:  # Readers raise errors of many types.
        raise _damaged(path, error) from None
    require(
        frame.index.equals(pd.RangeIndex(len(frame))),
        f"{path} has more values in a row than the {len(names)} names of columns; expected a name "
        "for each value; complete the first line.",
    )
    # Otherwise pandas renames copies to new columns.
    frame.columns = [name or pandas_name for name, pandas_name in zip(names, frame, strict=True)]
    if not names[0] and frame.iloc[:, 0].is_unique and len(frame) > 1:
        warn(
            f"{path}: the first column has no name and a different value in each row, as the index "
            f"of a table; exclude {frame.columns[0]!r}, or write the file with index=False."
        )
    return frame


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; correct the path.")


def _damaged(path: str | os.PathLike[str], error: Exception) -> ValueError:
    return ValueError(
        f"{path}: expected a table in the format {_format(path)} ({one_line(error)}); save it "
        "again, or correct the ending of its name."
    )


def _files_in(folder: Path) -> list[Path]:
    """Returns the Parquet and Feather files in a folder and its subfolders."""
    return sorted(path for path in folder.rglob("*") if _format(path) in _SHARDED)


def _shards_in(folder: Path) -> list[Path]:
    """Returns the files of a folder that has a single table, by their names up to a digit."""
    files = _files_in(folder)
    require(
        files,
        f"{folder} is a folder without {', '.join(_SHARDED)} files; expected the shards of a "
        "table, or the path of a file.",
    )
    patterns = {str(path.with_name(re.sub(r"\d.*(?=\.)", "*", path.name))) for path in files}
    require(
        len(patterns) == 1,
        f"{folder} has the tables {', '.join(sorted(patterns)[:5])}; expected one; pass one of "
        "these paths.",
    )
    return files


def _read_shards(files: Sequence[Path]) -> Frame:
    """Reads the files of one table, which have types, in their order."""
    import pyarrow

    tables: list[pyarrow.Table] = []
    for path in files:
        require(
            _format(path) in _SHARDED,
            f"{path}: expected one file, or shards as {', '.join(_SHARDED)}, whose columns have "
            "types; join the texts to one file.",
        )
        _check_file(path)
        try:
            tables.append(_read_arrow(path))
        except Exception as error:  # Readers raise errors of many types.
            raise _damaged(path, error) from None
        differ = set(tables[0].column_names) ^ set(tables[-1].column_names)
        require(
            not differ,
            f"{path} and {files[0]} are no shards of one table: only one has the columns "
            f"{sorted(differ)[:5]}; expected the same columns; pass files of one table.",
        )
    schema = tables[0].schema
    try:
        table = pyarrow.concat_tables(tables, promote_options="permissive")
        frame = table.to_pandas()
        return name_classes(frame, class_names(schema.metadata))
    except (pyarrow.ArrowException, TypeError) as error:
        raise ValueError(
            f"{files[0].parent}: the types of columns differ between {len(files)} files "
            f"({one_line(error)}); expected one type for a column; convert them."
        ) from None
    except ValueError as error:  # Numbers without a class.
        raise _damaged(files[0], error) from None


def _read_arrow(path: Path) -> Any:
    import pyarrow
    from pyarrow import feather, parquet

    if _format(path) == ".parquet":
        return parquet.ParquetFile(path).read()
    try:
        return feather.read_table(path)
    except pyarrow.ArrowInvalid:
        # What `Dataset.save_to_disk` of Hugging Face writes.
        with pyarrow.OSFile(str(path)) as file:
            return pyarrow.ipc.open_stream(file).read_all()


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
