r"""Partition with a chosen bias of each client.

A client has a prevalence :math:`\pi_a` of each group a, and a base rate :math:`q_a`, the share of
its people with label 1. Examples are drawn without replacement from the people of each group and
label, so that labels stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from fedjax_fair.data.conversion import as_array
from fedjax_fair.data.partitions.partitioner import (
    BiasRequest,
    Partition,
    Partitioner,
    check_classes,
    column_values,
    generator,
    make_partition,
    parts_by_weight,
)
from fedjax_fair.utils import checks
from fedjax_fair.utils.terminal import error_prefix

__all__ = ["biased", "split_by_request"]

Scenario = Literal["attribute", "value", "prevalence", "base_rate"]
Cells = Float[np.ndarray, "clients groups 2"]

_GAP = 0.2
_MINORITY = 0.05, 0.45
"""Shares of the minority at the first and the last client, as in FedFair-100."""


def biased(
    num_clients: int,
    by: Sequence[str],
    scenario: Scenario | None = None,
    *,
    gap: float | Sequence[float] | np.ndarray | None = None,
    prevalence: Sequence[Any] | np.ndarray | None = None,
    base_rate: float | Sequence[Any] | np.ndarray | None = None,
    favored: Any = None,
    size: int | Sequence[int] | np.ndarray | None = None,
) -> Partitioner:
    r"""Splits examples such that each client has a chosen bias.

    A ``gap`` :math:`\delta` of a client with base rate p, whose favored group has the prevalence
    :math:`\pi`, gives this group the base rate :math:`p + \delta (1 - \pi)` and all others
    :math:`p - \delta \pi`, so that the client keeps its base rate. Scenarios:

    * ``"attribute"``: clients are biased by different attributes. ``by`` names several columns;
      each is that of equally many clients, where its favored value has the gap, and the other
      columns have none. Columns are independent at each client.
    * ``"value"``: clients are biased against different values of one column. The value with the
      lower base rate rotates over clients.
    * ``"prevalence"``: the share of the least frequent value of one column rises from 0.05 at the
      first client to 0.45 at the last. Base rates of groups are those of the data.
    * ``"base_rate"``: base rates of clients rise by ``gap`` from the first to the last, without a
      difference between groups.

    The column ``groups`` of results has the attribute or the value. Examples that no client needs
    are unassigned. Separate test examples are split by the same request.

    Args:
        num_clients: Number of clients.
        by: Columns whose combinations of values are the groups, such as ``["sex"]``.
        scenario: A scenario instead of ``prevalence`` and ``favored``.
        gap: Difference of the base rates of the favored group and the others; a scalar, or one for
            each client. In scenarios 0.2 by default.
        prevalence: Share of each group, ``[groups]`` or ``[clients, groups]``, in the ascending
            order of values, the last column changing fastest; by default that of the data.
        base_rate: Share of label 1: with a gap of each client, a scalar or ``[clients]``; without
            one of each client and group, a scalar or ``[clients, groups]``. By default that of the
            data.
        favored: Value of the favored group: of a single column one value, or one for each client;
            of several columns in the scenario ``"attribute"`` one for each column. By default the
            value with the highest base rate.
        size: Examples of each client, a scalar or ``[clients]``; by default the largest equal
            number that the data allows.

    Raises:
        ValueError: If arguments do not fit together; when splitting, if labels are not 0 and 1, a
            base rate is not in ``[0, 1]``, or the data has too few examples of a group and label.

    References:
        *FeDa4Fair: Client-Level Federated Datasets for Fairness Evaluation*, 2025,
        https://arxiv.org/abs/2506.21095

    Examples:
        >>> labels, sex = np.arange(200) % 2, np.repeat(["F", "M"], 100)
        >>> partitioner = biased(2, ["sex"], gap=[0.2, -0.2], favored="M", size=40)
        >>> partition = partitioner.split(labels, seed=0, sex=sex)
        >>> for indices in partition.client_indices:
        ...     [float(labels[indices][sex[indices] == each].mean()) for each in ("F", "M")]
        [0.4, 0.6]
        [0.6, 0.4]
    """
    checks.positive_int("num_clients", num_clients)
    by = (by,) if isinstance(by, str) else tuple(by)
    if not by:
        raise ValueError(f"{by=}: expected one or more columns, such as ['sex'].")
    if gap is not None:
        checks.finite("gap", gap, many=True)
        if np.abs(gap).max() > 1:
            raise ValueError(f"{gap=}: expected differences of shares, in [-1, 1].")
        _check_shape("gap", gap, [(), (num_clients,)], "a number, or one for each client")
    if base_rate is not None:
        checks.fraction("base_rate", base_rate, many=True)
    if size is not None:
        for one in [size] if not as_array("size", size).ndim else np.ravel(size):
            checks.positive_int("size", one)
        _check_shape("size", size, [(), (num_clients,)], "an integer, or one for each client")
    if scenario is not None:
        checks.one_of("scenario", scenario, get_args(Scenario))
        if prevalence is not None:
            raise ValueError(
                f"prevalence with {scenario=}: expected None; leave one of the two out."
            )
        if (scenario == "attribute") != (len(by) > 1):
            expected = "two or more columns" if scenario == "attribute" else "one column"
            raise ValueError(f"{by=}: expected {expected} with {scenario=}.")
    has_gap = scenario != "prevalence" and (scenario is not None or gap is not None)
    for name, given, is_used in (
        ("gap", gap, has_gap),
        ("favored", favored, has_gap and scenario in (None, "attribute")),
    ):
        if given is not None and not is_used:
            raise ValueError(
                f"{name}={given!r} has no effect with {scenario=}{' and no gap' * (not has_gap)}; "
                "remove it."
            )
    if base_rate is not None and has_gap:
        shapes = [(), (num_clients,)]
        _check_shape("base_rate", base_rate, shapes, "with a gap, a number, or one for each client")
    elif base_rate is not None and np.ndim(base_rate):
        _check_shape(
            "base_rate", np.zeros(np.shape(base_rate)[:1]), [(num_clients,)],
            "a number, or [clients, groups]",
        )  # fmt: skip

    def request(labels: np.ndarray, codes: np.ndarray, values: list[np.ndarray]) -> BiasRequest:
        sizes = [len(each) for each in values]
        pools = _count(labels, codes, int(np.prod(sizes)))
        shape = num_clients, len(pools)
        rate = pools[:, 1] / np.maximum(pools.sum(axis=1), 1)
        share = pools.sum(axis=1) / len(labels)
        clients = np.arange(num_clients)
        kind = None
        if scenario == "attribute":
            kind = clients * len(by) // num_clients
            grid = np.unravel_index(np.arange(shape[1]), sizes)
            marginal = [
                np.bincount(code, share, minlength=size)
                for code, size in zip(grid, sizes, strict=True)
            ]
            share = np.prod([own[code] for own, code in zip(marginal, grid, strict=True)], axis=0)
            chosen = _favored_of_columns(favored, by, values, grid, pools)
            is_favored = np.stack([grid[each] == chosen[each] for each in kind])
            sign = 1.0
        elif scenario == "value":
            kind, sign = clients % shape[1], -1.0
            is_favored = kind[:, None] == np.arange(shape[1])
        else:
            is_favored, sign = _favored_groups(favored, by, values, rate, num_clients), 1.0
        delta = np.broadcast_to(_GAP if gap is None else gap, num_clients) * sign
        shares = np.broadcast_to(share, shape)
        if prevalence is not None:
            shares = _prevalence(prevalence, shape)
        elif scenario == "prevalence":
            minority = int(np.argmin(share))
            ends = np.linspace(*_MINORITY, num_clients)[:, None]
            others = np.where(np.arange(shape[1]) == minority, 0, share)
            shares = np.where(
                np.arange(shape[1]) == minority, ends, (1 - ends) * others / others.sum()
            )
        if not has_gap:
            rates = _rates(base_rate, rate, shape)
        else:
            overall = labels.mean() if base_rate is None else base_rate
            rates = np.broadcast_to(overall, num_clients)[:, None]
            if scenario == "base_rate":
                steps = np.linspace(-0.5, 0.5, num_clients) * delta
                rates = np.broadcast_to(rates + steps[:, None], shape)
            else:
                weight = (shares * is_favored).sum(axis=1, keepdims=True)
                rates = rates + delta[:, None] * np.where(is_favored, 1 - weight, -weight)
        _check_rates(rates, shares, by, values)
        cells = shares[..., None] * np.stack([1 - rates, rates], axis=-1)
        names = tuple(tuple(map(str, each.tolist())) for each in values)
        return BiasRequest(by, names, cells, kind)

    def split(labels, /, seed, **columns):
        labels = as_array("labels", labels)
        check_classes("labels of biased", labels)
        if not np.isin(labels, (0, 1)).all():
            raise ValueError(
                f"labels of biased span [{labels.min()}, {labels.max()}]: expected 0 and 1; base "
                "rates are of two classes."
            )
        own = [column_values(name, columns, len(labels)) for name in by]
        values, codes = zip(*(np.unique(each, return_inverse=True) for each in own), strict=True)
        lengths = [len(each) for each in values]
        joint = np.asarray(np.ravel_multi_index(codes, lengths))
        requested = request(labels, joint, list(values))
        counts = _draw_counts(requested, _count(labels, joint, int(np.prod(lengths))), size)
        return _draw(requested, counts, labels, joint, seed)

    name = f"biased({num_clients}, {scenario or 'requested'}, by {' x '.join(by)})"
    return Partitioner(name, split, by=by)


def split_by_request(
    requested: BiasRequest, labels: np.ndarray, columns: Mapping[str, Any], seed: int
) -> Partition:
    """Splits test examples as requested, into the largest equal numbers."""
    own = [column_values(name, columns, len(labels)) for name in requested.by]
    codes, is_known = [], np.ones(len(labels), bool)
    for column, values in zip(own, requested.values, strict=True):
        places = {value: place for place, value in enumerate(values)}
        code = np.array([places.get(str(value), -1) for value in column.tolist()])
        is_known &= code >= 0
        codes.append(np.maximum(code, 0))
    joint = np.ravel_multi_index(codes, [len(values) for values in requested.values])
    joint = np.where(is_known, joint, -1)
    pools = _count(labels[is_known], joint[is_known], requested.cells.shape[1])
    with error_prefix("Test examples: "):
        counts = _draw_counts(requested, pools, None)
    return _draw(requested, counts, labels, joint, seed)


def _count(labels: np.ndarray, groups: np.ndarray, num_groups: int) -> Int[np.ndarray, "groups 2"]:
    return np.bincount(groups * 2 + labels, minlength=2 * num_groups).reshape(-1, 2)


def _draw_counts(
    requested: BiasRequest, pools: Int[np.ndarray, "groups 2"], size: Any
) -> Int[np.ndarray, "clients groups 2"]:
    """Returns the number of examples of each client and cell.

    Args:
        requested: Shares of the cells.
        pools: Available examples.
        size: Examples of each client, or None for the largest equal number.
    """
    cells = requested.cells
    num_clients = len(cells)
    demand = cells.sum(axis=0)
    limits = np.divide(pools, demand, out=np.full(pools.shape, np.inf), where=demand > 1e-12)
    if size is None:
        sizes = np.full(num_clients, int(limits.min()))
    else:
        sizes = np.broadcast_to(size, num_clients)

    def rounded(sizes):
        return np.stack(
            [
                parts_by_weight(int(total), own.ravel()).reshape(own.shape)
                for total, own in zip(sizes, cells, strict=True)
            ]
        )

    if (sizes < 1).any():
        place = np.unravel_index(limits.argmin(), limits.shape)
        raise ValueError(
            f"{_cell_name(requested, place)}: {pools[place]:,} examples are too few for "
            f"{num_clients} clients; use fewer clients, a smaller gap, or rows without such rare "
            "values."
        )
    counts = rounded(sizes)
    # Rounding may need some examples more than there are.
    while size is None and (counts.sum(axis=0) > pools).any() and sizes[0] > 1:
        sizes = sizes - 1
        counts = rounded(sizes)
    over = counts.sum(axis=0) - pools
    if (over > 0).any():
        place = np.unravel_index(over.argmax(), over.shape)
        factor = float((pools / np.maximum(counts.sum(axis=0), 1e-12)).min())
        raise ValueError(
            f"{size=}: {_cell_name(requested, place)} needs {counts.sum(axis=0)[place]:,} of "
            f"{pools[place]:,} examples; expected sizes of at most {max(factor, 0):.3g} times "
            "these, or None for the largest."
        )
    return counts


def _draw(
    requested: BiasRequest,
    counts: Int[np.ndarray, "clients groups 2"],
    labels: np.ndarray,
    groups: np.ndarray,
    seed: int,
) -> Partition:
    """Draws examples of each cell without replacement."""
    rng = generator(seed)
    parts: list[list[np.ndarray]] = [[] for _ in counts]
    for group, label in np.ndindex(counts.shape[1:]):
        pool = rng.permutation(np.flatnonzero((groups == group) & (labels == label)))
        ends = np.cumsum(counts[:, group, label])
        for client, chosen in enumerate(np.split(pool, ends)[:-1]):
            parts[client].append(chosen)
    order = np.concatenate([rng.permutation(np.concatenate(each)) for each in parts])
    partition = make_partition(order, counts.sum(axis=(1, 2)), len(labels), requested.kind)
    return partition._replace(bias=requested)


def _check_shape(name: str, given: Any, shapes: list[tuple[int, ...]], expected: str) -> None:
    if np.shape(given) not in shapes:
        raise ValueError(f"{name} of shape {np.shape(given)}: expected {expected}.")


def _prevalence(given: Any, shape: tuple[int, int]) -> np.ndarray:
    values = np.asarray(given, np.float64)
    if values.shape not in (shape[1:], shape):
        raise ValueError(
            f"prevalence of shape {values.shape}: expected {shape[1:]} or {shape}, a share of each "
            "group, or of each client and group."
        )
    if not (values >= 0).all() or not np.allclose(values.sum(axis=-1), 1):
        raise ValueError("prevalence: expected shares >= 0 whose sum over groups is 1.")
    return np.broadcast_to(values, shape)


def _rates(given: Any, rate: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    values = np.asarray(rate if given is None else given, np.float64)
    if given is not None and values.shape not in ((), shape):
        raise ValueError(
            f"base_rate of shape {values.shape}: expected a number or {shape}, one of each client "
            "and group; with a gap, one of each client."
        )
    return np.broadcast_to(values, shape)


def _favored_groups(
    favored: Any,
    by: tuple[str, ...],
    values: list[np.ndarray],
    rate: np.ndarray,
    num_clients: int,
) -> np.ndarray:
    """Returns which group is favored at each client, ``[clients, groups]``."""
    if favored is None:
        chosen = np.full(num_clients, np.argmax(rate))
    else:
        if len(values) > 1:
            raise ValueError(f"{favored=}: expected None for several columns, {by=}.")
        known = [str(each) for each in values[0].tolist()]
        names = np.broadcast_to(np.asarray(favored).astype(str), num_clients).tolist()
        chosen = np.array([_place(by[-1], name, known) for name in names])
    return chosen[:, None] == np.arange(len(rate))


def _favored_of_columns(
    favored: Any,
    by: tuple[str, ...],
    values: list[np.ndarray],
    grid: tuple[np.ndarray, ...],
    pools: np.ndarray,
) -> list[int]:
    """Returns the favored value of each column, by default that with the highest base rate."""
    if favored is not None:
        names = np.asarray(favored).astype(str)
        if names.shape != (len(by),):
            raise ValueError(f"{favored=}: expected a value of each of {by=}.")
        pairs = zip(by, names.tolist(), values, strict=True)
        return [_place(name, each, [str(v) for v in own.tolist()]) for name, each, own in pairs]
    found = []
    for code, own in zip(grid, values, strict=True):
        of_value = np.stack([pools[code == each].sum(axis=0) for each in range(len(own))])
        found.append(int(np.argmax(of_value[:, 1] / of_value.sum(axis=1))))
    return found


def _place(column: str, name: str, known: list[str]) -> int:
    if name not in known:
        raise ValueError(f"favored={name!r}: expected a value of {column}, one of {known}.")
    return known.index(name)


def _check_rates(
    rates: np.ndarray, shares: np.ndarray, by: tuple[str, ...], values: list[np.ndarray]
) -> None:
    is_wrong = ((rates < -1e-12) | (rates > 1 + 1e-12)) & (shares > 0)
    if is_wrong.any():
        client, group = (int(each) for each in np.argwhere(is_wrong)[0])
        places = np.unravel_index(group, [len(each) for each in values])
        cell = ", ".join(
            f"{name}={own[place]}" for name, own, place in zip(by, values, places, strict=True)
        )
        raise ValueError(
            f"base rate {rates[client, group]:.3g} of {cell} at client {client}: expected a share "
            "in [0, 1]; choose a smaller gap, or another base_rate."
        )


def _cell_name(requested: BiasRequest, place: Any) -> str:
    group, label = (int(each) for each in place)
    places = np.unravel_index(group, [len(each) for each in requested.values])
    names = zip(requested.by, requested.values, places, strict=True)
    return f"{', '.join(f'{name}={own[each]}' for name, own, each in names)}, label {label}"
