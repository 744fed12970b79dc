"""Groups of people by sensitive features, for methods of group fairness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.sensitive import SensitiveFeature

__all__ = ["Groups", "find_groups"]


class Groups(NamedTuple):
    """Groups of people by one sensitive feature or by all.

    Attributes:
        number: Number of groups.
        strides: The group of an example is the sum of its codes times these, ``[features]``.
    """

    number: int
    strides: Int[np.ndarray, " features"]

    def of(self, examples: ClientExamples, indices: Int[Array, " chunk"]) -> Int[Array, " chunk"]:
        """Returns the groups of some examples."""
        assert examples.sensitive_features is not None
        codes = examples.sensitive_features[indices]
        return jnp.sum(codes * self.strides[None].astype(np.int32), axis=1, dtype=jnp.int32)


def find_groups(
    role: str, names: Sequence[SensitiveFeature] | None, feature: str | None = None
) -> Groups:
    """Returns the groups of people by a sensitive feature, or by the combinations of all.

    Args:
        role: Name of the role, for messages.
        names: The sensitive features of the data.
        feature: Name of one of them, or None for all.

    Raises:
        ValueError: If there are no sensitive features, or none of this name.

    Examples:
        >>> names = [SensitiveFeature("sex", ("F", "M")), SensitiveFeature("age", ("a", "b", "c"))]
        >>> find_groups("FedFB", names)
        Groups(number=6, strides=array([3, 1], dtype=int32))
        >>> find_groups("FedFB", names, "sex")
        Groups(number=2, strides=array([1, 0], dtype=int32))
    """
    if not names:
        raise ValueError(
            f"{role}: the data has no sensitive features; expected data from "
            "data.from_arrays(..., sensitive_features={'sex': column}) or data.from_table."
        )
    known = [each.name for each in names]
    if feature is not None and feature not in known:
        raise ValueError(f"{role}.sensitive_feature={feature!r}: expected one of {known}, or None.")
    strides, number = np.zeros(len(names), np.int32), 1
    for position in reversed(range(len(names))):
        if feature in (None, known[position]):
            strides[position] = number
            number *= len(names[position].values)
    return Groups(number, strides)
