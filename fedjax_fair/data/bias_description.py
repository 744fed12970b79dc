"""Achieved and requested bias of the clients of a federated dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.partitions.partitioner import BiasRequest
from fedjax_fair.data.sensitive_counts import example_columns

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["describe_bias"]


def describe_bias(data: FederatedData) -> pd.DataFrame:
    """Describes how labels depend on sensitive features at each client.

    Args:
        data: Data with one partition, sensitive features and two classes.

    Returns:
        A row for each client and value of a sensitive feature (of two values, the second one), of
        training examples: their number ``size``; the ``share`` of the value; its ``base_rate``, the
        share of label 1; the ``gap`` of this to all other values, and its standard deviation
        ``gap_sd`` over random examples of equal numbers: a gap below two of them may be chance. For
        data of `biased`, ``requested_share``, ``requested_base_rate`` and ``requested_gap``. Values
        without examples are NaN.

    Raises:
        ValueError: If the data has no sensitive features or two classes, or has a partition per
            seed.

    Examples:
        >>> from fedjax_fair.data import biased, from_table
        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": range(400), "ill": [0, 1] * 200, "sex": [*"FFMM"] * 100})
        >>> clients = biased(2, "sex", gap=[0.2, -0.2], favored="M")
        >>> data = from_table(table, label="ill", client=clients, sensitive_features=["sex"],
        ...                   test=0.0)
        >>> describe_bias(data)[["value", "gap", "requested_gap"]].round(2).values.tolist()
        [['M', 0.2, 0.2], ['M', -0.2, -0.2]]
    """
    import pandas as pd

    if data.sensitive_names is None or data.num_classes != 2 or data.num_partitions is not None:
        raise ValueError(
            f"data with {data.num_classes} classes, {data.num_partitions or 1} partitions and "
            f"{'no' if data.sensitive_names is None else 'some'} sensitive features: expected two "
            "classes, one partition and sensitive features (sensitive_features=['sex'])."
        )
    names = data.label_clients(range(data.num_clients))
    found = []
    for place, (feature, values) in enumerate(data.sensitive_names):
        owners, codes, labels = example_columns(data.train, place)
        cells = (owners * len(values) + codes) * 2 + labels
        counts = np.bincount(cells, minlength=2 * data.num_clients * len(values))
        counts = counts.reshape(data.num_clients, len(values), 2)
        requested = _requested(data.bias, feature, values)
        for client, name in enumerate(names):
            for code, value in list(enumerate(values))[len(values) == 2 :]:
                share, rate, gap = _bias(counts[client], code)
                row = {
                    "client": name,
                    "feature": feature,
                    "value": value,
                    "size": int(counts[client].sum()),
                    "share": share,
                    "base_rate": rate,
                    "gap": gap,
                    "gap_sd": _deviation(counts[client], code),
                }
                if requested is not None:
                    of_request = _bias(requested[client], code)
                    titles = ("requested_share", "requested_base_rate", "requested_gap")
                    row |= dict(zip(titles, of_request, strict=True))
                found.append(row)
    return pd.DataFrame(found)


def _requested(
    bias: BiasRequest | None, feature: str, values: tuple[str, ...]
) -> Float[np.ndarray, "clients values 2"] | None:
    """Returns the requested shares of each value of a feature and label, or None."""
    if bias is None or feature not in bias.by:
        return None
    place = bias.by.index(feature)
    cells = bias.cells.reshape(len(bias.cells), *map(len, bias.values), 2)
    others = tuple(axis + 1 for axis in range(len(bias.by)) if axis != place)
    shares = cells.sum(axis=others)
    known = {value: code for code, value in enumerate(bias.values[place])}
    found = np.zeros((len(shares), len(values), 2))
    for code, value in enumerate(values):
        if value in known:
            found[:, code] = shares[:, known[value]]
    return found


def _bias(counts: np.ndarray, code: int) -> tuple[float, float, float]:
    """Returns the share of a value, its base rate, and the gap of this to all other values."""
    own, others = counts[code], counts.sum(axis=0) - counts[code]
    rate, other_rate = (
        each[1] / each.sum() if each.sum() > 0 else np.nan for each in (own, others)
    )
    return float(own.sum() / counts.sum()), float(rate), float(rate - other_rate)


def _deviation(counts: np.ndarray, code: int) -> float:
    """Returns the standard deviation of the gap."""
    total = 0.0
    for each in (counts[code], counts.sum(axis=0) - counts[code]):
        size = each.sum()
        total += each[0] * each[1] / size**3 if size else np.nan
    return float(np.sqrt(total))
