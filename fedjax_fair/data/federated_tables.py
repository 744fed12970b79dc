"""Federated datasets from tables with a column for each feature, such as CSV files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedjax_fair.data.arrays import UnknownClients, federate, with_central_test, with_label_unit
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.conversion import first_index, require
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.partitions.flwr import FlwrPartitioner, as_partitioner
from fedjax_fair.data.partitions.partition import by_column, find_unknown
from fedjax_fair.data.partitions.partition_of_test import partition_parts
from fedjax_fair.data.partitions.partitioner import Partitioner
from fedjax_fair.data.tables.array_columns import stack_arrays
from fedjax_fair.data.tables.hugging_face import PARTITION, is_federated
from fedjax_fair.data.tables.table_encoding import (
    TableEncoding,
    as_codes,
    check_columns,
    fit_encoding,
)
from fedjax_fair.data.tables.table_files import Frame, as_frame, as_written, table_name
from fedjax_fair.data.tables.table_labels import Target, encode_labels
from fedjax_fair.data.transforms import with_unseen
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["from_table", "table_columns"]


def from_table(
    table: Any,
    *,
    label: str | Sequence[str],
    client: str | Partitioner | FlwrPartitioner,
    sensitive_features: Sequence[str] = (),
    features: str | None = None,
    categorical: Sequence[str] = (),
    exclude: Sequence[str] = (),
    encoding: Literal["one_hot", "codes"] = "one_hot",
    target: Target | Literal["classes"] | None = None,
    test: Any = 0.2,
    validation_fraction: float = 0.0,
    seed: int = 0,
    name: str | None = None,
    unknown_clients: UnknownClients = "error",
    central_test: Any = None,
    label_unit: str | None = None,
) -> FederatedData:
    """Makes a federated dataset from a table.

    Numeric and boolean columns are standardized; if values are missing, another feature indicates
    them. Other columns are categorical; missing values are a category. The encoding is fitted on
    the training examples. Categories that they lack are encoded by zeros in test and validation
    examples (`TableEncoding.encode`). Sensitive features are also features unless excluded.

    Args:
        table: A table of pandas, Polars or Arrow; a ``datasets.Dataset`` of Hugging Face; an object
            of flwr-datasets that loads partitions; or the path of a CSV, TSV, Parquet or Feather
            file, or of the shards of a Parquet or Feather table: a list of paths, a folder, or a
            pattern such as ``"train-*.parquet"``.
        label: Column to predict. Classes are its different values, ascending; of an ordered
            ``pandas.Categorical`` or a ``ClassLabel``, its categories in their order, also those
            without rows.
        client: Column whose values are the clients, which is then no feature; or a partitioner,
            such as ``data.dirichlet(5, 0.5, by="sex")``. Without classes, a partitioner receives a
            single class. Of a CSV or TSV file, clients are the texts of the column, such as
            ``007`` or ``NA``. Of flwr-datasets, the column ``"partition"`` has the partition of
            each row.
        sensitive_features: Columns of sensitive features, such as ``["sex", "race"]``: strings,
            integers or booleans, none missing.
        features: Column of arrays of equal shapes, such as images or embeddings, which are the only
            features and unchanged. By default other columns are encoded as features.
        categorical: Numeric columns whose values are categories.
        exclude: Columns that are not features.
        encoding: Whether categories are indicators, or ``"codes"``, their indices.
        target: ``"classification"``, the default if the label has no more than 20 different
            numbers or is not numeric; or the label is one or several columns of floats
            (``"regression"``), or of 0 and 1 (``"multi_label"``), with `models.as_regression` or
            `models.as_multi_label`.
        test: Fraction of every client's rows held out for testing, rounded down, in ``[0, 1)``;
            or a table of the test rows. Those of a ``FederatedDataset`` are in its split
            ``"test"``. If its test rows are not partitioned, ``test.load_split("test")`` is divided
            by the labels of each client (`split_test`).
        validation_fraction: As in `hold_out`, of the remaining rows.
        seed: Non-negative seed of the partition and of held-out rows.
        name: Name in results; by default that of the file.
        unknown_clients: As in `from_arrays`, of test rows in a table.
        central_test: Table of test rows of no client (`with_central_test`), with the columns of
            features and label.
        label_unit: As in `from_arrays`, with ``target="regression"``; by default "unit of" and the
            column of the label.

    Returns:
        A federated dataset whose ``encoding`` encodes new rows.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a column is missing or has a wrong type, values are missing in the label, the
            client or a sensitive feature, a sensitive feature is the label, or the partition is
            impossible.

    Examples:
        >>> import pandas as pd
        >>> rows = pd.DataFrame({"age": range(20), "job": ["cook", "clerk"] * 10})
        >>> rows["sex"], rows["ill"] = ["F", "M", "M", "F"] * 5, [1, 0, 0, 0, 0] * 4
        >>> data = from_table(rows, label="ill", client="job", sensitive_features=["sex"])
        >>> data.client_names, data.encoding.feature_names
        (('clerk', 'cook'), ('age', 'sex=F', 'sex=M'))
        >>> data.encoding.encode(pd.DataFrame({"age": [30], "sex": ["F"]})).shape
        (1, 3)
    """
    checks.one_of("encoding", encoding, ("one_hot", "codes"))
    checks.one_of("unknown_clients", unknown_clients, ("error", "unseen"))
    if target == "classes":  # The former name.
        target = "classification"
    if target is not None:
        checks.one_of("target", target, get_args(Target))
    if name is None:
        name = table_name(table) if isinstance(table, str | os.PathLike) else "table"
    frames = [as_frame("table", table)]
    is_fraction = isinstance(test, int | float | np.number)
    if is_fraction:
        checks.unit_interval("test", test)
    else:
        frames.append(as_frame("test", test))
    partitioner = as_partitioner(by_column(client) if isinstance(client, str) else client, "client")
    named = _columns_by_argument(
        label, partitioner.column, sensitive_features, features, categorical, exclude
    )
    partitioners = [partitioner] * len(frames)
    if is_federated(table) and client == PARTITION and PARTITION not in frames[-1].columns:
        partitioners[-1] = partitioner._replace(column=None)
    for argument, source, frame in zip(("table", "test"), (table, test), frames, strict=False):
        place = source if isinstance(source, str | os.PathLike) else argument
        require(
            len(frame),
            f"{place} has no rows; expected one or more; look at the filter or the file.",
        )
        for argument, names in named.items():
            is_optional = argument == "client" and partitioners[-1].column is None
            check_columns(argument, () if is_optional else names, frame)
    central = [] if central_test is None else [as_frame("central_test", central_test)]
    for frame in central:
        check_columns("central_test", [*named["label"], *named["features"]], frame)
    labels = encode_labels([*frames, *central], named["label"], target)
    if labels.classes is not None:
        for source, frame in zip((table, test), frames, strict=False):
            _check_spelling(named["label"][0], frame, source)
    written = _with_texts((table, test), frames, named, partitioners)
    columns = [
        table_columns(frame.drop(columns=[*named["features"]]), each)
        for frame, each in zip(written, partitioners, strict=True)
    ]
    classes = [
        part if labels.classes is not None else np.zeros(len(part), np.int64)
        for part in labels.values
    ]
    partitions = partition_parts(partitioner, classes[: len(frames)], columns, seed)
    # Columns to encode are row indices until the training examples are known.
    inputs = [
        np.arange(len(frame), dtype=np.int32)[:, None]
        if features is None
        else stack_arrays(frame[features])
        for frame in frames
    ]
    sensitive = [
        {name: frame[name].to_numpy() for name in named["sensitive_features"]} or None
        for frame in written
    ]
    is_unknown, test_owners = None, None
    if not is_fraction and (column := partitioners[1].column) is not None:
        owners, test_owners = (each[column] for each in columns)
        is_unknown = find_unknown("test", owners, test_owners, unknown_clients)
    rows = federate(
        *zip(inputs, labels.values, partitions, strict=False),
        num_classes=labels.num_classes,
        name=name,
        label_skew_only=partitioner.label_skew_only,
        test_fraction=float(test) if is_fraction else 0.0,
        validation_fraction=validation_fraction,
        seed=seed,
        sensitive_features=sensitive[0],
        test_sensitive_features=None if is_fraction else sensitive[1],
    )
    rows = with_label_unit(rows, label_unit)
    if is_unknown is not None:
        assert test_owners is not None
        rows = with_unseen(rows, test_owners, is_unknown, seed)
    if features is not None:
        fitted = TableEncoding((), named["label"], labels.classes, features)
        rows = rows._replace(
            encoding=fitted, unseen=rows.unseen and rows.unseen._replace(encoding=fitted)
        )
        for frame in central:
            rows = with_central_test(rows, stack_arrays(frame[features]), labels.values[-1])
        return rows
    no_features = {*named["label"], partitioner.column, *exclude}
    no_features |= {PARTITION} if is_federated(table) else set()
    kept = [column for column in frames[0].columns if column not in no_features]
    require(kept, "table: no column is left as a feature; expected one or more, so exclude fewer.")
    for argument, others in {"test": frames[1:], "central_test": central}.items():
        for frame in others:
            check_columns(argument, kept, frame)
    # Fitted to the rows that clients train on, without validation rows.
    fitted = fit_encoding(
        frames[0][kept].iloc[np.asarray(rows.train.features)[np.asarray(rows.train.order), 0]],
        categorical,
        one_hot=encoding == "one_hot",
    )
    fitted = replace(fitted, label=named["label"], classes=labels.classes)
    made = _with_features(rows, fitted, frames[0], frames[-1])
    for frame in central:
        made = with_central_test(made, fitted.encode(frame, unseen="ignore"), labels.values[-1])
    return made


def _with_features(
    rows: FederatedData, encoding: TableEncoding, frame: Frame, test_frame: Frame
) -> FederatedData:
    """Replaces row indices by features; validation shares those of training."""

    def encoded(part: ClientExamples, table: Frame) -> ClientExamples:
        numbers = np.asarray(part.features)[:, 0]
        return part._replace(features=encoding.encode(table.iloc[numbers], unseen="ignore"))

    train = encoded(rows.train, frame)
    validation = rows.validation and rows.validation._replace(features=train.features)
    test = encoded(rows.test, test_frame)
    unseen = rows.unseen and rows.unseen._replace(
        train=rows.unseen.train._replace(features=test.features),
        test=rows.unseen.test._replace(features=test.features),
        encoding=encoding,
    )
    return rows._replace(
        train=train, test=test, validation=validation, encoding=encoding, unseen=unseen
    )


def _with_texts(
    sources: Sequence[Any],
    frames: Sequence[Frame],
    named: dict[str, tuple[str, ...]],
    partitioners: Sequence[Partitioner],
) -> list[Frame]:
    """Returns tables with the texts of columns that name clients and groups.

    Clients are always texts; of other columns, those of which reading a file lost something.
    """
    partitioner = partitioners[0]
    owner = set() if partitioner.column is None else {partitioner.column}
    others = {*named["sensitive_features"], *partitioner.by} - owner
    written = []
    for source, frame, each in zip(sources, frames, partitioners, strict=False):
        names = [name for name in (*owner, *others) if name in frame.columns]
        names = [name for name in names if name not in owner or each.column is not None]
        written.append(as_written(source, frame, names))
    kept = owner | {
        name
        for name in others
        for frame, texts in zip(frames, written, strict=True)
        if name in texts.columns and _is_changed(frame[name], texts[name])
    }
    return [
        frame.assign(**{name: texts[name] for name in texts.columns if name in kept})
        for frame, texts in zip(frames, written, strict=True)
    ]


def _is_changed(values: pd.Series, texts: pd.Series) -> bool:
    """Returns whether a column of a file has other texts than the values that were read."""
    if values.dtype.kind == "f" and (values.dropna() % 1 != 0).any():
        return False
    is_same = (values.isna() & texts.isna()) | (values.astype(str) == texts.astype(str))
    return not is_same.all()


def _check_spelling(label: str, frame: Frame, source: Any) -> None:
    """Checks that no two texts of a file are the same class because they are one number."""
    values = frame[label]
    if values.dtype.kind not in "iuf" or not isinstance(source, str | os.PathLike):
        return
    texts = as_written(source, frame, [label])[label].astype(str).str.strip()
    for value, spelled in texts.groupby(values):
        names = sorted(set(spelled))
        require(
            len(names) == 1,
            f"label {label!r} has the texts {names[:5]} for the number {value}; expected one text "
            "for a class; write equal classes alike, or different ones with a letter.",
        )


def _columns_by_argument(
    label: Any,
    client: Any,
    sensitive_features: Any,
    features: Any,
    categorical: Any,
    exclude: Any,
) -> dict[str, tuple[str, ...]]:
    """Returns the columns that each argument names, and checks that none has two roles."""
    lists = {
        "label": (label,) if isinstance(label, str) else label,
        "client": () if client is None else (client,),
        "sensitive_features": sensitive_features,
        "features": () if features is None else (features,),
        "categorical": categorical,
        "exclude": exclude,
    }
    for argument, names in lists.items():
        is_list = isinstance(names, Sequence) and not isinstance(names, str)
        require(
            is_list and all(isinstance(name, str) for name in names),
            f"{argument}={names!r}: expected names of columns in a list, such as ['age'].",
        )
        require(
            len(set(names)) == len(names),
            f"{argument}={names!r}: expected each column once; remove the copy.",
        )
    require(lists["label"], "label=[]: expected one or more columns; name the column to predict.")
    require(
        features is None or not (*categorical, *exclude),
        f"{features=} is the only feature: expected no columns in categorical and exclude; remove "
        "them.",
    )
    for argument in ("client", "sensitive_features", "features", "categorical"):
        for name in lists[argument]:
            require(
                name not in lists["label"],
                f"{argument}: column {name!r} is the label; expected another column.",
            )
    return {argument: tuple(names) for argument, names in lists.items()}


def table_columns(frame: Frame, partitioner: Partitioner) -> dict[str, Any]:
    """Returns the columns of a table for a partitioner. Columns that it reads become strings.

    Raises:
        ValueError: If a column that it reads does not exist, is not categorical or has missing
            values.
    """
    columns: dict[str, Any] = {
        # The other argument of `Partitioner.split`.
        name: frame[name].to_numpy()
        for name in frame.columns
        if name != "seed"
    }
    needed = [*([] if partitioner.column is None else [partitioner.column]), *partitioner.by]
    check_columns("client", needed, frame)
    for name in needed:
        codes, texts = as_codes(frame[name])
        is_missing = codes < 0
        require(
            not is_missing.any(),
            f"client: {is_missing.sum():,} values of column {name!r} are missing, first in row "
            f"{first_index(is_missing)}; leave these rows out.",
        )
        columns[name] = np.array(texts, str)[codes]
    return columns
