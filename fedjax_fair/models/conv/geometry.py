"""Sizes of convolutions."""

from __future__ import annotations

from jaxtyping import Array

__all__ = ["Padding", "Pair", "output_shape"]

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]


def output_shape(x: Array, kernel: Array, strides: Pair, padding: Padding) -> Pair:
    """Returns the rows and columns of the outputs of images ``[batch, height, width, in]``."""
    rows, columns = (
        (side + sum(edges) - window) // stride + 1
        for side, edges, window, stride in zip(
            x.shape[1:3], padding, kernel.shape[:2], strides, strict=True
        )
    )
    return rows, columns
