"""How examples lie in the memory of a device: on an accelerator, images as rows of numbers.

An accelerator pads the last axes of an array to whole tiles; on a TPU the last has a multiple of
128 places. Images of 28 x 28 x 1 bytes take five times their bytes there, and programs start by
copying all of them into another layout. Rows of 784 bytes are stored nearly without padding, and
the few that a minibatch takes out get their shape back.
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

__all__ = ["Rows", "flatten_images", "on_device", "to_device_layout"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Examples stored flat, which have their shape when taken out: ``features[ids]``.

    Attributes:
        values: ``[total, numbers]``.
        example_shape: Shape of one example.

    Examples:
        >>> import numpy as np
        >>> images = Rows(np.arange(18).reshape(3, 6), (2, 3))
        >>> images.shape, images[np.array([2, 0])].shape
        ((3, 2, 3), (2, 2, 3))
    """

    values: Any
    example_shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """As if it were an array of examples."""
        return (*self.values.shape[:-1], *self.example_shape)

    @property
    def ndim(self) -> int:
        """Number of axes, of examples and within them."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """Type of a number."""
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, ids: Any) -> Any:
        if isinstance(ids, tuple):
            raise IndexError("features: expected one index, of examples; take them out first.")
        taken = self.values[ids]
        return taken.reshape(*taken.shape[:-1], *self.example_shape)

    def __jax_array__(self) -> Shaped[Array, "..."]:
        return jnp.asarray(self[:])


def flatten_images(features: Any) -> Any:
    """Features in the form that suits the device that programs are traced for.

    Args:
        features: ``[total, ...]``, or None.

    Returns:
        ``Rows`` of features with several axes for an accelerator, otherwise the same.
    """
    if features is None or features.ndim < 3 or target.current().is_cpu:
        return features
    return Rows(features.reshape(len(features), -1), features.shape[1:])


def on_device(data: FederatedData, sharding: Sharding | None = None) -> FederatedData:
    """Copies a federation to the default device, in the form that suits it.

    Args:
        data: A federation on the host.
        sharding: Other devices, each of which gets all of it.

    Returns:
        The federation, whose images are ``Rows`` on an accelerator. Programs that get it as an
        argument, as those of ``fit`` do, read it where it lies.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = on_device(ff.data.load("digits"))
        >>> isinstance(data.train.order, jax.Array)
        True
    """
    return map_arrays(data, lambda data: jax.device_put(to_device_layout(data), sharding))


def to_device_layout(data: FederatedData) -> FederatedData:
    """A federation in the form that suits the device that programs are traced for.

    Args:
        data: Arrays on the host.
    """
    parts = {
        name: part._replace(features=flatten_images(part.features))
        for name in ("train", "test", "validation")
        if (part := getattr(data, name)) is not None
    }
    return data._replace(**parts)
