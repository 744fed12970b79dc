"""Standard errors of differences that come from the finite test pool, which all blocks share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from fedjax_fair.benchmark.protocol import BASELINE, CRITERIA

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from fedjax_fair.benchmark.measures import Final
    from fedjax_fair.data.federated import FederatedData
    from fedjax_fair.training.fit_result import FitResult

__all__ = ["ANSWERS", "COLUMNS", "answers", "baseline_answers", "pool_errors"]

COLUMNS = ("federation", "method", "criterion", "measure", "se")
"""Columns of `pool_errors`."""

ANSWERS = ("federation", "method", "criterion", "seed", "client", "correct")
"""Columns of `baseline_answers`."""

_MEASURES = ("accuracy", "standard_deviation")
_AFTER_THE_LAST_ROUND = CRITERIA[:2]
_RESAMPLES = 500
_PLACES = ("seed", "client", "test_example")


def answers(fitted: FitResult, data: FederatedData) -> dict[str, Any]:
    """Returns which test examples the models that serve clients predict correctly.

    Args:
        fitted: The models of some runs, of classes as labels.
        data: The federated dataset, with one partition for each run.

    Returns:
        Variables ``[runs, clients, places]``: ``test_index``, the example in the data,
        ``test_label`` and ``test_correct``; -1 after the last example of a client.
    """
    parts = [data.partition(run).test for run in range(data.num_partitions or 1)]
    largest = max(int(part.sizes.max()) for part in parts)
    index = np.full((len(parts), data.num_clients, largest), -1, np.int32)
    for run, part in enumerate(parts):
        for client, rows in enumerate(part.client_indices):
            index[run, client, : len(rows)] = rows
    pool = np.unique(index[index >= 0])
    features, labels = (np.asarray(array)[pool] for array in parts[0][:2])
    place = np.searchsorted(pool, np.maximum(index, pool[0]))
    if fitted.personalized is None:
        is_correct = fitted.predict(features)[:, None] == labels
    else:
        of_clients = [fitted.predict(features, client) for client in range(data.num_clients)]
        is_correct = np.stack(of_clients, axis=1) == labels
    found = np.take_along_axis(np.broadcast_to(is_correct, (*index.shape[:2], len(pool))), place, 2)
    values = {"index": index, "label": labels[place], "correct": found.astype(np.int8)}
    return {
        f"test_{name}": (_PLACES, np.where(index < 0, -1, value).astype(value.dtype))
        for name, value in values.items()
    }


def baseline_answers(found: Sequence[Final]) -> pd.DataFrame:
    """Returns which test examples FedAvg predicts correctly.

    Other methods are compared with them without the models of FedAvg.

    Args:
        found: Final runs.

    Returns:
        A row per federated dataset, criterion, seed and client: ``correct``, a digit 0 or 1 for
        each test example of the client, in the order of the partition.
    """
    import pandas as pd

    rows: list[Any] = []
    for (federation, criterion, method), dataset in _runs(found).items():
        if method == BASELINE:
            seeds, (index, correct) = dataset["seed"].values, _arrays(dataset, "index", "correct")
            for seed, *of_block in zip(seeds.tolist(), index, correct, strict=True):
                for client, (own, is_correct) in enumerate(zip(*of_block, strict=True)):
                    digits = "".join(map(str, is_correct[own >= 0].tolist()))
                    rows.append((federation, method, criterion, seed, client, digits))
    return pd.DataFrame(rows, columns=list(ANSWERS))


def pool_errors(found: Sequence[Final], expected: pd.DataFrame) -> pd.DataFrame:
    """Returns standard errors of differences to FedAvg over resamples of the test pool.

    Examples are resampled within clients, or within labels if seeds divide the pool in their own
    way; the same resample counts for both methods and all blocks.

    Args:
        found: Final runs.
        expected: The answers of FedAvg (`baseline_answers`) on the same partitions.

    Returns:
        A row per federated dataset, method, criterion and measure: ``se``, the standard deviation
        of the difference of means over blocks. Models after the last round count, of classes.
    """
    import pandas as pd

    groups: Any = expected.groupby(["federation", "criterion"], sort=False)
    of_baseline = {
        unit: {row[:2]: row[2] for row in own[list(ANSWERS[3:])].itertuples(index=False)}
        for unit, own in groups
    }
    resampled: dict[tuple[str, str], Any] = {}
    rows: list[Any] = []
    for (federation, criterion, method), dataset in _runs(found).items():
        texts = of_baseline.get((federation, criterion))
        if texts is None or method == BASELINE:
            continue
        if (federation, criterion) not in resampled:
            weights = _weights(dataset)
            answered = _answers_of(dataset, texts)
            resampled[federation, criterion] = weights, _resampled(dataset, answered, weights)
        weights, of_fedavg = resampled[federation, criterion]
        (correct,) = _arrays(dataset, "correct")
        errors = np.std(_resampled(dataset, correct, weights) - of_fedavg, axis=1, ddof=1)
        for measure, se in zip(_MEASURES, errors.tolist(), strict=True):
            rows.append((federation, method, criterion, measure, se))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"se": float})


def _runs(found: Sequence[Final]) -> dict[tuple[str, str, str], xr.Dataset]:
    """Returns the final runs that have answers, by federated dataset, criterion and method."""
    return {
        (final.federation, final.criterion, final.method): final.dataset
        for final in found
        if final.criterion in _AFTER_THE_LAST_ROUND and "test_correct" in final.dataset
    }


def _arrays(dataset: xr.Dataset, *names: str) -> list[np.ndarray]:
    return [dataset[f"test_{name}"].transpose(*_PLACES).values for name in names]


def _answers_of(dataset: xr.Dataset, texts: dict[tuple[int, int], str]) -> np.ndarray:
    """Returns answers of FedAvg in the places of the test examples of another method."""
    (index,) = _arrays(dataset, "index")
    found = np.full(index.shape, -1, np.int8)
    for block, seed in enumerate(dataset["seed"].values.tolist()):
        for client, own in enumerate(index[block]):
            digits = texts[seed, client].encode()
            found[block, client, own >= 0] = np.frombuffer(digits, np.int8) - ord("0")
    return found


def _weights(dataset: xr.Dataset) -> Float[np.ndarray, "examples resamples"]:
    """Returns how often each resample has each example, by its index in the data."""
    index, label = _arrays(dataset, "index", "label")
    is_of_data = (index == index[0]).all()
    strata = (
        np.broadcast_to(np.arange(index.shape[1])[:, None], index.shape) if is_of_data else label
    )
    examples, first = np.unique(index[index >= 0], return_index=True)
    of_example = strata[index >= 0][first]
    random, weights = np.random.default_rng(0), np.zeros((index.max() + 1, _RESAMPLES), np.float32)
    for stratum in np.unique(of_example):
        own = examples[of_example == stratum]
        weights[own] = random.multinomial(len(own), np.full(len(own), 1 / len(own)), _RESAMPLES).T
    return weights


def _resampled(
    dataset: xr.Dataset, correct: np.ndarray, weights: Float[np.ndarray, "examples resamples"]
) -> Float[np.ndarray, "measures resamples"]:
    """Returns the mean over blocks of each measure, for each resample."""
    (index,), found = _arrays(dataset, "index"), []
    for of_block in zip(index, correct, strict=True):
        accuracies = []
        for own, is_correct in zip(*of_block, strict=True):
            counts = weights[own[own >= 0]]
            with np.errstate(invalid="ignore"):  # A client without an example in a resample.
                accuracies.append(is_correct[own >= 0] @ counts / counts.sum(axis=0))
        found.append([np.nanmean(accuracies, axis=0), np.nanstd(accuracies, axis=0)])
    return np.mean(found, axis=0)
