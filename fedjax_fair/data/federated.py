"""Federated datasets: training, test and validation examples of the same clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int

from fedjax_fair.data.client_examples import MAX_CLASSES, ClientExamples, check_examples
from fedjax_fair.data.conversion import as_integers, check_names, check_range, require
from fedjax_fair.data.partitions.partitioner import BiasRequest
from fedjax_fair.data.sensitive import SensitiveFeature, check_codes, check_sensitive_names
from fedjax_fair.data.sensitive_counts import summarize_sensitive
from fedjax_fair.data.tables.table_encoding import TableEncoding
from fedjax_fair.numerics.inequality import gini
from fedjax_fair.numerics.labels import are_sequences
from fedjax_fair.utils import checks
from fedjax_fair.utils.terminal import escape_control_chars

__all__ = [
    "PARTS",
    "FederatedData",
    "check_alike",
    "label_distance",
    "map_arrays",
    "partition_arrays",
    "stack",
    "validate",
    "with_partition_arrays",
]

PARTS = ("train", "test", "validation")
_PER_EXAMPLE = ("features", "labels", "sensitive_features")
_OF_ALL_PARTITIONS = ("num_clients", "client_names", "sensitive_names", "encoding", "label_unit")
_MAX_NAMES = 10


# `register_dataclass` would give the same pytree, but run-time checks of its annotations break
# `vmap` and `eval_shape`.
class FederatedData(NamedTuple):
    """A federated dataset: a pytree, summarized by ``print``, whose other fields are static.

    If every run has a separate partition (`stack`), its arrays and ``groups`` have a leading axis
    ``runs``.

    Attributes:
        train: Training examples; every client has at least one.
        test: Test examples of the same clients.
        groups: Ground-truth group of each client, ``[clients]``, or None.
        num_classes: Number of classes; of outputs if labels are targets.
        name: Name in results.
        label_skew_only: Whether clients differ only in their number of examples of each class.
        num_unassigned: Number of examples of no client that are not in the arrays.
        validation: Examples to choose settings by (`hold_out`), or None. Clients may have none.
        client_names: Different name of each client, the coordinate ``client`` of results; or None
            for ids. `fit` compiles without it.
        sensitive_names: Name and values of each sensitive feature, whose codes are
            ``sensitive_features`` of the parts; None without them.
        encoding: Encoding of tables as features (`from_table`), or None. `fit` compiles without it.
        num_filled: Number of clients to which the partitioner gave examples only to reach a minimum
            size.
        unseen: Clients that only test examples name (``unknown_clients="unseen"`` of readers), for
            `fedjax_fair.analysis.evaluate_unseen`; or None. It is no part of the pytree.
        central_test: Test examples of no client, as those of a single one (`with_central_test`), or
            None. It is no part of the pytree.
        label_unit: Unit of the targets of a regression, such as ``"years"``, in which results have
            errors; None if it is unknown. `fit` compiles without it.
        bias: Requested bias of each client (`biased`), for `describe_bias`; or None. It is no part
            of the pytree.
    """

    train: ClientExamples
    test: ClientExamples
    groups: Int[Array, " clients"] | None
    num_classes: int
    name: str
    label_skew_only: bool = False
    num_unassigned: int = 0
    validation: ClientExamples | None = None
    client_names: tuple[str, ...] | None = None
    sensitive_names: tuple[SensitiveFeature, ...] | None = None
    encoding: TableEncoding | None = None
    num_filled: int = 0
    unseen: FederatedData | None = None
    central_test: ClientExamples | None = None
    label_unit: str | None = None
    bias: BiasRequest | None = None

    def __str__(self) -> str:
        is_concrete = all(
            isinstance(leaf, np.ndarray | jax.Array) and not isinstance(leaf, Tracer)
            for leaf in jax.tree.leaves(self)
        )
        if not is_concrete or self.train.devices is not None:
            return repr(self)
        name = escape_control_chars(self.name)
        try:
            validate(self)
        except ValueError as error:
            return f"{name}, an invalid federated dataset: {error}"
        return "\n".join(
            [name, *(f"{title:<17}  {text}" for title, text in _summary(self).items())]
        )

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.train.num_clients

    @property
    def num_partitions(self) -> int | None:
        """Number of partitions, or None if all runs share one."""
        return self.train.order.shape[0] if self.train.order.ndim == 2 else None

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, as in a table; None if classes are numbered."""
        names = () if self.encoding is None else self.encoding.classes or ()
        return names if len(names) == self.num_classes else None

    def label_clients(self, ids: Sequence[int]) -> list[Any]:
        """Returns the names of clients, or without names their ids, for messages."""
        return list(ids if self.client_names is None else (self.client_names[id] for id in ids))

    def partition(self, run: int) -> FederatedData:
        """Returns the federated dataset of one run."""
        if self.num_partitions is None:
            return self
        arrays = jax.tree.map(lambda leaf: leaf[run], partition_arrays(self))
        return with_partition_arrays(self, arrays)

    def partitions(self, runs: Sequence[int]) -> FederatedData:
        """Returns the federated dataset with the partitions of some runs, which may repeat."""
        places = np.asarray(runs)
        arrays = jax.tree.map(lambda leaf: leaf[places], partition_arrays(self))
        return with_partition_arrays(self, arrays)

    def without_names(self) -> FederatedData:
        """Removes what compiled functions do not depend on, such as names of clients."""
        unnamed = self._replace(client_names=None, encoding=None, num_filled=0, label_unit=None)
        return unnamed._replace(unseen=None, central_test=None, bias=None)

    def map_parts(self, function: Callable[[ClientExamples], ClientExamples]) -> FederatedData:
        """Applies a function to training, test and, if there are any, validation examples."""
        parts = {name: getattr(self, name) for name in PARTS}
        return self._replace(**{name: part and function(part) for name, part in parts.items()})


def _flatten(data: FederatedData):
    names = ("train", "test", "groups", "validation")
    children = tuple((jax.tree_util.GetAttrKey(name), getattr(data, name)) for name in names)
    static = data.num_classes, data.name, data.label_skew_only, data.num_unassigned
    return children, (
        static, data.client_names, data.sensitive_names, data.encoding, data.num_filled,
        data.label_unit,
    )  # fmt: skip


def _unflatten(fields: Any, children: Any):
    train, test, groups, validation = children
    static, names, sensitive, encoding, num_filled, unit = fields
    rest: Any = (validation, names, sensitive, encoding, num_filled)
    return FederatedData(train, test, groups, *static, *rest, label_unit=unit)


# JAX would otherwise treat the static fields of a NamedTuple as arrays.
jax.tree_util.register_pytree_with_keys(FederatedData, _flatten, _unflatten)


def partition_arrays(data: FederatedData) -> dict[str, Any]:
    """Returns the arrays of the partition, by field: of parts ``order``, ``offsets``, ``sizes``."""
    parts = {name: getattr(data, name) for name in PARTS if getattr(data, name) is not None}
    return {"groups": data.groups} | {
        name: {field: getattr(part, field) for field in ("order", "offsets", "sizes")}
        for name, part in parts.items()
    }


def with_partition_arrays(data: FederatedData, arrays: dict[str, Any]) -> FederatedData:
    """Replaces the partition of a federated dataset."""
    parts = {
        name: getattr(data, name)._replace(**arrays[name]) for name in arrays.keys() & set(PARTS)
    }
    return data._replace(groups=arrays["groups"], **parts)


def map_arrays(
    data: FederatedData, function: Callable[[FederatedData], FederatedData]
) -> FederatedData:
    """Applies a function to a federated dataset, once to arrays that its parts share."""
    train, validation = data.train, data.validation
    if validation is None:
        return function(data)
    shared = [name for name in _PER_EXAMPLE if getattr(train, name) is getattr(validation, name)]
    mapped = function(data._replace(validation=validation._replace(**dict.fromkeys(shared))))
    assert mapped.validation is not None
    arrays = {name: getattr(mapped.train, name) for name in shared}
    return mapped._replace(validation=mapped.validation._replace(**arrays))


def stack(datasets: Sequence[FederatedData]) -> FederatedData:
    """Stacks partitions of the same examples, one for each run of ``fit``.

    Args:
        datasets: At least one, with equal examples and numbers of clients. Those of `from_table`
            with different seeds have equal examples if ``test`` is a table; `hold_out` then makes
            validation examples.

    Returns:
        A federated dataset whose partition has a leading axis ``runs``; shorter rows of ``order``
        are padded.

    Examples:
        >>> from fedjax_fair.data import iid, load
        >>> both = stack([load("digits", iid(20), seed=seed) for seed in (0, 1)])
        >>> both.num_partitions, both.train.sizes.shape, both.partition(1).train.sizes.shape
        (2, (2, 20), (20,))
    """
    check_alike(datasets, _OF_ALL_PARTITIONS, PARTS)
    first = datasets[0]
    for run, data in enumerate(datasets):
        for name in PARTS:
            part, expected = getattr(data, name), getattr(first, name)
            require(
                part is None
                or all(
                    getattr(part, each) is getattr(expected, each)
                    or np.array_equal(getattr(part, each), getattr(expected, each))
                    for each in _PER_EXAMPLE
                ),
                f"datasets[{run}].{name}: expected the examples of the first dataset; only the "
                "partition may differ, so load all from the same arrays.",
            )
    return with_partition_arrays(first, jax.tree.map(_stack_rows, *map(partition_arrays, datasets)))


def check_alike(
    datasets: Sequence[FederatedData], equal: Sequence[str], optional: Sequence[str]
) -> None:
    """Checks for one or more datasets with equal fields, and others that all or none have."""
    require(
        isinstance(datasets, Sequence) and datasets,
        f"{datasets=}: expected one or more in a list, such as [data.load('digits')].",
    )
    first = datasets[0]
    hints = {"encoding": "; held-out rows of a seed change it, test=table and `hold_out` do not"}
    for number, data in enumerate(datasets):
        checks.instance(f"datasets[{number}]", data, FederatedData, "data.load('digits')")
        for name in equal:
            require(
                getattr(data, name) == getattr(first, name),
                f"datasets[{number}].{name}: expected that of the first dataset"
                f"{hints.get(name, '')}.",
            )
        for name in optional:
            require(
                (getattr(data, name) is None) == (getattr(first, name) is None),
                f"datasets[{number}].{name}: expected it in all datasets or in none; add it to the "
                "others, or replace it by None.",
            )


def _stack_rows(*rows: Any) -> np.ndarray:
    longest = max(len(row) for row in rows)
    return np.stack([np.pad(np.asarray(row), (0, longest - len(row))) for row in rows])


def validate(data: FederatedData) -> None:
    """Checks a federated dataset on the host, before compilation.

    Raises:
        ValueError: If shapes or dtypes do not match, features are not finite, a label or an index
            is out of range, ``offsets`` are not the exclusive cumulative sum of ``sizes``, a client
            has no training examples, two have the same name, or ``sensitive_names`` do not fit the
            codes.

    Examples:
        >>> from fedjax_fair.data import load
        >>> validate(load("digits")._replace(num_classes=9))
        Traceback (most recent call last):
        ...
        ValueError: train.labels span [0, 9]: expected [0, 8] (num_classes=9).
    """
    checks.instance("data", data, FederatedData, "data.load('digits')")
    checks.positive_int("num_classes", data.num_classes, at_most=MAX_CLASSES)
    if data.client_names is not None:
        check_names("client_names", data.client_names, data.num_clients)
    if data.sensitive_names is not None:
        check_sensitive_names(data.sensitive_names)
    if data.num_partitions is not None:
        for run in range(data.num_partitions):
            validate(data.partition(run).map_parts(ClientExamples.without_padding))
        return
    train = data.train
    for name in PARTS:
        part = getattr(data, name)
        if part is None:
            continue
        check_examples(name, part, data.num_classes)
        check_codes(
            f"{name}.sensitive_features",
            part.sensitive_features,
            len(part.labels),
            data.sensitive_names,
        )
        require(
            train.sizes.shape == part.sizes.shape,
            f"{name}.sizes of shape {part.sizes.shape}: expected train's {train.sizes.shape}; a "
            "client without examples has size 0.",
        )
        _check_types(name, part, train)
    if data.central_test is not None:
        check_examples("central_test", data.central_test, data.num_classes)
        _check_types("central_test", data.central_test, train)
    empty = np.flatnonzero(np.asarray(train.sizes) == 0)
    require(
        not empty.size,
        f"{empty.size} clients without training examples, first "
        f"{data.label_clients(empty[:5].tolist())}: "
        "expected none, so leave these clients out.",
    )
    if data.groups is not None:
        groups = as_integers("groups", data.groups)
        require(
            groups.shape == train.sizes.shape,
            f"groups of shape {groups.shape}: expected {train.sizes.shape}, one for each client; "
            "pass None without groups.",
        )
        check_range("groups", groups, groups.size, f" ({groups.size} clients)")


def _check_types(name: str, part: ClientExamples, train: ClientExamples) -> None:
    """Checks that examples have features and labels like those of training."""
    # Labels may differ in width.
    has_types_of_train = {
        "features": part.features.dtype == train.features.dtype,
        "labels": part.has_targets == train.has_targets,
    }
    for field, has_type in has_types_of_train.items():
        values, expected = getattr(part, field), getattr(train, field)
        require(
            values.shape[1:] == expected.shape[1:] and has_type,
            f"{name}.{field} {values.shape} of {values.dtype}: expected {field} like train's "
            f"{expected.shape} of {expected.dtype}; convert both alike.",
        )


def _summary(data: FederatedData) -> dict[str, str]:
    """Summarizes a federated dataset of concrete arrays, the first of several partitions."""
    num_partitions, data = data.num_partitions, data.partition(0)
    train, test = (np.asarray(part.sizes) for part in (data.train, data.test))
    counts, labels = data.train.class_counts(data.num_classes), data.train.labels
    classes = f"{data.num_classes:,}; {_range((counts > 0).sum(axis=1))}"
    skew = label_distance(counts)
    if data.train.has_targets:
        classes, skew = f"none: targets of shape {labels.shape[1:]}, {labels.dtype}", np.nan
        classes += f", in {escape_control_chars(data.label_unit)}" if data.label_unit else ""
    if are_sequences(labels):
        classes += f"; {labels.shape[1]:,} labels per example, {counts.sum():,} not masked"
    shape = " x ".join(map(str, data.train.features.shape[1:])) or "scalar"
    groups = ""
    if data.groups is not None:
        sizes = np.bincount(np.asarray(data.groups))
        groups = f" in {len(sizes)} groups of {', '.join(f'{size:,}' for size in sizes)}"
    filled = f"; {data.num_filled:,} filled up to the minimum size" if data.num_filled else ""
    lines = {"clients": f"{len(train):,}{groups}{_names(data)}{filled}"}
    if data.unseen is not None:
        total = np.sum(data.unseen.train.sizes) + np.sum(data.unseen.test.sizes)
        lines["unseen clients"] = f"{data.unseen.num_clients:,}; {total:,} examples"
    num_validation = 0 if data.validation is None else int(np.sum(data.validation.sizes))
    more = f"; {num_validation:,} more for validation" if num_validation else ""
    lines["training examples"] = f"{train.sum():,}; {_range(train)}{more}"
    lines["test examples"] = f"{test.sum():,}; {_range(test)}"
    if data.central_test is not None:
        lines["central test"] = f"{len(data.central_test.labels):,} examples of no client"
    lines |= {"features": f"{shape}, {data.train.features.dtype}", "classes": classes}
    if data.sensitive_names is not None:
        names = data.class_names or range(data.num_classes)
        lines |= summarize_sensitive(
            data.train, data.test, data.sensitive_names, names, data.client_names
        )
    total_train, total_test = len(labels) + data.num_unassigned, len(data.test.labels)
    return lines | {
        "label skew": f"{skew:.2f} (mean total variation distance to all clients, 0 to 1)",
        "size skew": f"{jax.jit(gini)(train.astype(np.float32)):.2f} (Gini index, 0 to 1)",
        "unassigned": f"{total_train - num_validation - train.sum():,} of {total_train:,} training "
        f"examples, {total_test - test.sum():,} of {total_test:,} test examples",
        "partitions": "one for all runs"
        if num_partitions is None
        else f"{num_partitions}, one per run; above the first",
    }


def _names(data: FederatedData) -> str:
    """Lists the first clients by name."""
    if data.client_names is None:
        return ""
    shown = [escape_control_chars(name) for name in data.client_names[:_MAX_NAMES]]
    return f": {', '.join(shown)}{', ...' if data.num_clients > _MAX_NAMES else ''}"


def _range(values: np.ndarray) -> str:
    return f"{values.min():,} to {values.max():,} per client, median {np.median(values):,.0f}"


def label_distance(counts: Int[np.ndarray, "clients classes"]) -> float:
    """Mean total variation distance of the clients' class distributions to that of all examples.

    Args:
        counts: Number of examples of every client and class; clients without any are ignored.

    Examples:
        >>> label_distance(np.array([[5, 0], [0, 5]])), label_distance(np.array([[2, 4], [1, 2]]))
        (0.5, 0.0)
    """
    counts = counts[counts.sum(axis=1) > 0]
    per_client = counts / counts.sum(axis=1, keepdims=True)
    overall = counts.sum(axis=0) / counts.sum()
    return float(np.mean(np.abs(per_client - overall).sum(axis=1)) / 2)
