"""Sizes of tiles and of chunks of a batch."""

import numpy as np

from fedjax_fair.models.conv import chunks
from fedjax_fair.models.conv.tiles import _num_chunks, _tile_width


def test_tiles_cover_a_row_and_stay_narrow():
    for width in range(1, 70):
        for channels in (1, 6, 16, 32, 64, 512):
            tile = _tile_width(width, channels, kernel_width=5, stride=1)
            assert 1 <= tile <= width
            assert tile == 1 or tile * channels <= 96
    # LeNet's layers, and windows that do not overlap.
    assert _tile_width(28, 6, kernel_width=5, stride=1) == 14
    assert _tile_width(10, 16, kernel_width=5, stride=1) == 5
    assert _tile_width(28, 6, kernel_width=2, stride=2) == 1


def test_chunks_fit_into_the_cache():
    def num_chunks(batch, side, channels, features):
        shapes = (batch, side, side, channels), (3, 3, channels, features)
        x, kernel = (np.zeros(shape, np.float32) for shape in shapes)
        return _num_chunks(x, kernel, (1, 1), ((0, 0), (0, 0)))

    assert num_chunks(50, 32, 1, 6) == 1  # A LeNet's tiles are a few kilobytes an image.
    assert num_chunks(8, 20, 32, 64) == 2
    assert num_chunks(7, 21, 32, 64) == 7  # Two chunks would do, but do not divide seven.
    assert num_chunks(6, 66, 64, 64) == 6  # Not even one image fits.
    assert chunks.count(8, chunks.CACHE // 7, room=2 * chunks.CACHE) == 1
