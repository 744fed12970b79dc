"""One training of a small network, by any library: the file that it starts from and the request.

The file has the examples (``features``, ``labels``), the rows of each client (``rows``, ``sizes``),
the layers of the initial model (``layer00.kernel``, ``layer00.bias``, ...) and the clients of each
round (``cohorts``). Libraries draw minibatches themselves.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np


class Settings(NamedTuple):
    """Settings of a training.

    Attributes:
        batch_size: Examples of a minibatch, at most; a client with fewer uses all of them.
        steps: Local steps of a client.
        learning_rate: Local step size.
        prox: FedProx's mu; 0 is FedAvg.
        seed: Seed of the minibatches.
    """

    batch_size: int
    steps: int
    learning_rate: float
    prox: float
    seed: int


def split_by_client(arrays: dict[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the features and labels of each client."""
    parts = np.split(arrays["rows"], np.cumsum(arrays["sizes"])[:-1])
    return [(arrays["features"][part], arrays["labels"][part].astype(np.int64)) for part in parts]


def layers_of(arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Returns kernel and bias of each layer."""
    layers: dict[str, dict[str, np.ndarray]] = {}
    for name in sorted(name for name in arrays if name.startswith("layer")):
        layer, kind = name.split(".")
        layers.setdefault(layer, {})[kind] = arrays[name]
    return list(layers.values())


def minibatches(rng: np.random.Generator, size: int, settings: Settings) -> Iterator[np.ndarray]:
    """Yields the examples of each local step; the last minibatch of an epoch may be smaller."""
    step = 0
    while step < settings.steps:
        order = rng.permutation(size)
        for start in range(0, size, settings.batch_size):
            if step < settings.steps:
                yield order[start : start + settings.batch_size]
            step += 1


def serve(train: Callable[[dict[str, np.ndarray], Settings], list[dict[str, Any]]]) -> None:
    """Answers requests, one JSON object a line.

    Args:
        train: From the arrays of the file and the settings to the layers after the last round.
    """
    for line in sys.stdin:
        request = json.loads(line)
        layers = train(dict(np.load(request["file"])), Settings(**request["settings"]))
        named = {
            f"layer{i:02d}.{part}": np.asarray(values)
            for i, layer in enumerate(layers)
            for part, values in layer.items()
        }
        np.savez(request["result"], **named)
        print(json.dumps({"layers": len(layers)}), flush=True)
