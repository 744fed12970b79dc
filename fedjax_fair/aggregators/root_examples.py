"""Examples of the server, for aggregators that measure or train with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from fedjax_fair.data.client_examples import ClientExamples

__all__ = ["as_root", "check_types"]


def as_root(name: str, root: Any) -> tuple[Any, Any]:
    """Returns features and labels in the types of federated datasets.

    Raises:
        ValueError: If they are no pair of finite numbers of equal length.
    """
    if not isinstance(root, (tuple, list)) or len(root) != 2:
        raise ValueError(
            f"{name} is a {type(root).__name__}: expected a pair (features, labels); pass both as "
            "arrays."
        )
    if any(isinstance(part, Tracer) for part in root):
        return root[0], root[1]
    features, labels = map(np.asarray, root)
    if features.ndim < 2 or not labels.ndim or len(features) != len(labels) or not len(labels):
        raise ValueError(
            f"{name} of features {list(features.shape)} and labels {list(labels.shape)}: expected "
            "[n, ...] and [n], with n >= 1; pass one label per example."
        )
    return _convert("features", features), _convert("labels", labels)


def check_types(root: Sequence[Any], examples: ClientExamples) -> tuple[Array, Array]:
    """Returns features and labels as arrays, if they have the shapes and types of the clients'.

    Raises:
        ValueError: If not.
    """
    features, labels = map(jnp.asarray, root)
    for name, array in {"features": features, "labels": labels}.items():
        clients = getattr(examples, name)
        if array.shape[1:] != clients.shape[1:] or array.dtype != clients.dtype:
            raise ValueError(
                f"root: {name} {array.dtype}{list(array.shape[1:])} of an example, expected "
                f"the clients' {clients.dtype}{list(clients.shape[1:])}; prepare root as the "
                "data of clients."
            )
    return features, labels


def _convert(name: str, array: np.ndarray) -> np.ndarray:
    is_number = array.dtype.kind in "fiu"
    if is_number and not (name == "features" and array.dtype == np.uint8):
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
    if not is_number or not np.isfinite(array).all():
        raise ValueError(
            f"root: expected finite numbers as {name}, got {array.dtype}; remove or encode other "
            "values."
        )
    return array
