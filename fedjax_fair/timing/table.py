"""Times of clients from a table of clients, or of classes of devices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike

from fedjax_fair.data.partitions.partitioner import parts_by_weight
from fedjax_fair.timing.client_times import QUANTITIES, ClientTimes, quantity_rng
from fedjax_fair.timing.columns import Table, read_number
from fedjax_fair.utils import checks

__all__ = ["from_table"]

_PERCENTILE = re.compile(r"p\d+(\.\d+)?")


def from_table(
    table: Any,
    num_clients: int,
    *,
    assign: str | ArrayLike = "random",
    seed: int = 0,
    groups: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
    client_names: Sequence[str] | None = None,
) -> ClientTimes:
    """Reads the times of clients.

    With a column ``client``, an id or a name, each row is a client. It has the quantities
    ``seconds_per_example``, ``seconds_per_task``, ``download_bytes_per_second`` and
    ``upload_bytes_per_second``, of which the first is required, and maybe a ``device_class``.

    Otherwise each row is a class of devices with its name, ``device_class``. Clients of the class
    draw each quantity q from: q, a constant; ``q_median`` and ``q_sigma``, lognormal with the
    standard deviation of the natural logarithm; or percentiles such as ``q_p10``, ``q_p50`` and
    ``q_p90``, between which the logarithm is linear in the percentile, and beyond which it is
    constant.

    Capacities of FedScale are a pickle of a dictionary by client, with the milliseconds of
    inference of an example and the bandwidth of both directions in kbit/s. Its simulator takes
    three times as long for training, and gives client i the entry ``i % len(capacities)``.

    Args:
        table: Path of a CSV file, columns by name, or a table of pandas.
        num_clients: Number of clients.
        assign: Classes of clients: ``"random"``, in numbers proportional to the column ``share``,
            rounded by largest remainders; ``"size"``, as many, where clients with more examples
            have slower devices; ``"group"``, row g for clients of group g; or the row of each
            client, ``[clients]``.
        seed: Seed of classes and quantities, apart from seeds of runs: devices are the same in
            each run.
        groups: Group of each client, for ``"group"``, as `FederatedData.groups`.
        sizes: Examples of each client, for ``"size"``.
        client_names: Names of the clients, as `FederatedData.client_names`.

    Raises:
        ValueError: If a value is invalid, a column missing or unknown, or a client unknown, missing
            or repeated.

    Examples:
        >>> table = {
        ...     "device_class": ["fast", "slow"],
        ...     "share": [0.6, 0.4],
        ...     "seconds_per_example_median": [0.01, 0.05],
        ...     "seconds_per_example_sigma": [0.2, 0.5],
        ... }
        >>> times = from_table(table, num_clients=10)
        >>> times.class_names, np.bincount(times.device_class).tolist()
        (('fast', 'slow'), [6, 4])
        >>> capacities = [{"computation": 250.0, "communication": 8000.0}]  # Of FedScale.
        >>> rates = [entry["communication"] * 1000 / 8 for entry in capacities]
        >>> times = from_table(
        ...     {
        ...         "client": range(1),
        ...         "seconds_per_example": [3 * e["computation"] / 1000 for e in capacities],
        ...         "download_bytes_per_second": rates,
        ...         "upload_bytes_per_second": rates,
        ...     },
        ...     num_clients=1,
        ... )
        >>> times.seconds_per_example.tolist(), times.upload_bytes_per_second.tolist()
        ([0.75], [1000000.0])
    """
    checks.positive_int("num_clients", num_clients)
    checks.non_negative_int("seed", seed)
    read = Table.read(table)
    if "client" in read.columns:
        return _by_client(read, num_clients, client_names)
    read.check_columns(["device_class"], ["share", *QUANTITIES, *filter(_of, read.columns)])
    names = tuple(map(str, read.columns["device_class"]))
    laws = {name: [_law(read, row, name) for row in range(len(names))] for name in QUANTITIES}
    if not isinstance(assign, str):
        classes = _rows_of_clients("assign", assign, num_clients, len(names))
    elif assign == "group":
        if groups is None:
            raise ValueError("assign='group': the data has no groups; use 'random' or 'size'.")
        classes = _rows_of_clients("groups", groups, num_clients, len(names))
    else:
        checks.one_of("assign", assign, ("random", "size", "group"))
        classes = np.repeat(np.arange(len(names)), parts_by_weight(num_clients, _shares(read)))
        if assign == "random":
            classes = np.random.default_rng((seed, len(QUANTITIES))).permutation(classes)
        else:
            classes = _by_size(classes, sizes, laws)
    values = {}
    for name, of_rows in laws.items():
        rng = quantity_rng(seed, name)
        normal, percent = rng.standard_normal(num_clients), 100 * rng.random(num_clients)
        draws = np.stack([law.draw(normal, percent) for law in of_rows])
        values[name] = draws[classes, np.arange(num_clients)]
    return ClientTimes(**values, device_class=classes, class_names=names)


def _by_client(table: Table, num_clients: int, client_names: Sequence[str] | None) -> ClientTimes:
    """Reads a table in which each row is a client."""
    optional = [*QUANTITIES, "device_class"]
    optional.remove("seconds_per_example")
    table.check_columns(["client", "seconds_per_example"], optional)
    clients = table.find_clients(num_clients, client_names)
    rows = np.full(num_clients, -1)
    for row, client in enumerate(clients):
        if rows[client] >= 0:
            raise ValueError(
                f"{table.places[row]}: client {table.columns['client'][row]!r} has another row; "
                "remove one."
            )
        rows[client] = row
    if rows.min() < 0:
        missing = range(num_clients) if client_names is None else client_names
        raise ValueError(
            f"{table.name}: client {missing[int(rows.argmin())]!r} has no row; add one."
        )
    values = {}
    for name in QUANTITIES.keys() & table.columns.keys():
        numbers = list(map(read_number, table.columns[name]))
        for place, number in zip(table.places, numbers, strict=True):
            QUANTITIES[name].check(f"{place}: {name}", number)
        values[name] = np.asarray(numbers)[rows]
    # In the order of names: that of devices has no meaning.
    of_rows = [str(name) for name in table.columns.get("device_class", ["all"] * num_clients)]
    names, classes = np.unique(of_rows, return_inverse=True)
    return ClientTimes(**values, device_class=classes[rows], class_names=tuple(names.tolist()))


class _Law(NamedTuple):
    """Distribution of a quantity in a class of devices.

    Attributes:
        percents: Increasing percentages, of which values are the percentiles.
        values: The percentiles; a single one is the median.
        sigma: Standard deviation of the logarithm, with a single value.
    """

    percents: list[float]
    values: list[float]
    sigma: float = 0.0

    def draw(self, normal: np.ndarray, percent: np.ndarray) -> np.ndarray:
        """Returns the quantity at standard normal numbers, or at uniform percentages."""
        if len(self.values) == 1:
            return self.values[0] * np.exp(self.sigma * normal)
        return np.exp(np.interp(percent, self.percents, np.log(self.values)))


def _of(column: str) -> str | None:
    """Returns the quantity of which a column is a parameter; None if it is none."""
    name, separator, parameter = column.rpartition("_")
    is_percentile = _PERCENTILE.fullmatch(parameter) and float(parameter[1:]) <= 100
    is_known = is_percentile or parameter in ("median", "sigma")
    return name if name in QUANTITIES and separator and is_known else None


def _law(table: Table, row: int, quantity: str) -> _Law:
    """Returns the distribution of a quantity in a row."""
    place, default = table.places[row], QUANTITIES[quantity].default
    numbers = {}
    for column in table.columns:
        value = read_number(table.columns[column][row])
        if value is None or quantity not in (column, _of(column)):
            continue
        parameter = column.removeprefix(quantity).removeprefix("_")
        check = checks.non_negative if parameter == "sigma" else checks.positive
        (check if parameter else QUANTITIES[quantity].check)(f"{place}: {column}", value)
        numbers[parameter] = value
    if not numbers and default is not None:
        return _Law([50.0], [default])
    if numbers.keys() == {""}:
        return _Law([50.0], [numbers[""]])
    if numbers.keys() == {"median", "sigma"}:
        return _Law([50.0], [numbers["median"]], numbers["sigma"])
    if not numbers or numbers.keys() & {"", "median", "sigma"}:
        given = ", ".join(f"{quantity}_{name}".removesuffix("_") for name in numbers) or "nothing"
        raise ValueError(
            f"{place}: {given}; expected {quantity}, or {quantity}_median and _sigma, or "
            "percentiles such as _p10, _p50 and _p90."
        )
    names = sorted(numbers, key=lambda name: float(name[1:]))
    for low, high in pairwise(names):
        if numbers[high] < numbers[low]:
            raise ValueError(
                f"{place}: {quantity}_{high}={numbers[high]:g} is less than "
                f"_{low}={numbers[low]:g}."
            )
    return _Law([float(name[1:]) for name in names], [numbers[name] for name in names])


def _shares(table: Table) -> np.ndarray:
    """Returns the checked column ``share``."""
    if "share" not in table.columns:
        raise ValueError(f"{table.name}: no column share; add it, or choose another assign.")
    shares = list(map(read_number, table.columns["share"]))
    for place, share in zip(table.places, shares, strict=True):
        checks.fraction(f"{place}: share", share)
    if abs(sum(shares) - 1) > 1e-6:  # Decimals of a file need not sum to 1 exactly.
        raise ValueError(f"{table.name}: column share sums to {sum(shares):g}; expected 1.")
    return np.asarray(shares)


def _rows_of_clients(argument: str, rows: ArrayLike, num_clients: int, num_rows: int) -> np.ndarray:
    """Returns the row of each client after checks."""
    array = _of_one_partition(argument, rows)
    if array.shape != (num_clients,) or not np.isin(array, np.arange(num_rows)).all():
        raise ValueError(
            f"{argument}={np.array2string(array, threshold=10)}: expected an integer from 0 to "
            f"{num_rows - 1}, a row of the table, for each of {num_clients} clients."
        )
    return array.astype(np.int64)


def _of_one_partition(argument: str, values: ArrayLike | None) -> np.ndarray:
    """Returns the values of clients, of which the partitions of ``data.stack`` have equal rows."""
    array = np.asarray(values)
    if array.ndim < 2:
        return array
    if (array != array[0]).any():
        raise ValueError(
            f"{argument} of shape {list(array.shape)}: expected [{array.shape[-1]}], equal in the "
            "partitions of all seeds; make the times and the method of each seed, and pass a list "
            "of methods to fit (or assign='random', --data.no-partition-per-seed)."
        )
    return array[0]


def _by_size(
    classes: np.ndarray, sizes: ArrayLike | None, laws: dict[str, list[_Law]]
) -> np.ndarray:
    """Gives the clients with most examples the slowest classes."""
    examples = _of_one_partition("sizes", sizes)
    if examples.shape != classes.shape:
        raise ValueError(
            f"sizes of shape {list(examples.shape)}: expected the number of examples of each of "
            f"{len(classes)} clients for assign='size'."
        )
    zero, half = np.zeros(1), np.full(1, 50.0)
    per_task, per_example = (
        np.concatenate([law.draw(zero, half) for law in laws[name]])
        for name in ("seconds_per_task", "seconds_per_example")
    )
    seconds = per_task + examples.mean() * per_example
    slowest_first = classes[np.argsort(-seconds[classes], kind="stable")]
    found = np.empty_like(classes)
    found[np.argsort(-examples, kind="stable")] = slowest_first
    return found
