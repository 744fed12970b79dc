"""Tables with sensitive features: Adult, COMPAS, Census-Income, police stops, and tasks of ACS.

They are read from prepared CSV files, Adult, COMPAS and the American Community Survey (ACS) also
from those of their publishers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_fair.data.conversion import DamagedError, one_line
from fedjax_fair.data.federated_tables import table_columns
from fedjax_fair.data.partitions.partition import by_column
from fedjax_fair.data.sources.census_survey import STATE, survey_rows
from fedjax_fair.data.sources.source import (
    DataDir,
    Examples,
    Info,
    Source,
    Splits,
    resolve_data_dir,
)
from fedjax_fair.data.tables.table_encoding import check_columns, fit_encoding
from fedjax_fair.data.tables.table_files import Frame, as_frame
from fedjax_fair.data.tables.table_labels import encode_labels

__all__ = [
    "TABLES",
    "TableFiles",
    "TableSet",
    "find_table",
    "read_frames",
    "read_table",
    "table_source",
]

_TEST_FRACTION, _TEST_SEED = 0.2, 0


class TableSet(NamedTuple):
    """A table with sensitive features.

    Attributes:
        label: Column to predict.
        client: Column whose values are the natural clients.
        sensitive_features: Columns of sensitive features, which are also features.
        exclude: Columns that are not features.
        originals: Names or patterns of names of the publisher's files, the one of test rows last if
            there is one.
        read_original: Reads the training and the test rows of these files.
        prepare: Changes the rows of a file before they are encoded.
        split: Column with the publisher's split, ``"train"`` or ``"test"``, or None.
    """

    label: str
    client: str
    sensitive_features: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    originals: tuple[str, ...] = ()
    read_original: Callable[[list[Path]], list[Frame]] | None = None
    prepare: Callable[[Frame], Frame] | None = None
    split: str | None = None


class TableFiles(NamedTuple):
    """Files of a table: the prepared one, or the publisher's."""

    name: str
    paths: tuple[Path, ...]
    is_prepared: bool


_ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation"),
    *("relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week"),
    *("native_country", "salary"),
)


def _read_adult(paths: list[Path]) -> list[Frame]:
    """Reads ``adult.data`` and ``adult.test``, without rows with missing values, ``?``."""
    import pandas as pd

    frames = []
    for path in paths:
        # The first line of the test file is a comment, and its labels end in a period.
        rows = pd.read_csv(
            path, names=list(_ADULT_COLUMNS), skipinitialspace=True, na_values="?", comment="|"
        )
        rows = rows.dropna().reset_index(drop=True)
        frames.append(rows.assign(salary=rows.salary.str.rstrip(".")))
    return frames


def _read_compas(paths: list[Path]) -> list[Frame]:
    """Reads ``compas-scores-two-years.csv``, with the filter of ProPublica's analysis."""
    import pandas as pd

    rows = pd.read_csv(paths[0])
    is_kept = (
        rows.days_b_screening_arrest.abs().le(30)
        & rows.is_recid.ne(-1)
        & rows.c_charge_degree.ne("O")
        & rows.score_text.notna()  # "N/A"
    )
    columns = ["sex", "age", "age_cat", "race", "juv_fel_count", "juv_misd_count"]
    columns += ["juv_other_count", "priors_count", "c_charge_degree", "two_year_recid"]
    return [rows.loc[is_kept, columns].rename(columns={"age": "age_num"}).reset_index(drop=True)]


def _prepare_stops(rows: Frame) -> Frame:
    """Leaves out stops without a record of searches, and replaces the date by the hour."""
    import pandas as pd

    rows = rows[rows.personsearch.notna()].reset_index(drop=True)
    hour = pd.to_datetime(rows.date).dt.hour
    unknown = {"race": "Unknown", "gender": "Unknown"}
    return rows.drop(columns="date").assign(hour=hour).fillna(unknown)


def _read_survey(task: str, paths: list[Path]) -> list[Frame]:
    """Reads the person records of states, ``psam_p06.csv`` of California and so on."""
    import pandas as pd

    files = [pd.read_csv(path, low_memory=False) for path in paths]
    rows, codes = survey_rows(pd.concat(files, ignore_index=True), task)
    return [rows.astype(dict.fromkeys(codes, str))]


def _survey(task: str, label: str) -> TableSet:
    return TableSet(
        label,
        STATE,
        ("SEX", "RAC1P"),
        exclude=(STATE,),
        originals=("psam_p*.csv",),
        read_original=partial(_read_survey, task),
    )


TABLES: dict[str, TableSet] = {
    "adult": TableSet(
        "salary",
        "occupation",
        ("sex", "race"),
        originals=("adult.data", "adult.test"),
        read_original=_read_adult,
    ),
    # The scores are predictions of another model.
    "compas": TableSet(
        "two_year_recid",
        "age_cat",
        ("race", "sex"),
        exclude=("decile_score", "score_text_high", "score_text_low", "score_text_medium"),
        originals=("compas-scores-two-years.csv",),
        read_original=_read_compas,
    ),
    "census_income": TableSet("income", "industry", ("sex", "race"), split="split"),
    # Other outcomes of a stop are no features.
    "mpls_stops": TableSet(
        "personsearch",
        "neighborhood",
        ("race", "gender"),
        exclude=("vehiclesearch", "citationissued", "mdc", "prerace"),
        prepare=_prepare_stops,
    ),
    "acs_income": _survey("income", "PINCP"),
    "acs_employment": _survey("employment", "ESR"),
    "acs_public_coverage": _survey("public_coverage", "PUBCOV"),
    "acs_mobility": _survey("mobility", "MIG"),
    "acs_travel_time": _survey("travel_time", "JWMNP"),
}
"""Tables by name. ``compas`` has no natural clients; its only other categories are ages."""


def table_source(name: str, num_clients: int) -> Source:
    """Returns the source of a table, whose default clients are the values of a column.

    Args:
        name: A name in ``TABLES``.
        num_clients: Default number of clients of other partitions.
    """
    return Source(
        read_table,
        lambda data_dir: find_table(name, data_dir),
        _describe,
        partition=lambda _: by_column(TABLES[name].client),
        num_clients=num_clients,
        client=TABLES[name].client,
        model="logistic",
        learning_rate=0.1,
        batch_size=50,
        epochs=1,
        rounds=50,
    )


def find_table(name: str, data_dir: DataDir = None) -> TableFiles:
    """Finds the files of a table.

    Args:
        name: A name in ``TABLES``.
        data_dir: Folder of the files, or the folder above ``tables`` or above one of the table's
            name.

    Raises:
        FileNotFoundError: If neither the prepared file nor the publisher's exist.
        DamagedError: If only some of the publisher's files exist.
    """
    root, originals = resolve_data_dir(data_dir), TABLES[name].originals
    folders = (root / "tables", root, root / name)
    for folder in folders:
        for suffix in (".csv.gz", ".csv"):
            if (path := folder / f"{name}{suffix}").is_file():
                return TableFiles(name, (path,), is_prepared=True)
    for folder in folders:
        found = {
            file: sorted(folder.glob(file)) or sorted(folder.glob(f"{file}.gz"))
            for file in originals
        }
        if any(found.values()):
            if missing := [file for file, paths in found.items() if not paths]:
                raise DamagedError(f"{folder / missing[0]}: expected it beside {originals[0]}.")
            return TableFiles(name, tuple(chain(*found.values())), is_prepared=False)
    hint = f" or the original files: {', '.join(originals)}" if originals else ""
    raise FileNotFoundError(
        f"{name!r} is not in {root}: expected tables/{name}.csv.gz{hint}; "
        "download it, or set data.dir to its folder."
    )


def read_frames(files: TableFiles) -> list[Frame]:
    """Reads the training rows of a table, and the test rows if there is a publisher's split.

    Raises:
        DamagedError: As `read_table`.
    """
    table = TABLES[files.name]
    try:
        if not files.is_prepared:
            assert table.read_original is not None
            frames = table.read_original(list(files.paths))
        else:
            frames = [as_frame("table", files.paths[0])]
        frames = [table.prepare(rows) if table.prepare else rows for rows in frames]
        for rows in frames:
            check_columns("table", [table.label, table.client, *table.sensitive_features], rows)
            if rows.empty:
                raise ValueError("no rows are left; expected one or more.")
    except (AttributeError, KeyError, OSError, ValueError) as error:
        raise DamagedError(
            f"{files.paths[0]}: expected the table {files.name} ({one_line(error)})."
        ) from None
    if table.split is None or not files.is_prepared:
        return frames
    part = frames[0][table.split]
    rest = frames[0].drop(columns=table.split)
    return [rest[part == name].reset_index(drop=True) for name in ("train", "test")]


def read_table(files: TableFiles, label: str | None = None) -> Splits:
    """Reads and encodes a table. Without a publisher's split, a random fifth of rows are for tests.

    The encoding is fitted on the training rows. The test rows do not depend on seeds, so that runs
    with different partitions have the same ones.

    Args:
        files: The files.
        label: Column to predict. The default one of the table is no feature of another one.

    Raises:
        DamagedError: If a file lacks columns or is no table.
    """
    table, frames = TABLES[files.name], read_frames(files)
    if label is not None:
        table = table._replace(label=label, exclude=(*table.exclude, table.label))
    if len(frames) == 1:
        rows = np.random.default_rng(_TEST_SEED).permutation(len(frames[0]))
        num_test = int(len(rows) * _TEST_FRACTION)
        frames = [
            frames[0].iloc[np.sort(part)].reset_index(drop=True)
            for part in (rows[num_test:], rows[:num_test])
        ]
    labels = encode_labels(frames, [table.label])
    kept = [name for name in frames[0].columns if name != table.label and name not in table.exclude]
    encoding = fit_encoding(frames[0][kept])
    partitioner = by_column(table.client)
    train, test = (
        Examples(encoding.encode(frame, "ignore"), codes, table_columns(frame, partitioner))
        for frame, codes in zip(frames, labels.values, strict=True)
    )
    encoding = replace(encoding, label=(table.label,), classes=labels.classes)
    return Splits(train, test, labels.num_classes, table.sensitive_features, encoding)


def _describe(files: TableFiles) -> Info:
    train, test, num_classes, *_ = read_table(files)
    assert test is not None
    shape = train.features.shape[1:]
    return Info(files.paths[0].parent, shape, num_classes, len(train.labels), len(test.labels))
