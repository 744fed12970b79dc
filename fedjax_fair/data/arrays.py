"""Federated datasets from arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np

from fedjax_fair.data.client_examples import MAX_CLASSES, ClientExamples
from fedjax_fair.data.conversion import (
    as_array,
    as_builtin,
    as_integers,
    check_names,
    check_range,
    check_test_labels,
    require,
)
from fedjax_fair.data.federated import FederatedData, validate
from fedjax_fair.data.partitions.flwr import FlwrPartitioner, as_partitioner
from fedjax_fair.data.partitions.partition import assign_by_owner, find_unknown, from_indices
from fedjax_fair.data.partitions.partition_of_test import partition_parts
from fedjax_fair.data.partitions.partitioner import (
    Partition,
    Partitioner,
    generator,
    index_arrays,
    join_indices,
    make_partition,
    split_off,
)
from fedjax_fair.data.sensitive import encode_sensitive
from fedjax_fair.data.transforms import hold_out, with_unseen
from fedjax_fair.numerics.labels import are_sequences
from fedjax_fair.utils import checks
from fedjax_fair.utils.warning import warn

__all__ = [
    "UnknownClients",
    "as_examples",
    "federate",
    "from_arrays",
    "with_central_test",
    "with_label_unit",
]

UnknownClients: TypeAlias = Literal["error", "unseen"]

_MIN_SIDE, _MIN_PIXEL = 8, 128
"""Smallest images without an axis of channels, and the smallest maximum of pixels up to 255."""


def federate(
    train: tuple[Any, Any, Partition],
    test: tuple[Any, Any, Partition] | None = None,
    *,
    num_classes: int,
    name: str,
    label_skew_only: bool = False,
    test_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    seed: int = 0,
    sensitive_features: Mapping[str, Any] | None = None,
    test_sensitive_features: Mapping[str, Any] | None = None,
) -> FederatedData:
    """Combines examples and their partitions to a validated federated dataset.

    Gray ``uint8`` images get a channel axis, other integers become int32, floats float32. Images
    with channels first, or with values up to 255 or more of other types, are refused.

    Args:
        train: Features, labels and partition of the training examples.
        test: Features, labels and partition of the test examples, or None to hold them out.
        num_classes: Number of classes.
        name: Name in results.
        label_skew_only: As in `Partitioner`.
        test_fraction: Fraction of every client's examples held out for testing, rounded down, in
            ``[0, 1)``.
        validation_fraction: As in `hold_out`, of the remaining examples; 0 for none.
        seed: Seed of the choice of held-out examples.
        sensitive_features: As in `from_arrays`.
        test_sensitive_features: As in `from_arrays`, together with ``test``.

    Raises:
        ValueError: If the arguments do not fit together (see `validate`).
    """
    checks.unit_interval("test_fraction", test_fraction)
    checks.unit_interval("validation_fraction", validation_fraction)
    checks.non_negative_int("seed", seed)
    features, labels, partition = train
    groups: Any = partition.groups
    examples, num_unassigned = as_examples(features, labels), 0
    test_examples = (None, None) if test is None else as_examples(*test[:2], "test_")
    names, codes, test_codes = None, None, None
    if sensitive_features is not None:
        names, codes, test_codes = encode_sensitive(
            sensitive_features, examples[1], test_sensitive_features, test_examples[1]
        )
    if test is None:
        num_unassigned = len(partition.unassigned)
        # Streams 0 and 1 split examples over clients.
        parts = split_off(partition, test_fraction, generator(seed, 2))
        # Copies of disjoint parts: two views of all examples would take twice the memory on a
        # device.
        train_part, test_part = (_compact(*examples, part, codes) for part in parts)
    else:
        train_part = ClientExamples.of(*examples, partition, codes)
        test_part = ClientExamples.of(*test_examples, test[2], test_codes)
    data = FederatedData(
        train_part, test_part, groups, num_classes, name, label_skew_only, num_unassigned,
        client_names=partition.client_names, sensitive_names=names,
        num_filled=partition.num_filled, bias=partition.bias,
    )  # fmt: skip
    validate(data)
    return hold_out(data, validation_fraction, seed) if validation_fraction else data


def _compact(features: Any, labels: Any, partition: Partition, codes: Any) -> ClientExamples:
    """Copies the assigned examples, in the order of their clients."""
    order, total = partition.order, len(partition.order)
    in_order = make_partition(np.arange(total), partition.sizes, total)
    codes = None if codes is None else codes[order]
    return ClientExamples.of(features[order], labels[order], in_order, codes)


def as_examples(features: Any, labels: Any, prefix: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Converts features and labels to the types of `federate`, and checks their lengths."""
    kind, table = type(features).__name__, features
    if isinstance(features, Mapping):
        raise ValueError(
            f"{prefix}features is a {kind} of {', '.join(map(str, features))}: expected one array; "
            "join its arrays along an axis, such as np.concatenate(arrays, axis=1)."
        )
    features, labels = as_array(f"{prefix}features", features), as_array(f"{prefix}labels", labels)
    if features.dtype == object and _is_numeric_table(table):
        features = table.to_numpy(np.float64, na_value=np.nan)  # `validate` reports NaN.
    labels = as_builtin(labels)
    if labels.ndim == 2 and labels.shape[1] and np.issubdtype(labels.dtype, np.floating):
        labels = _as_float32(labels)
    elif (labels.ndim == 1 and labels.dtype.kind in "biu") or (
        labels.ndim == 2 and labels.shape[1] and labels.dtype.kind in "iu"
    ):
        labels = _as_int32(f"{prefix}labels", labels)
    else:
        require(
            labels.ndim < 3,
            f"{prefix}labels of shape {labels.shape}: expected at most two axes; flatten to "
            f"[N, H*W], labels.reshape({len(labels)}, -1), and the outputs of the network "
            "likewise, as in docs/models-and-metrics.md.",
        )
        raise ValueError(
            f"{prefix}labels of {labels.dtype} and shape {labels.shape}: expected the class of "
            "each example, 1-D integers from 0 or booleans; np.unique(labels, return_inverse=True)"
            "[1] makes classes of other values; or a sequence of classes for each, integers "
            "[total, length]; or targets, floats [total, outputs], such as labels[:, None]."
        )
    require(
        features.shape[:1] == labels.shape[:1] and 0 not in features.shape[1:],
        f"{prefix}features of shape {features.shape} ({kind}): expected one for each of "
        f"{len(labels)} labels, and no axis of length 0; pass features and labels of the same "
        "rows.",
    )
    _check_images(f"{prefix}features", features, labels)
    features = as_builtin(features)
    if features.dtype == np.uint8:
        features = features[..., None] if features.ndim == 3 else features
    elif features.dtype == bool or jnp.issubdtype(features.dtype, jnp.floating):
        features = _as_float32(features)
    elif np.issubdtype(features.dtype, np.integer):
        features = _as_int32(f"{prefix}features", features)
    else:
        raise ValueError(
            f"{prefix}features of {features.dtype}: expected uint8, integers, floats or booleans; "
            "convert numbers by astype(np.float32), and encode other types first."
        )
    return features, labels


def _check_images(name: str, features: np.ndarray, labels: np.ndarray) -> None:
    """Checks the axes of images, and that only ``uint8`` has the values of pixels.

    Images are arrays of four axes, the last of at most four channels, and square ones of three.
    """
    shape, kind = features.shape[1:], f"{name} of {features.dtype} and shape {features.shape}"
    if len(shape) == 3:
        # The last axis of feature maps is long too, but they are square in another order.
        is_long = shape[0] <= 4 and shape[2] not in (1, 3, 4) and shape[0] != shape[1]
        is_square = shape[0] in (1, 3) and shape[0] != shape[1] == shape[2] > 1
        require(
            not is_long and not is_square,
            f"{kind}: expected images with channels last, such as np.moveaxis({name}, 1, -1).",
        )
    is_image = (len(shape) == 3 and shape[2] <= 4) or (
        len(shape) == 2 and shape[0] == shape[1] >= _MIN_SIDE
    )
    is_long = np.prod(shape) >= _MIN_SIDE**2 and not are_sequences(labels)
    if features.dtype in (bool, np.uint8) or not features.size or not (is_image or is_long):
        return
    first, last = float(features.min()), float(features.max())
    advice = (
        f"pass {name}.astype(np.uint8), which models divide by 255"
        if last < 256
        else f"divide by the largest possible value, such as {name} / np.float32(65535)"
    )
    values = f"{kind} span [{first:g}, {last:g}]"
    has_pixels = first >= 0 and last >= _MIN_PIXEL
    if is_image:
        is_integer = len(shape) == 3 and np.issubdtype(features.dtype, np.integer)
        require(
            not is_integer and not has_pixels,
            f"{values}: expected images as uint8, or floats from 0 to 1; {advice}.",
        )
    elif has_pixels and last < 256 and (features == np.floor(features)).all():
        warn(f"{values}, as pixels do; if they are, {advice}.")


def _is_numeric_table(table: Any) -> bool:
    """Returns whether all columns of a table of pandas are numbers or booleans.

    A DataFrame of both, or of types that can have missing values, converts to an array of objects.
    """
    dtypes: Any = getattr(table, "dtypes", None)
    return all(getattr(dtype, "kind", "O") in "biuf" for dtype in np.ravel(dtypes))


def _as_float32(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # `validate` reports infinities.
        return values.astype(np.float32, copy=False)


def _as_int32(name: str, values: np.ndarray) -> np.ndarray:
    limits = np.iinfo(np.int32)
    if values.size and not limits.min <= values.min() <= values.max() <= limits.max:
        raise ValueError(
            f"{name} span [{values.min()}, {values.max()}]: expected integers of 32 bits; convert "
            "them to floats, or number their different values."
        )
    return values.astype(np.int32, copy=False)


def from_arrays(
    features: Any,
    labels: Any,
    client_indices: Mapping[Any, Any] | Sequence[Any] | None = None,
    *,
    clients: Any = None,
    test_features: Any = None,
    test_labels: Any = None,
    test_client_indices: Sequence[Any] | None = None,
    test_clients: Any = None,
    groups: Any = None,
    sensitive_features: Mapping[str, Any] | None = None,
    test_sensitive_features: Mapping[str, Any] | None = None,
    num_classes: int | None = None,
    name: str = "custom",
    test_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    seed: int = 0,
    unknown_clients: UnknownClients = "error",
    label_unit: str | None = None,
) -> FederatedData:
    """Makes a federated dataset of arrays in memory.

    Args:
        features: Inputs, ``[total, ...]``: floats, booleans (as floats), integers, or images
            ``uint8`` ``[total, height, width, channels]``, gray ones also without channels, not
            channels first.
        labels: Classes, ``[total]``, integers from 0 or booleans; or a sequence of classes for each
            example, ``[total, length]``, integers from 0, and -1 in masked places, such as padding;
            or targets, floats ``[total, outputs]`` (`models.as_regression`,
            `models.as_multi_label`).
        client_indices: Indices of each client's examples, as in `from_indices`; in a mapping, by
            the client's name, which results have as the coordinate ``client``.
        clients: Instead of ``client_indices``, the owner of each example, ``[total]``, integers or
            strings. Clients are the distinct owners, ascending. Strings are names. Or a
            partitioner, such as ``data.dirichlet(5, 0.5)``; test examples are then divided by the
            classes of each client (`split_test`), and sensitive features can be its ``by``.
        test_features: Test inputs. The three test arguments are given together or not at all;
            with a partitioner only two.
        test_labels: Test classes or targets.
        test_client_indices: Indices of each client's test examples, in a list; they may be empty.
        test_clients: With ``clients``, the owner of each test example instead.
        groups: Ground-truth group of each client, ``[clients]``.
        sensitive_features: Value of each example, ``[total]``, by sensitive feature, such as
            ``{"sex": column}``: strings, integers or booleans, none missing.
        test_sensitive_features: Likewise of the test examples, with the test arguments.
        num_classes: Number of classes, at most a million, by default one more than the largest
            label, and 2 for booleans; of targets, the number of outputs. Without it test labels
            that no training example has are an error.
        name: Name in results.
        test_fraction: As in `federate`, without test arguments.
        validation_fraction: As in `federate`.
        seed: As in `federate`.
        unknown_clients: With ``test_clients``, whether test examples of owners without training
            examples are an ``"error"``, or their owners are unseen clients, ``"unseen"``:
            ``FederatedData.unseen``, of each a half for local steps.
        label_unit: Unit of the targets of a regression, such as ``"years"``, for tables, plots and
            reports; by default "unit of the label".

    Returns:
        A federated dataset of NumPy arrays.

    Raises:
        ValueError: If an array is masked, or the arrays do not fit together (see `validate`).

    Examples:
        >>> data = from_arrays(np.eye(10), np.arange(10) % 2, [range(5), range(5, 10)])
        >>> data.train.sizes.tolist(), data.test.sizes.tolist(), data.num_classes
        ([4, 4], [1, 1], 2)
        >>> from_arrays(np.eye(4), [0, 1, 0, 1], clients=["b", "a", "a", "a"]).client_names
        ('a', 'b')
        >>> column = {"sex": ["F", "M", "M", "M"]}
        >>> people = from_arrays(np.eye(4), [0, 1, 1, 0], [range(4)], sensitive_features=column)
        >>> people.sensitive_names, people.train.sensitive_features.shape
        ((SensitiveFeature(name='sex', values=('F', 'M')),), (4, 1))
    """
    if (client_indices is None) == (clients is None):
        raise ValueError(
            "client_indices, clients: expected one of the two, the indices of each client's "
            f"examples or the owner of each example, got {'none' if clients is None else 'both'}."
        )
    if (test_client_indices if client_indices is None else test_clients) is not None:
        raise ValueError(
            "test_client_indices, test_clients: expected test_client_indices with client_indices, "
            "or test_clients with clients; pass owners of both parts in the same way."
        )
    checks.one_of("unknown_clients", unknown_clients, ("error", "unseen"))
    partitioner = None
    if isinstance(clients, Partitioner | FlwrPartitioner):
        partitioner = as_partitioner(clients)
        require(
            test_clients is None,
            "test_clients: expected None with a partitioner, which divides the test examples.",
        )
    has_booleans = as_array("labels", labels).dtype == bool
    features, labels = as_examples(features, labels)
    require(len(labels), "labels: expected one or more examples, got none; add some.")
    is_unknown = None
    test_owners = test_client_indices if clients is None else test_clients
    test_arrays = [test_features, test_labels, *([] if partitioner else [test_owners])]
    given = [array is not None for array in test_arrays]
    if any(given) and not all(given):
        raise ValueError(
            "test_features, test_labels, test_client_indices or test_clients: expected all three "
            f"or none, got {given}; pass the others too, or leave all out to hold out examples."
        )
    if all(given):
        test_features, test_labels = as_examples(test_features, test_labels, "test_")
    test_partition = None
    if partitioner is not None:
        columns = dict(sensitive_features or {}), dict(test_sensitive_features or {})
        each = (labels, test_labels)[: 1 + all(given)]
        partition, *tests = partition_parts(partitioner, each, columns[: len(each)], seed)
        test_partition = tests[0] if tests else None
    elif clients is not None:
        clients = _as_owners("clients", clients, labels)
        partition = assign_by_owner(clients, clients)
        if partition.client_names is not None:
            check_names("clients", partition.client_names, len(partition.sizes))
        if all(given):
            test_clients = _as_owners("test_clients", test_clients, test_labels, "test ")
            kinds = [
                "i" if each.dtype.kind in "iu" else each.dtype.kind
                for each in (clients, test_clients)
            ]
            require(
                kinds[0] == kinds[1],
                f"test_clients of {test_clients.dtype}: expected owners as in clients, of "
                f"{clients.dtype}, because 1 and '1' are two clients; convert both alike.",
            )
            is_unknown = find_unknown("test_clients", clients, test_clients, unknown_clients)
            test_partition = assign_by_owner(clients, test_clients)
    else:
        assert client_indices is not None
        partition = from_indices(client_indices).split(labels, seed)
        if all(given):
            indices = join_indices(index_arrays(test_client_indices), len(test_labels))
            test_partition = make_partition(*indices, len(test_labels))
    if groups is not None:
        groups = as_integers("groups", groups)
        check_range("groups", groups, len(partition.sizes), f" ({len(partition.sizes)} clients)")
        partition = partition._replace(groups=groups.astype(np.int32))
    test = None if test_partition is None else (test_features, test_labels, test_partition)
    if num_classes is None:
        if test is not None and not has_booleans:
            check_test_labels("test_labels", labels, test[1], "num_classes= counts them as classes")
        test_classes = labels if test is None else test[1]
        num_classes = 2 if has_booleans else _num_classes(labels, test_classes)
    made = federate(
        (features, labels, partition),
        test,
        num_classes=num_classes,
        name=name,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        seed=seed,
        sensitive_features=sensitive_features,
        test_sensitive_features=test_sensitive_features,
    )
    made = with_label_unit(made, label_unit)
    return made if is_unknown is None else with_unseen(made, test_clients, is_unknown, seed)


def with_label_unit(data: FederatedData, unit: str | None) -> FederatedData:
    """Adds the unit of the targets of a regression.

    Args:
        data: A federated dataset.
        unit: The unit, such as ``"years"``, or None if it is unknown.

    Raises:
        ValueError: If labels are classes, or the unit is no text.
    """
    if unit is None:
        return data
    # Files of results cannot hold null characters and surrogates.
    is_text = isinstance(unit, str) and "\0" not in unit and unit.isprintable()
    require(
        is_text and unit.strip(),
        f"label_unit={unit!r}: expected non-empty text in one line, such as 'years'.",
    )
    require(
        data.train.has_targets,
        f"label_unit={unit!r}: expected the targets of a regression, floats [total, outputs], but "
        f"labels of {data.train.labels.dtype} are classes, whose errors have no unit; leave it "
        "out.",
    )
    return data._replace(label_unit=unit)


def with_central_test(data: FederatedData, features: Any, labels: Any) -> FederatedData:
    """Adds a central test set: examples of no client, on which each evaluation measures once.

    Results have its ``central_accuracy`` and ``central_loss``, of global models, next to the
    metrics of the clients' own test examples.

    Args:
        data: A federated dataset.
        features: Inputs, ``[total, ...]``, as in `from_arrays`, with the shape of ``data``.
        labels: Labels, as in `from_arrays`, of the classes of ``data``.

    Raises:
        ValueError: If there are no examples, or they have another shape, type or class.

    Examples:
        >>> data = from_arrays(np.eye(4), [0, 1, 0, 1], clients=[0, 0, 1, 1], test_fraction=0.5)
        >>> with_central_test(data, np.eye(4), [0, 1, 0, 1]).central_test.sizes.tolist()
        [4]
    """
    features, labels = as_examples(features, labels, "central test ")
    require(len(labels), "central test labels: expected one or more examples, got none; add some.")
    everything = make_partition(np.arange(len(labels)), np.array([len(labels)]), len(labels))
    made = data._replace(central_test=ClientExamples.of(features, labels, everything))
    validate(made)
    return made


def _num_classes(labels: np.ndarray, test_labels: np.ndarray) -> int:
    if labels.ndim > 1 and not are_sequences(labels):
        return labels.shape[1]
    both = np.concatenate([labels.ravel(), test_labels.ravel()])
    first, last = int(both.min()), int(both.max())
    require(
        first >= 0 or labels.ndim > 1,
        f"labels span [{first}, {last}]: expected classes from 0, which np.unique(labels, "
        "return_inverse=True)[1] makes of other values; leave examples without a class out.",
    )
    if first > 0 and labels.ndim == 1:
        raise ValueError(
            f"labels span [{first}, {last}]: expected classes from 0. Pass labels - {first} for "
            f"{last - first + 1} classes, or num_classes={last + 1} if the first have no examples."
        )
    if last >= MAX_CLASSES:
        raise ValueError(
            f"labels span [{first}, {last}]: expected classes below {MAX_CLASSES}, which "
            "np.unique(labels, return_inverse=True)[1] makes of other values."
        )
    return 1 + max(last, 0)


def _as_owners(name: str, owners: Any, labels: np.ndarray | None, part: str = "") -> np.ndarray:
    """Converts the owner of each example to an array of integers or strings."""
    values, owners = owners, as_array(name, owners)
    require(
        # Arrays of strings drop null characters at the end, so that two clients would be one.
        owners.dtype.kind not in "OU"
        or not any(
            isinstance(value, str) and "\0" in value for value in np.asarray(values, object).ravel()
        ),
        f"{name}: expected names without null characters; replace them.",
    )
    require(
        # Otherwise 1 and NaN among strings are the strings "1" and "nan".
        owners.dtype.kind != "U"
        or not isinstance(values, list | tuple)
        or all(isinstance(value, str) for value in values),
        f"{name}: expected integers or strings, not both, and none missing; convert all by str.",
    )
    # Columns of strings are objects in pandas.
    if owners.dtype == object and all(isinstance(owner, str) for owner in owners.ravel()):
        owners = owners.astype(str)
    require(
        owners.dtype.kind in "iuUS",
        f"{name} of {owners.dtype}: expected integers or strings, none missing; leave examples "
        "without an owner out, and convert others by str.",
    )
    expected = (owners if labels is None else labels).shape[:1]
    require(
        owners.shape == expected,
        f"{name} of shape {owners.shape}: expected the owner of each {part}example, {expected}.",
    )
    return owners
