"""Memory layout of examples: on an accelerator, flattened images.

An accelerator pads the last axis of an array, on a TPU to a multiple of 128, so images of 28 x 28 x
1 bytes take five times their size and are copied to another layout. Flattened images are not, and
the few of a minibatch are reshaped.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding
from jaxtyping import Array, Shaped

from fedjax_fair.data.federated import FederatedData, map_arrays
from fedjax_fair.numerics import target

__all__ = ["FlatImages", "flatten_images", "on_device", "to_device_layout"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class FlatImages:
    """Flattened examples, which ``features[ids]`` reshapes.

    Attributes:
        values: ``[total, elements]``.
        example_shape: Shape of one example.

    Examples:
        >>> import numpy as np
        >>> images = FlatImages(np.arange(18).reshape(3, 6), (2, 3))
        >>> images.shape, images[np.array([2, 0])].shape
        ((3, 2, 3), (2, 2, 3))
    """

    values: Any
    example_shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the equivalent array of examples."""
        return (*self.values.shape[:-1], *self.example_shape)

    @property
    def ndim(self) -> int:
        """Number of axes of the equivalent array."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """Type of the elements."""
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, ids: Any) -> Any:
        if isinstance(ids, tuple):
            raise IndexError("features[i, ...]: expected one index, features[i][...].")
        examples = self.values[ids]
        return examples.reshape(*examples.shape[:-1], *self.example_shape)

    def __jax_array__(self) -> Shaped[Array, "..."]:
        return jnp.asarray(self[:])


def flatten_images(features: Any) -> Any:
    """Flattens features with several axes to ``FlatImages`` if the `target` is an accelerator."""
    if features is None or features.ndim < 3 or target.current().is_cpu:
        return features
    return FlatImages(features.reshape(len(features), -1), features.shape[1:])


def on_device(data: FederatedData, sharding: Sharding | None = None) -> FederatedData:
    """Copies a federated dataset to the default device, in the layout of the device.

    Args:
        data: A federated dataset on the host.
        sharding: Other devices, each of which gets all of it.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = on_device(ff.data.load("digits"))
        >>> isinstance(data.train.order, jax.Array)
        True
    """
    return map_arrays(data, lambda data: jax.device_put(to_device_layout(data), sharding))


def to_device_layout(data: FederatedData) -> FederatedData:
    """Converts a federated dataset on the host to the layout of the `target`."""
    return data.map_parts(lambda part: part._replace(features=flatten_images(part.features)))
